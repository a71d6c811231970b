// SA-ATP for TNA: Tofino 1 and 2.
//
// The parser and the controls are those of p4src/core. What is here is what egress has besides: a parser and a deparser of its
// own, which take as much of a packet as may be changed there; the lanes pass as they are.
//
// Build: p4c-barefoot --target tofino --arch tna -I p4src/core -DBUILD_LANES=32 p4src/tna/sa_atp.p4; `scripts/tofino` does it.

#include "target.p4"
#include "program.p4"

parser EgressParser(packet_in packet, out headers_t hdr, out meta_t meta, out egress_intrinsic_metadata_t standard) {
    state start {
        packet.extract(standard);
        bit<8> layers = packet.lookahead<bit<8>>();
        packet.advance(8);
        transition select(layers) {
            LAYERS_IP: ip;
            LAYERS_SA: sa;
            LAYERS_SA_ODD: sa;
            default:   accept;
        }
    }
    state ip {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state sa {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.sa);
        transition accept;
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

Pipeline(SwitchParser(), SwitchIngress(), SwitchDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;
// Metadata begins as zero, but for what SlotState finds in the slot: that is looked at only where it has been read there. To set
// it to zero first would take a stage.
@pa_auto_init_metadata
@pa_no_init("ingress", "meta.stream_diff")
@pa_no_init("ingress", "meta.held_seq")
@pa_no_init("ingress", "meta.overlap_hi")
@pa_no_init("ingress", "meta.overlap_lo")
@pa_no_init("ingress", "meta.held_hi")
@pa_no_init("ingress", "meta.held_lo")
@pa_no_init("ingress", "meta.was_live")
Switch(pipe) main;
