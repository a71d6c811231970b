// A program that talks with its controller: packets of unknown type go to the CPU port with a header that says where
// they came from, and packets from the CPU port leave by the port that their header names.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

@controller_header("packet_in")
header packet_in_h {
    bit<9>  ingress_port;
    bit<7>  padding;
    bit<16> ether_type;
}

@controller_header("packet_out")
header packet_out_h {
    bit<7>  padding;
    bit<9>  egress_port;
}

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

struct headers_t {
    packet_in_h  to_controller;
    packet_out_h from_controller;
    ethernet_h   ethernet;
}

struct meta_t { }

parser PuntParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: from_controller;
            default:  ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.from_controller);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control PuntIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action send(bit<9> port) {
        standard.egress_spec = port;
    }
    action punt() {
        standard.egress_spec = CPU_PORT;
        hdr.to_controller.setValid();
        hdr.to_controller.ingress_port = standard.ingress_port;
        hdr.to_controller.padding = 0;
        hdr.to_controller.ether_type = hdr.ethernet.ether_type;
    }
    table by_type {
        key = { hdr.ethernet.ether_type: exact @name("ether_type"); }
        actions = { send; punt; }
        default_action = punt();
        size = 16;
    }
    apply {
        if (hdr.from_controller.isValid()) {
            standard.egress_spec = hdr.from_controller.egress_port;
            hdr.from_controller.setInvalid();
        } else {
            by_type.apply();
        }
    }
}

control NoEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control NoUpdate(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control PuntDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.to_controller);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(PuntParser(), NoVerify(), PuntIngress(), NoEgress(), NoUpdate(), PuntDeparser()) main;
