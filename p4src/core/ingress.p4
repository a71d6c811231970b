// The way of a packet through the switch, up to where it is sent on: the same on every target.

#ifndef SA_INGRESS_P4
#define SA_INGRESS_P4

#include "headers.p4"
#include "admission.p4"
#include "slot_state.p4"
#include "lanes.p4"
#include "verdict.p4"
#include "dispatch.p4"

control Aggregation(inout headers_t hdr, inout meta_t meta, in PortId_t port, out PortId_t egress_port, out bit<1> drop) {
    COUNTER(job_events, JOBS * 32)
    Admission() admission;
    SlotState() slot_state;
    Lanes() lanes;
    Verdict() verdict;
    Dispatch() dispatch;

    apply {
        job_t job = 0;  // which no job ever is
        bit<1> counts = 0;
        meta.route = ROUTE_BRIDGE;
        if (meta.damaged == 1 && hdr.ipv4.ihl == 5) {
            meta.route = ROUTE_DROP;
        } else if (hdr.sa.isValid()) {
            if (IS_FOR_SWITCH) {
                counts = 1;
                job = hdr.sa.job;  // an eviction changes the job in the packet
                admission.apply(hdr, meta, port);
                slot_state.apply(hdr, meta);
                lanes.apply(hdr, meta.lane_op);
                verdict.apply(hdr, meta);
                hdr.udp.checksum = 0;  // optional over IPv4 (RFC 768); the lanes have changed
            }
        } else if (hdr.udp.isValid() && hdr.udp.dst_port == SA_UDP_PORT) {
            counts = 1;
            meta.route = ROUTE_DROP;  // too short for a header
            meta.event = EVENT_MALFORMED;
        }
        if (counts == 1) {
            COUNT(job_events, job ++ meta.event)
        }
        dispatch.apply(hdr, meta, port, egress_port, drop);
    }
}

#endif
