// The way of a packet through the switch, up to where it is sent on. ARRIVAL is what the architecture says of the packet: when
// it came, and whether its IP header is damaged, where the parser has not found that out.

#ifndef SA_INGRESS_P4
#define SA_INGRESS_P4

#include "headers.p4"
#include "admission.p4"
#include "slot_state.p4"
#include "lanes.p4"
#include "verdict.p4"
#include "dispatch.p4"

control SwitchIngress(inout headers_t hdr, inout meta_t meta, INGRESS_METADATA) {
    COUNTER(job_events, JOBS * 32)
    Admission() admission;
    SlotState() slot_state;
    Lanes() lanes;
    Verdict() verdict;
    Dispatch() dispatch;

    // No field is written twice on a way through this: a switch would need a stage more for it.
    apply {
        ARRIVAL
        if (meta.damaged == 1 && hdr.ipv4.ihl == 5) {
            meta.route = ROUTE_DROP;
        } else if (hdr.sa.isValid() && IS_FOR_SWITCH) {
            meta.counts = 1;
            meta.counts_for = hdr.sa.job;  // an eviction changes the job in the packet
            admission.apply(hdr, meta, standard.ingress_port);
            slot_state.apply(hdr, meta);
            lanes.apply(hdr, meta.lane_op);
            verdict.apply(hdr, meta);
            hdr.udp.checksum = 0;  // optional over IPv4 (RFC 768); the lanes have changed
        } else if (!hdr.sa.isValid() && hdr.udp.isValid() && hdr.udp.dst_port == SA_UDP_PORT) {
            meta.counts = 1;  // for job 0, which no job ever is
            meta.route = ROUTE_DROP;  // too short for a header
            meta.event = EVENT_MALFORMED;
        } else {
            meta.route = ROUTE_BRIDGE;
        }
        if (meta.counts == 1) {
            COUNT(job_events, meta.counts_for ++ meta.event)
        }
        dispatch.apply(hdr, meta, INGRESS_ARGUMENTS);
    }
}

#endif
