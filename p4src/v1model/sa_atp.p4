// SA-ATP for v1model: BMv2 and the embedded target.
//
//   parser ──> Admission ──> SlotState ──> Lanes ──> Verdict ──> Dispatch ──┬─> Readdress ──> MarkCongestion ──> deparser
//     │        ask, member,  claim, owner, values    truth       uplink,    │   (each copy)   (queue depth)
//     │        job           bits                    table       bridge     └─> multicast group of the job
//     └── everything else ────────────────────────────────────── bridge
//
// Build: p4c-bm2-ss -I p4src/core -DBUILD_LANES=64 p4src/v1model/sa_atp.p4 (or 32, 256, 2048); `scripts/compile` does it.

#include <v1model.p4>
#include "target.p4"
#include "large_lanes.p4"
#include "program.p4"

#define IPV4_CHECKSUM(does) \
    does(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { IPV4_FIELDS(hdr.ipv4) }, hdr.ipv4.checksum, HashAlgorithm.csum16);

control VerifyIpv4(inout headers_t hdr, inout meta_t meta) {
    apply { IPV4_CHECKSUM(verify_checksum) }
}

control UpdateIpv4(inout headers_t hdr, inout meta_t meta) {
    apply { IPV4_CHECKSUM(update_checksum) }
}

V1Switch(SwitchParser(), VerifyIpv4(), SwitchIngress(), SwitchEgress(), UpdateIpv4(), SwitchDeparser()) main;
