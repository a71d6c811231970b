// SA-ATP for v1model: BMv2 and the embedded target.
//
//   parser ──> Admission ──> SlotState ──> Verdict ──> Lanes ──> Dispatch ──┬─> Readdress ──> MarkCongestion ──> deparser
//     │        member, job   owner, bits,  truth       values    uplink,    │   (each copy)   (queue depth)
//     │                      phase, time   table                 bridge     └─> multicast group of the job
//     └── everything else ────────────────────────────────────── bridge
//
// Build: p4c-bm2-ss -I p4src/core -DBUILD_LANES=64 p4src/v1model/sa_atp.p4 (or 256); `scripts/compile` does it.

#include <core.p4>
#include <v1model.p4>

#if BUILD_LANES == 64
#include "generated/lanes_64.p4"
#elif BUILD_LANES == 256
#include "generated/lanes_256.p4"
#else
#error "BUILD_LANES must be one of the builds in p4src/wire.toml"
#endif

// TNA's names for what the shared controls see of the architecture.
typedef bit<9>  PortId_t;
typedef bit<16> CopyId_t;

#include "headers.p4"
#include "parser.p4"
#include "admission.p4"
#include "slot_state.p4"
#include "verdict.p4"
#include "lanes.p4"
#include "dispatch.p4"
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
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_bytes,
              hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
              hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    counter(JOBS * 32, CounterType.packets_and_bytes) job_events;
    Admission() admission;
    SlotState() slot_state;
    Verdict() verdict;
    Lanes() lanes;
    Dispatch() dispatch;

    apply {
        PortId_t egress_port;
        bit<1> drop;
        meta.route = ROUTE_BRIDGE;

        if (standard.checksum_error == 1) {
            meta.route = ROUTE_DROP;
        } else if (hdr.sa.isValid()) {
            if (IS_FOR_SWITCH) {
                job_t job = hdr.sa.job;  // an eviction changes the job in the packet
                admission.apply(hdr, meta, standard.ingress_port);
                if (meta.intent != INTENT_REFUSED && meta.intent != INTENT_BEYOND) {
                    slot_state.apply(hdr, meta, standard.ingress_global_timestamp[41:10]);
                }
                verdict.apply(hdr, meta);
                lanes.apply(hdr, meta.lane_op);
                hdr.udp.checksum = 0;  // optional over IPv4 (RFC 768); the lanes have changed
                job_events.count((bit<32>)(job ++ meta.event));
            }
        } else if (hdr.udp.isValid() && hdr.udp.dst_port == SA_UDP_PORT) {
            meta.route = ROUTE_DROP;   // too short for a header
            job_events.count((bit<32>)EVENT_MALFORMED);
        }

        dispatch.apply(hdr, meta, egress_port, drop);
        standard.egress_spec = egress_port;
        if (meta.route == ROUTE_DOWN) {
            standard.mcast_grp = meta.group;
        } else if (meta.route == ROUTE_ANSWER) {
            standard.egress_spec = standard.ingress_port;
        } else if (drop == 1) {
            mark_to_drop(standard);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    Readdress() readdress;
    MarkCongestion() mark_congestion;
    apply {
        if (meta.route == ROUTE_UP || meta.route == ROUTE_DOWN) {
            readdress.apply(hdr, standard.egress_rid);
        }
        mark_congestion.apply(hdr, standard.enq_qdepth);
    }
}

control UpdateIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_bytes,
              hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
              hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(SwitchParser(), VerifyIpv4(), SwitchIngress(), SwitchEgress(), UpdateIpv4(), SwitchDeparser()) main;
