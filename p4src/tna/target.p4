// What TNA calls differently, or can do only in its own way: Tofino 1 and 2.
//
// A register is touched by RegisterActions, one of them for each packet; ON_STATE writes them around an update, so that what
// the update says is the same on every target.

#ifndef SA_TNA_TARGET_P4
#define SA_TNA_TARGET_P4

typedef bit<16> CopyId_t;

// The recirculation port of the first pipe. Where a result is copied, one copy goes there and comes back to its slot: that is
// the second touch that CLAIMABLE_WHEN_COMPLETE is elsewhere. All ports of a job belong to one pipe, whose memory it uses.
#if __TARGET_TOFINO__ == 1
#define LOOP_PORT 68
#else
#define LOOP_PORT 6
#endif

struct claim_t { bit<32> id; bit<32> touched; }
// A stateful ALU takes two words from the packet, which are the sequence number and the time: how long an incomplete sum may
// be idle is a parameter of the switch here, not of the job. In ticks of 65.536 us, bits [47:16] of the time in nanoseconds.
#ifndef TTL_TICKS
#define TTL_TICKS 1562
#endif
#define TTL TTL_TICKS

#define STATE(T, name) Register<T, bit<16>>(SLOTS) name;
#define ON_STATE(T, name, operation, result, ...) \
    RegisterAction<T, bit<16>, T>(name) operation##_alu = { void apply(inout T held, out T seen) { __VA_ARGS__ } }; \
    action operation() { result = operation##_alu.execute(hdr.sa.slot); }
#define STATE_PAIR(name) Register<claim_t, bit<16>>(SLOTS) name;
#define ON_PAIR(name, operation, result, ...) \
    RegisterAction<claim_t, bit<16>, bit<8>>(name) operation = { \
        void apply(inout claim_t held, out bit<8> seen) { claim_t was = held; __VA_ARGS__ } };
#define WHEN(condition, target, value) if (condition) { target = value; }
#define SEE_CASE(own, lapsed) seen = this.predicate(own, lapsed);
#define DO(operation, result) result = operation.execute(hdr.sa.slot);
#define CLAIMABLE_WHEN_COMPLETE

#define COUNTER(name, size) Counter<bit<64>, bit<13>>(size, CounterType_t.PACKETS_AND_BYTES) name;
#define COUNT(name, index) name.count(index);

// What is given no port is dropped, too; but that it is meant shall be seen.
#define WAY_OUT inout ingress_intrinsic_metadata_for_tm_t to_manager, \
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser
#define THE_WAY_OUT to_manager, to_deparser
#define TO_PORT(port) to_manager.ucast_egress_port = port;
#define TO_GROUP(group) to_manager.mcast_grp_a = group;
#define TO_NOBODY to_deparser.drop_ctl = 1;

#define VERIFIER Checksum() ipv4_checksum;
#define VERIFY(header) ipv4_checksum.add(header); meta.damaged = (bit<1>)ipv4_checksum.verify();

#endif
