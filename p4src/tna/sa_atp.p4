// SA-ATP for TNA: Tofino 1 and 2.
//
// The controls are those of p4src/core. What is here is their frame: parsers, deparsers, and where the traffic manager is
// told what they decided.
//
// Build: p4c-barefoot --target tofino --arch tna -I p4src/core -DBUILD_LANES=32 p4src/tna/sa_atp.p4; `scripts/tofino` does it.

#include <core.p4>
#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#else
#include <t2na.p4>
#endif

#include "generated/lanes.p4"
#include "target.p4"
#include "headers.p4"
#include "parser.p4"
#include "ingress.p4"
#include "egress.p4"

parser IngressParser(packet_in packet, out headers_t hdr, out meta_t meta, out ingress_intrinsic_metadata_t standard) {
    PacketParser() packet_parser;
    state start {
        packet.extract(standard);
        packet.advance(PORT_METADATA_SIZE);
        transition select(standard.ingress_port) {
            LOOP_PORT: own_copy;
            default:   begin;
        }
    }
    state own_copy {
        meta.own_copy = 1;
        transition begin;
    }
    state begin {
        packet_parser.apply(packet, hdr, meta);
        transition accept;
    }
}

control Ingress(inout headers_t hdr, inout meta_t meta, in ingress_intrinsic_metadata_t standard,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_manager) {
    Aggregation() aggregation;
    apply {
        meta.now = from_parser.global_tstamp[47:16];
        aggregation.apply(hdr, meta, standard.ingress_port, to_manager, to_deparser);
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in meta_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    apply {
        packet.emit(hdr);
    }
}

// What is to be readdressed or marked; the lanes pass as they are.
parser EgressParser(packet_in packet, out headers_t hdr, out meta_t meta, out egress_intrinsic_metadata_t standard) {
    state start {
        packet.extract(standard);
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: peek;
            default:        accept;
        }
    }
    state peek {
        transition select(packet.lookahead<bit<8>>()) {
            0x45:    ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, PROTOCOL_UDP): udp;
            default:           accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            SA_UDP_PORT: measure;
            default:     answer;
        }
    }
    state answer {
        transition select(hdr.udp.src_port) {
            SA_UDP_PORT: measure;
            default:     accept;
        }
    }
    state measure {
        transition select(hdr.udp.bytes) {
            LANES_UDP_BYTES: sa;
            BARE_UDP_BYTES:  sa;
            default:         accept;
        }
    }
    state sa {
        packet.extract(hdr.sa);
        transition accept;
    }
}

control Egress(inout headers_t hdr, inout meta_t meta, in egress_intrinsic_metadata_t standard,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t to_deparser,
               inout egress_intrinsic_metadata_for_output_port_t to_port) {
    Departure() departure;
    apply {
        departure.apply(hdr, standard.egress_rid, standard.enq_qdepth);
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in meta_t meta,
                       in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() ipv4_checksum;
    apply {
        hdr.ipv4.checksum = ipv4_checksum.update({ IPV4_FIELDS(hdr.ipv4) });
        packet.emit(hdr);
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
@pa_auto_init_metadata
Switch(pipe) main;
