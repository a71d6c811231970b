// Who may take part, and in what. Fills `meta.intent` and the job's parameters.
//
// Two tables that do not depend on one another: `member` says whether this sender, on this port, belongs to the job;
// `job` says whether the job, in this epoch, owns the slot that the packet names, and what it takes to complete a sum.
// Fan-in, group and level come from here and never from the packet. (protocol section 4.1)

#ifndef SA_ADMISSION_P4
#define SA_ADMISSION_P4

#include "headers.p4"

// Counters of a job, indexed by job * 32 + event. The first ones are refusals. (protocol section 8)
typedef bit<5> event_t;
const event_t EVENT_MALFORMED   = 0;
const event_t EVENT_FOREIGN     = 1;   // the sender is no member of the job
const event_t EVENT_STALE       = 2;   // unknown job, another epoch, or a slot outside the job's quota
const event_t EVENT_CLAIMED     = 3;   // first contribution of a fragment
const event_t EVENT_ADDED       = 4;
const event_t EVENT_COMPLETED   = 5;
const event_t EVENT_DUPLICATE   = 6;   // dropped: already in
const event_t EVENT_ANSWERED    = 7;   // result served again from the slot
const event_t EVENT_COLLISION   = 8;
const event_t EVENT_EVICTED     = 9;   // claimed from an idle owner, whose sum was handed over
const event_t EVENT_HANDED_OVER = 10;  // partial sum given up to a resend
const event_t EVENT_PASSED_UP   = 11;  // not summed at this level
const event_t EVENT_PROBED      = 12;
const event_t EVENT_FANNED_OUT  = 13;  // result of a higher level copied to the members

// What a switch acts on: contributions, probes and results to copy. Everything else of the protocol is host to host.
#define IS_FOR_SWITCH (hdr.sa.kind != KIND_CONTROL && hdr.sa.kind != KIND_PROBE_REPLY \
                       && !(hdr.sa.kind == KIND_RESULT && hdr.sa.fan_out == 0))

control Admission(inout headers_t hdr, inout meta_t meta, in PortId_t port) {
    action admit(@name("fans_out") bit<1> fans_out) {
        meta.fans_out = fans_out;
    }
    action foreign() {
        meta.intent = INTENT_REFUSED;
        meta.event = EVENT_FOREIGN;
    }
    table member {
        key = {
            hdr.sa.job:       exact @name("job");
            port:             exact @name("port");
            hdr.ipv4.src:     exact @name("ip");
            hdr.udp.src_port: exact @name("udp_port");
        }
        actions = { admit; foreign; }
        const default_action = foreign();
        size = 4096;
    }

    action join(word_t fan_in_hi, word_t fan_in_lo, bit<1> is_leaf, bit<16> group, tick_t ttl) {
        meta.fan_in_hi = fan_in_hi;
        meta.fan_in_lo = fan_in_lo;
        meta.is_leaf = is_leaf;
        meta.group = group;
        meta.ttl = ttl;
    }
    action stale() {
        meta.intent = INTENT_REFUSED;
        meta.event = EVENT_STALE;
    }
    table job {
        key = {
            hdr.sa.job:   exact   @name("job");
            hdr.sa.epoch: exact   @name("epoch");
            hdr.sa.slot:  ternary @name("slot");
        }
        actions = { join; stale; }
        const default_action = stale();
        size = 256;
    }

    apply {
        if (hdr.sa.version != SA_VERSION) {
            meta.intent = INTENT_REFUSED;
            meta.event = EVENT_MALFORMED;
        } else if (hdr.lanes.isValid()) {
            if (hdr.sa.kind == KIND_DATA && (hdr.sa.bits_hi != 0 || hdr.sa.bits_lo != 0)) {
                meta.intent = INTENT_CONTRIBUTE;
            } else if (hdr.sa.kind == KIND_RESULT && hdr.sa.fan_out == 1) {
                meta.intent = INTENT_RELEASE;
            } else {
                meta.intent = INTENT_REFUSED;
                meta.event = EVENT_MALFORMED;
            }
        } else if (hdr.sa.kind == KIND_PROBE && hdr.udp.bytes == BARE_UDP_BYTES) {
            meta.intent = INTENT_PROBE;
        } else {
            meta.intent = INTENT_REFUSED;
            meta.event = EVENT_MALFORMED;
        }

        if (meta.intent != INTENT_REFUSED) {
            member.apply();
            job.apply();
        }
        if (meta.intent == INTENT_RELEASE && meta.fans_out == 0) {
            foreign();
        } else if (meta.intent == INTENT_CONTRIBUTE) {
            word_t beyond_hi = hdr.sa.bits_hi & ~meta.fan_in_hi;
            word_t beyond_lo = hdr.sa.bits_lo & ~meta.fan_in_lo;
            // What a helper sends for another worker is summed at the last level only: at a leaf it would have to come before
            // that worker's own part, which hands over what the leaf holds. (protocol section 10.5)
            if (beyond_hi != 0 || beyond_lo != 0 || (meta.is_leaf == 1 && hdr.sa.on_behalf == 1)) {
                meta.intent = INTENT_BEYOND;
            } else if (hdr.sa.resend == 1) {
                meta.intent = INTENT_RESEND;
            }
        }
    }
}

#endif
