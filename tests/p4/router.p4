// An IPv4 router with one of everything that the control plane can write: all five match kinds, priorities, a constant
// table, default actions of both sorts, multicast, counters of three units, and registers with and without a sign.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_bytes;
    bit<16> identification;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h     ipv4;
}

struct meta_t {
    bit<8> class;
}

parser RouterParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x0800:  ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control RouterIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    counter(512, CounterType.packets_and_bytes) arrived;
    counter(256, CounterType.packets) by_class;
    direct_counter(CounterType.packets_and_bytes) routed;
    direct_counter(CounterType.bytes) filtered;
    register<bit<48>>(16) last_source;
    register<int<16>>(16) balance;

    action drop() {
        mark_to_drop(standard);
    }
    action set_class(bit<8> class) {
        meta.class = class;
    }
    action forward(bit<48> next_hop, bit<9> port) {
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        standard.egress_spec = port;
    }
    action flood(bit<16> group) {
        standard.mcast_grp = group;
    }

    // Its default action may be changed, to one of its two actions that may be one.
    table route {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { forward; flood; drop; @tableonly set_class; @defaultonly NoAction; }
        default_action = drop();
        counters = routed;
        size = 64;
    }

    // Few entries on purpose: it fills up.
    table filter {
        key = {
            hdr.ipv4.src:          ternary  @name("src");
            hdr.ipv4.protocol:     range    @name("protocol");
            standard.ingress_port: optional @name("port");
        }
        actions = { set_class; drop; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = filtered;
        size = 4;
    }

    table known_ports {
        key = { standard.ingress_port: exact @name("port"); }
        actions = { set_class; NoAction; }
        const default_action = NoAction();
        const entries = {
            7: set_class(70);
            8: set_class(80);
        }
    }

    table classes {
        key = {
            meta.class:    ternary @name("class");
            hdr.ipv4.tos:  ternary @name("tos");
        }
        actions = { set_class; NoAction; }
        const default_action = NoAction();
        const entries = {
            (70, 0):           set_class(71);
            (64 &&& 0xf0, _):  set_class(72);
        }
    }

    apply {
        arrived.count((bit<32>)standard.ingress_port);
        known_ports.apply();
        if (hdr.ipv4.isValid()) {
            classes.apply();
            filter.apply();
            route.apply();
            last_source.write((bit<32>)hdr.ipv4.tos & 15, hdr.ethernet.src);
            int<16> held;
            balance.read(held, (bit<32>)hdr.ipv4.tos & 15);
            balance.write((bit<32>)hdr.ipv4.tos & 15, held - 1);
        } else {
            drop();
        }
        by_class.count((bit<32>)meta.class);
    }
}

control RouterEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action rewrite_source(bit<48> mac) {
        hdr.ethernet.src = mac;
    }
    table copies {
        key = { standard.egress_rid: exact @name("copy"); }
        actions = { rewrite_source; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    apply {
        if (standard.egress_rid != 0) {
            copies.apply();
        }
    }
}

control RouterChecksum(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.identification,
              hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(RouterParser(), NoVerify(), RouterIngress(), RouterEgress(), RouterChecksum(), RouterDeparser()) main;
