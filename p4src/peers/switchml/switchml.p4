// SwitchML's aggregation (Sapio et al., NSDI 2021, algorithm 3) for v1model: BMv2 and the embedded target.
//
//   parser ──> job ──> seen, count, exponents, values ──┬─> multicast group of the job ──> address of each copy
//     │                                                 ├─> back to the sender, which has missed the result
//     └── everything else ──> bridge                    └─> nowhere: others are missing
//
// A slot has two versions. While one is summed, the other keeps the last result, for workers that have missed it: a worker that
// is seen in one version has the other's result, so that all are seen in one before the other is used again. A worker sends for a
// slot only when it has the slot's last result, so what is two versions old is wanted by nobody.
//
// Beyond the paper, a slot knows its round, whose lowest bit is the version: a packet of an older one, which the network has kept for
// long, is dropped, and not added to a sum that is not its own.
//
// Values are integers, scaled by the largest exponent among the workers. A packet carries the exponent of the block that its worker
// sends next for this slot, and the result the largest of these.
//
// Build: p4c-bm2-ss -I p4src/core -DBUILD_LANES=64 p4src/peers/switchml/switchml.p4 (or 256); `scripts/compile` does it.

#include <v1model.p4>
#include "generated/lanes.p4"

#define SLOTS 512
#define VERSIONS 2

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_UDP   = 17;
const bit<16> SWITCHML_PORT  = 21313;  // where switches of this project take datagrams
const bit<16> WHOLE_UDP_BYTES = 8 + 8 + 4 * LANES;

typedef bit<48> mac_t;
typedef bit<32> ip_t;
typedef bit<9>  port_t;

header ethernet_h { mac_t dst; mac_t src; bit<16> ether_type; }
header arp_h { bit<16> hardware; bit<16> protocol; bit<8> hardware_bytes; bit<8> protocol_bytes; bit<16> operation;
               mac_t sender_mac; ip_t sender_ip; mac_t target_mac; ip_t target_ip; }
header ipv4_h { bit<4> version; bit<4> ihl; bit<8> dscp_ecn; bit<16> total_bytes; bit<16> identification; bit<3> flags;
                bit<13> fragment_offset; bit<8> ttl; bit<8> protocol; bit<16> checksum; ip_t src; ip_t dst; }
header udp_h { bit<16> src_port; bit<16> dst_port; bit<16> bytes; bit<16> checksum; }
header switchml_h {
    bit<8>  job;
    bit<8>  worker;    // the sender of an update; of a result, whoever completed it
    bit<16> slot;
    bit<16> round;     // how often the slot has been used, from 2 on; its lowest bit is the version
    bit<8>  exponent;  // of the block that comes next in this slot: the sender's, in a result the largest
    bit<8>  zero;
}
#define LANE_FIELD(i) int<32> v##i;
header values_h { EACH_LANE(LANE_FIELD) }

struct headers_t { ethernet_h ethernet; arp_h arp; ipv4_h ipv4; udp_h udp; switchml_h switchml; values_h values; }
struct meta_t { ip_t next_hop; bit<32> workers; bit<16> group; bit<32> slot; }

parser SwitchParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) { ETHERTYPE_IPV4: ipv4; ETHERTYPE_ARP: arp; default: accept; }
    }
    state arp {
        packet.extract(hdr.arp);
        meta.next_hop = hdr.arp.target_ip;
        transition accept;
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.next_hop = hdr.ipv4.dst;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, PROTOCOL_UDP): udp;
            default:                 accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.bytes) { (SWITCHML_PORT, WHOLE_UDP_BYTES): switchml; default: accept; }
    }
    state switchml {
        packet.extract(hdr.switchml);
        packet.extract(hdr.values);
        transition accept;
    }
}

#define LANE_REGISTER(i) register<int<32>>(SLOTS * VERSIONS) sum_##i;
#define LANE_SET(i)  sum_##i.write(meta.slot, hdr.values.v##i);
#define LANE_ADD(i)  sum_##i.read(held, meta.slot); \
                     hdr.values.v##i = (int<32>)(bit<32>)held + hdr.values.v##i; \
                     sum_##i.write(meta.slot, hdr.values.v##i);
#define LANE_READ(i) sum_##i.read(hdr.values.v##i, meta.slot);

control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(SLOTS * VERSIONS) seen;       // workers, a bit each
    register<bit<32>>(SLOTS * VERSIONS) count;      // workers that are in the sum; 0: it is complete
    register<bit<16>>(SLOTS * VERSIONS) rounds;
    register<bit<8>>(SLOTS * VERSIONS)  exponents;
    EACH_LANE(LANE_REGISTER)
    int<32> held;
    action set()  { EACH_LANE(LANE_SET) }
    action add()  { EACH_LANE(LANE_ADD) }
    action read() { EACH_LANE(LANE_READ) }

    action drop() { mark_to_drop(standard); }
    action to_port(port_t port) { standard.egress_spec = port; }
    action admit(bit<32> workers, bit<16> group) {
        meta.workers = workers;
        meta.group = group;
    }
    table jobs {
        key = { hdr.switchml.job: exact @name("job"); }
        actions = { admit; drop; }
        const default_action = drop();
        size = 256;
    }
    table bridge {
        key = { meta.next_hop: lpm @name("ip"); }
        actions = { to_port; drop; }
        const default_action = drop();
        size = 1024;
    }

    // The result goes back to one worker, from the address that it sent to.
    action answer() {
        mac_t mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        ip_t ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = ip;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = SWITCHML_PORT;
        hdr.udp.checksum = 0;
        standard.egress_spec = standard.ingress_port;
    }

    apply {
        if (!hdr.switchml.isValid()) {
            bridge.apply();
        } else if (jobs.apply().hit) {
            bit<32> bit_of_worker = (bit<32>)1 << hdr.switchml.worker;
            bit<32> version = (bit<32>)(hdr.switchml.round & 1);
            bit<32> other = ((bit<32>)hdr.switchml.slot << 1) | (1 - version);
            meta.slot = ((bit<32>)hdr.switchml.slot << 1) | version;
            bit<32> here; bit<32> there; bit<32> counted; bit<16> round; bit<8> largest;
            if (hdr.switchml.slot >= SLOTS || (bit<32>)hdr.switchml.worker >= meta.workers) {
                drop();
            } else {
                seen.read(here, meta.slot);
                count.read(counted, meta.slot);
                rounds.read(round, meta.slot);
                exponents.read(largest, meta.slot);
                bit<16> newer = hdr.switchml.round - round;
                if (here & bit_of_worker == 0 && ((counted == 0 && newer != 0 && newer < 0x8000) || (counted != 0 && newer == 0))) {
                    seen.write(meta.slot, here | bit_of_worker);
                    seen.read(there, other);
                    seen.write(other, there & ~bit_of_worker);
                    if (counted == 0) {
                        rounds.write(meta.slot, hdr.switchml.round);
                        set();
                    } else {
                        add();
                        if (largest > hdr.switchml.exponent) { hdr.switchml.exponent = largest; }
                    }
                    exponents.write(meta.slot, hdr.switchml.exponent);
                    counted = counted + 1;
                    if (counted == meta.workers) {
                        counted = 0;
                        standard.mcast_grp = meta.group;
                    } else {
                        drop();
                    }
                    count.write(meta.slot, counted);
                } else if (here & bit_of_worker != 0 && counted == 0 && newer == 0) {
                    read();
                    hdr.switchml.exponent = largest;
                    answer();
                } else {
                    drop();
                }
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action send(mac_t from_mac, ip_t from_ip, mac_t to_mac, ip_t to_ip, bit<16> to_udp_port) {
        hdr.ethernet.src = from_mac;
        hdr.ipv4.src = from_ip;
        hdr.udp.src_port = SWITCHML_PORT;
        hdr.ethernet.dst = to_mac;
        hdr.ipv4.dst = to_ip;
        hdr.udp.dst_port = to_udp_port;
        hdr.udp.checksum = 0;
    }
    table workers {
        key = {
            hdr.switchml.job:     exact @name("job");
            standard.egress_rid: exact @name("worker");
        }
        actions = { send; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }
    apply {
        if (standard.egress_rid != 0) {
            workers.apply();
        }
    }
}

control VerifyNothing(inout headers_t hdr, inout meta_t meta) { apply {} }

control UpdateIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp_ecn, hdr.ipv4.total_bytes, hdr.ipv4.identification, hdr.ipv4.flags,
              hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.switchml);
        packet.emit(hdr.values);
    }
}

V1Switch(SwitchParser(), VerifyNothing(), SwitchIngress(), SwitchEgress(), UpdateIpv4(), SwitchDeparser()) main;
