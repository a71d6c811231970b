// What TNA calls differently, or can do only in its own way: Tofino 1 and 2.
//
// A register is touched by RegisterActions, one of them for each packet; ON_STATE writes them around an update, so that what
// the update says is the same on every target.

// The recirculation port of the first pipe. Where a result is copied, one copy goes there and comes back to its slot: that is
// the second touch that CLAIMABLE_WHEN_COMPLETE is elsewhere. All ports of a job belong to one pipe, whose memory it uses.
#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#define LOOP_PORT 68
#else
#include <t2na.p4>
#define LOOP_PORT 6
#endif

// The traffic manager counts a queue in cells of its buffer, of which a packet takes some: this is about 40 packets.
#define MARK_ABOVE 120

// A stateful ALU takes two words from the packet, which are the sequence number and the time: how long an incomplete sum may
// be idle is a parameter of the switch here, not of the job. It also compares twice at most, and one that says which number
// is larger goes wrong where the clock is young or wraps around (docs/tofino.md). So time has coarse ticks, of 2^TICK_BITS ns
// (28: 268 ms), and what was not touched in this very tick has lapsed. A tick is never 0, and 0 is what slots hold at first.
#ifndef TICK_BITS
#define TICK_BITS 28
#endif
#define NOT_IN_A_TICK (0x80000000 | ((1 << (TICK_BITS - 16)) - 1))  // of bits [47:16] of the time
#define HAS_LAPSED (was.touched != meta.now)
#define NEVER      0

#define STATE(T, array) Register<T, bit<16>>(SLOTS) array;
#define ON_STATE(T, array, slot, operation, result, ...) \
    RegisterAction<T, bit<16>, T>(array) operation##_alu = { void apply(inout T held, out T seen) { __VA_ARGS__ } }; \
    action operation() { result = operation##_alu.execute(slot); }
#define STATE_PAIR(array) Register<claim_t, bit<16>>(SLOTS) array;
#define ON_PAIR(array, slot, operation, result, ...) \
    RegisterAction<claim_t, bit<16>, claim_case_t>(array) operation = { \
        void apply(inout claim_t held, out claim_case_t seen) { claim_t was = held; __VA_ARGS__ } };
#define WHEN(condition, target, value) if (condition) { target = value; }
#define SEE_CASE(own, lapsed) seen = this.predicate(own, lapsed);
#define AT_STAGE(n) @stage(n)
#define DO(operation, slot, result) result = operation.execute(slot);
#define CLAIMABLE_WHEN_COMPLETE

#define COUNTER(name, size) Counter<bit<64>, bit<13>>(size, CounterType_t.PACKETS_AND_BYTES) name;
#define COUNT(name, index) name.count(index);

// What the shared parser and controls are given besides headers and meta_t; fields of `standard` have the same names everywhere.
#define PARSER_METADATA out meta_t meta, out ingress_intrinsic_metadata_t standard
#define INGRESS_METADATA in ingress_intrinsic_metadata_t standard, in ingress_intrinsic_metadata_from_parser_t from_parser, \
                         inout ingress_intrinsic_metadata_for_deparser_t to_deparser, \
                         inout ingress_intrinsic_metadata_for_tm_t to_manager
#define INGRESS_ARGUMENTS standard, from_parser, to_deparser, to_manager
#define EGRESS_METADATA in egress_intrinsic_metadata_t standard, in egress_intrinsic_metadata_from_parser_t from_parser, \
                        inout egress_intrinsic_metadata_for_deparser_t to_deparser, \
                        inout egress_intrinsic_metadata_for_output_port_t to_port
#define DEPARSER_PARAMETERS inout headers_t hdr, in meta_t meta, in ingress_intrinsic_metadata_for_deparser_t to_deparser

#define ARRIVAL meta.now = from_parser.global_tstamp[47:16] | NOT_IN_A_TICK;

// What is given no port is dropped, too; but that it is meant shall be seen.
#define TO_PORT(port) to_manager.ucast_egress_port = port;
#define TO_GROUP(group) to_manager.mcast_grp_a = group;
#define TO_NOBODY to_deparser.drop_ctl = 1;

// Egress gets nothing but bytes. The bridge header tells it what the parser found, so that it need not find out again.
#define BEFORE_ETHERNET packet.extract(standard); packet.advance(PORT_METADATA_SIZE); hdr.bridge.setValid();
#define TELL_EGRESS(what) hdr.bridge.layers = what;
// What the parser does not take apart egress cannot leave out: lanes pass as they are, so there are no bare results.
#define SEND_BARE
// To the parser the frame check sequence is data: in a frame that is up to four bytes too short it would be taken for lanes.
// So its last bit decides between two ways that come to the same: the parser has to have it, or drops the packet.
#define AFTER_LANES select(packet.lookahead<bit<32>>()[0:0]) { 0: end; 1: other_end; }
#define OTHER_END state other_end { TELL_EGRESS(LAYERS_SA_ODD) transition accept; }
#define VERIFIER Checksum() ipv4_checksum;
#define VERIFY(header) ipv4_checksum.add(header); meta.damaged = (bit<1>)ipv4_checksum.verify();
