// A minimal program that sums packets, for v1model: BMv2 and the embedded target. docs/own-program.md explains it.
//
//   parser ──> slot of the chunk: first packet sets, others add ──┬─> all workers, if it is the last one
//                                                                 ├─> its sender alone, if that has missed the sum
//                                                                 └─> nowhere: others are missing
//
// Worker w sends chunk c, from 1 on, when it has the sum of chunk c - WINDOW. So a slot is used anew, by chunk c + SLOTS, only when all
// workers have the sum of chunk c: some worker has that of c + WINDOW, to which all have contributed, having the sum of c.

#include <v1model.p4>

#define SLOTS 256  // twice the window
#define LANES 64
#define EACH_LANE(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) \
    M(20) M(21) M(22) M(23) M(24) M(25) M(26) M(27) M(28) M(29) M(30) M(31) M(32) M(33) M(34) M(35) M(36) M(37) M(38) M(39) M(40) \
    M(41) M(42) M(43) M(44) M(45) M(46) M(47) M(48) M(49) M(50) M(51) M(52) M(53) M(54) M(55) M(56) M(57) M(58) M(59) M(60) M(61) \
    M(62) M(63)

header ethernet_h { bit<48> dst; bit<48> src; bit<16> ether_type; }
header ipv4_h { bit<4> version; bit<4> ihl; bit<8> dscp_ecn; bit<16> total_bytes; bit<16> identification; bit<3> flags;
                bit<13> fragment_offset; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst; }
header udp_h { bit<16> src_port; bit<16> dst_port; bit<16> bytes; bit<16> checksum; }
header chunk_h { bit<32> chunk; bit<32> worker; }
#define FIELD(i) bit<32> v##i;
header values_h { EACH_LANE(FIELD) }

struct headers_t { ethernet_h ethernet; ipv4_h ipv4; udp_h udp; chunk_h chunk; values_h values; }
struct meta_t { bit<32> workers; }

parser OwnParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.protocol) { (5, 17): udp; default: accept; }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.bytes) { 8 + 8 + 4 * LANES: chunk; default: accept; }
    }
    state chunk {
        packet.extract(hdr.chunk);
        packet.extract(hdr.values);
        transition accept;
    }
}

#define REGISTER(i) register<bit<32>>(SLOTS) sum_##i;
#define SET(i)  sum_##i.write(slot, hdr.values.v##i);
#define ADD(i)  sum_##i.read(held, slot); hdr.values.v##i = held + hdr.values.v##i; sum_##i.write(slot, hdr.values.v##i);
#define READ(i) sum_##i.read(hdr.values.v##i, slot);

control OwnIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(SLOTS) chunks;  // of each slot
    register<bit<32>>(SLOTS) seen;    // workers whose packet is in the sum, a bit each
    EACH_LANE(REGISTER)
    bit<32> slot;
    bit<32> held;
    action set() { EACH_LANE(SET) }
    action add() { EACH_LANE(ADD) }
    action read() { EACH_LANE(READ) }

    action drop() { mark_to_drop(standard); }
    action admit(bit<32> workers) { meta.workers = workers; }
    table jobs {  // with one entry: who sends to the switch's address belongs to the job
        key = { hdr.ipv4.dst: exact @name("ip"); }
        actions = { admit; drop; }
        const default_action = drop();
    }

    apply {
        if (!hdr.values.isValid() || !jobs.apply().hit || hdr.chunk.worker >= meta.workers) {
            drop();
        } else {
            bit<32> chunk;
            bit<32> workers;
            bit<32> mine = (bit<32>)1 << (bit<8>)hdr.chunk.worker;
            bit<32> all = ((bit<32>)1 << (bit<8>)meta.workers) - 1;
            slot = hdr.chunk.chunk & (SLOTS - 1);
            chunks.read(chunk, slot);
            seen.read(workers, slot);
            if (hdr.chunk.chunk < chunk) {  // the network has kept it for long: nobody waits for that sum any more
                drop();
            } else {
                if (hdr.chunk.chunk > chunk) {
                    workers = 0;
                    chunks.write(slot, hdr.chunk.chunk);
                    set();
                } else if (workers & mine == 0) {
                    add();
                } else {
                    read();
                }
                seen.write(slot, workers | mine);
                if (workers | mine != all) {
                    drop();
                } else if (workers & mine == 0) {
                    standard.mcast_grp = 1;  // to all: this was the last one
                } else {
                    standard.mcast_grp = 2 + (bit<16>)hdr.chunk.worker;  // to its sender, which has missed the sum
                }
            }
        }
    }
}

control OwnEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action send(bit<48> mac, bit<32> ip, bit<16> udp_port) {
        bit<32> switch_ip = hdr.ipv4.dst;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.ipv4.src = switch_ip;
        bit<16> switch_port = hdr.udp.dst_port;
        hdr.udp.dst_port = udp_port;
        hdr.udp.src_port = switch_port;
        hdr.udp.checksum = 0;
    }
    table workers {
        key = { standard.egress_rid: exact @name("worker"); }
        actions = { send; NoAction; }
        const default_action = NoAction();
    }
    apply { workers.apply(); }
}

control NoCheck(inout headers_t hdr, inout meta_t meta) { apply {} }

control Ipv4Checksum(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp_ecn, hdr.ipv4.total_bytes, hdr.ipv4.identification, hdr.ipv4.flags,
              hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control OwnDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(OwnParser(), NoCheck(), OwnIngress(), OwnEgress(), Ipv4Checksum(), OwnDeparser()) main;
