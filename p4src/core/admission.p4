// Who may take part, and in what: three tables that do not depend on one another.
//
// `ask` says what the packet wants, `member` whether this sender, on this port, belongs to the job, and `job` whether the
// job, in this epoch, owns the slot that the packet names, what it takes to complete a sum, and whether the packet's
// contributions are summed at this level. SlotState puts the three together. Fan-in, group and level come from here and
// never from the packet. (protocol section 4.1)

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
const event_t EVENT_DUPLICATE   = 6;   // dropped: offered before
const event_t EVENT_ANSWERED    = 7;   // result served again from the slot
const event_t EVENT_COLLISION   = 8;
const event_t EVENT_EVICTED     = 9;   // claimed from an idle owner, whose sum was handed over
const event_t EVENT_HANDED_OVER = 10;  // partial sum given up to a resend
const event_t EVENT_PASSED_UP   = 11;  // not summed at this level
const event_t EVENT_PROBED      = 12;
const event_t EVENT_FANNED_OUT  = 13;  // result of a higher level copied to the members
const event_t EVENT_FINISHED    = 14;  // own copy of a result: the slot may be claimed (Tofino only)

// What a switch acts on: contributions, probes and results to copy. Everything else of the protocol is host to host.
#define IS_FOR_SWITCH (hdr.sa.kind != KIND_CONTROL && hdr.sa.kind != KIND_PROBE_REPLY \
                       && !(hdr.sa.kind == KIND_RESULT && hdr.sa.fan_out == 0))

// Of a bitmap's words: in the key of a table, as a parameter of `join`, and taken from there.
#define TEXT(name) #name
#define BITS_KEY(w, field) field: ternary @name(TEXT(bits_##w));
#define JOIN_PARAMETER(w, field) BITS_WORD fan_in_##w,
#define TAKE_FAN_IN(w, field) meta.fan_in_##w = fan_in_##w;

control Admission(inout headers_t hdr, inout meta_t meta, in PortId_t port) {
    action wants(intent_t intent) {
        meta.requested = intent;
    }
    AT_STAGE(0)
    table ask {
        key = {
            hdr.sa.version:      ternary @name("version");
            hdr.sa.kind:         ternary @name("kind");
            hdr.lanes.isValid(): ternary @name("lanes");
            MORE_BITS_KEY
            hdr.udp.bytes:       ternary @name("bytes");
            hdr.sa.resend:       ternary @name("resend");
            EACH_WORD(BITS_KEY)
            port:                ternary @name("port");
        }
        actions = { wants; }
        const default_action = wants(INTENT_REFUSED);
        const entries = {
            //           kind         lanes  more       bytes           resend bits port
            (SA_VERSION, KIND_DATA,   true,  MORE_BITS(_)    _,              _, NO_BITS,  _): wants(INTENT_REFUSED);
            (SA_VERSION, KIND_DATA,   true,  MORE_BITS(_)    _,              0, ANY_BITS, _): wants(INTENT_CONTRIBUTE);
            (SA_VERSION, KIND_DATA,   true,  MORE_BITS(_)    _,              1, ANY_BITS, _): wants(INTENT_RESEND);
            (SA_VERSION, KIND_RESULT, true,  MORE_BITS(_)    _,              _, ANY_BITS, LOOP_PORT): wants(INTENT_FINISH);
            (SA_VERSION, KIND_RESULT, true,  MORE_BITS(_)    _,              _, ANY_BITS, _): wants(INTENT_RELEASE);
            (SA_VERSION, KIND_PROBE,  false, MORE_BITS(true) BARE_UDP_BYTES, _, ANY_BITS, _): wants(INTENT_PROBE);
        }
    }

    action admit(@name("fans_out") bit<1> fans_out) {
        meta.admitted = 1;
        meta.fans_out = fans_out;
    }
    action foreign() {
        meta.admitted = 0;
    }
    AT_STAGE(0)
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

    // Two entries a job. The first one matches what this level sums: no bits beyond its fan-in and, at a leaf, nothing that
    // a helper sends for another worker: that is summed at the last level only, because at a leaf it would have to come
    // before that worker's own part, which hands over what the leaf holds (protocol section 10.5). The second one matches
    // the rest.
    action join(EACH_WORD(JOIN_PARAMETER) bit<1> is_leaf, bit<16> group, tick_t ttl, bit<1> within) {
        meta.known = 1;
        meta.within = within;
        EACH_WORD(TAKE_FAN_IN)
        meta.is_leaf = is_leaf;
        meta.group = group;
        meta.ttl = ttl;
    }
    action stale() {
        meta.known = 0;
    }
    AT_STAGE(0)
    table job {
        key = {
            hdr.sa.job:       exact   @name("job");
            hdr.sa.epoch:     exact   @name("epoch");
            hdr.sa.slot:      ternary @name("slot");
            EACH_WORD(BITS_KEY)
            hdr.sa.on_behalf: ternary @name("on_behalf");
        }
        actions = { join; stale; }
        const default_action = stale();
        size = 512;
    }

    apply {
        meta.claim_id = hdr.sa.seq + 1;
        ask.apply();
        member.apply();
        job.apply();
    }
}

#endif
