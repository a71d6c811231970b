// SA-ATP for v1model: BMv2 and the embedded target.
//
//   parser ──> Admission ──> SlotState ──> Lanes ──> Verdict ──> Dispatch ──┬─> Readdress ──> MarkCongestion ──> deparser
//     │        ask, member,  claim, owner, values    truth       uplink,    │   (each copy)   (queue depth)
//     │        job           bits                    table       bridge     └─> multicast group of the job
//     └── everything else ────────────────────────────────────── bridge
//
// Build: p4c-bm2-ss -I p4src/core -DBUILD_LANES=64 p4src/v1model/sa_atp.p4 (or 32, or 256); `scripts/compile` does it.

#include <core.p4>
#include <v1model.p4>

#include "generated/lanes.p4"
#include "target.p4"
#include "headers.p4"
#include "parser.p4"
#include "ingress.p4"
#include "egress.p4"

parser SwitchParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    PacketParser() packet_parser;
    state start {
        packet_parser.apply(packet, hdr, meta);
        transition accept;
    }
}

control VerifyIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { IPV4_FIELDS(hdr.ipv4) }, hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    Aggregation() aggregation;
    apply {
        meta.damaged = standard.checksum_error;
        meta.now = standard.ingress_global_timestamp[41:10] + LONG_AGO;  // so that what was never touched has lapsed
        aggregation.apply(hdr, meta, standard.ingress_port, standard);
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    Departure() departure;
    apply {
        departure.apply(hdr, standard.egress_rid, standard.enq_qdepth);
    }
}

control UpdateIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { IPV4_FIELDS(hdr.ipv4) }, hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(SwitchParser(), VerifyIpv4(), SwitchIngress(), SwitchEgress(), UpdateIpv4(), SwitchDeparser()) main;
