// What an admitted packet leads to: the rules of protocol section 4.4 as one truth table.
//
// Everything it looks at was found out before (SlotState: intent, found, overlap, full), everything it decides is written
// down for others to do (Dispatch: route). What happens to the lanes is decided before: they are added while the packet
// is on its way here. It has no state of its own.

#ifndef SA_VERDICT_P4
#define SA_VERDICT_P4

#include "headers.p4"
#include "admission.p4"

#define SAY_ALL(w, field)  field = meta.fan_in_##w;
#define SAY_HELD(w, field) field = meta.held_##w;
#define SAY_BOTH(w, field) field = meta.held_##w | field;

control Verdict(inout headers_t hdr, inout meta_t meta) {
    action decide(route_t route, event_t event) {
        meta.route = route;
        meta.event = event;
    }

    // The packet stays here: its values are in the slot, or were before.
    action absorb(event_t event) {
        decide(ROUTE_DROP, event);
    }

    // The sum is complete at the last level: it goes down to everyone.
    action complete(route_t route, event_t event) {
        decide(route, event);
        hdr.sa.kind = KIND_RESULT;
        EACH_WORD(SAY_ALL)
        hdr.sa.resend = 0;
        hdr.sa.partial = 0;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
    }
    action complete_to_all() {
        complete(ROUTE_DOWN, EVENT_COMPLETED);
        hdr.sa.fan_out = 1;
    }
    action complete_to_sender() {
        complete(ROUTE_ANSWER, EVENT_ANSWERED);
    }

    // The sum is complete at a leaf: it goes up as one packet, as if one worker had sent it.
    action complete_up(event_t event) {
        decide(ROUTE_UP, event);
        EACH_WORD(SAY_ALL)
        hdr.sa.partial = 0;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
    }

    // What the slot holds leaves for the next level and is given up here: with the packet's values where they could be added,
    // without them where some were offered before (then the sender's next resend finds no slot, and passes by itself). The
    // resend has had its effect here: at the next level the sum is a contribution like any other.
    action hand_over() {
        decide(ROUTE_UP, EVENT_HANDED_OVER);
        hdr.sa.resend = 0;
        hdr.sa.partial = 1;
        hdr.sa.on_behalf = 0;
    }
    action hand_over_sum() {
        hand_over();
        EACH_WORD(SAY_BOTH)
    }
    action hand_over_slot() {
        hand_over();
        EACH_WORD(SAY_HELD)
    }

    // The packet takes the slot; what the idle owner left goes up under the owner's name.
    action evict() {
        decide(ROUTE_UP, EVENT_EVICTED);
        meta.evicted = 1;
        hdr.sa.partial = 1;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
        EACH_WORD(SAY_HELD)
        hdr.sa.job = hdr.sa.job ^ meta.stream_diff[31:24];
        hdr.sa.epoch = hdr.sa.epoch ^ meta.stream_diff[23:16];
        hdr.sa.exponent = hdr.sa.exponent ^ meta.stream_diff[15:8];
        hdr.sa.tag = hdr.sa.tag ^ meta.stream_diff[7:0];
        hdr.sa.seq = meta.held_seq;
    }

    action pass_up(event_t event) {
        decide(ROUTE_UP, event);
    }
    action collide() {
        decide(ROUTE_UP, EVENT_COLLISION);
        hdr.sa.collision = 1;
    }

    action reply() {
        decide(ROUTE_ANSWER, EVENT_PROBED);
        hdr.sa.kind = KIND_PROBE_REPLY;
        EACH_WORD(SAY_HELD)
    }

    action fan_out() {
        decide(ROUTE_DOWN, EVENT_FANNED_OUT);
    }

    action refuse() {
        meta.route = ROUTE_DROP;  // the event says why
    }

    table verdict {
        key = {
            meta.intent:  ternary @name("intent");
            meta.found:   ternary @name("found");
            meta.is_leaf: ternary @name("is_leaf");
            meta.overlap: ternary @name("overlap");
            meta.full:    ternary @name("full");
        }
        actions = { absorb; complete_to_all; complete_to_sender; complete_up; hand_over_sum; hand_over_slot;
                    evict; pass_up; collide; reply; fan_out; refuse; }
        const default_action = refuse();
        const entries = {
            //  intent            found          leaf overlap full
            (INTENT_CONTRIBUTE, FOUND_FREE,     _, _, 0): absorb(EVENT_CLAIMED);
            (INTENT_CONTRIBUTE, FOUND_FREE,     0, _, 1): complete_to_all();
            (INTENT_CONTRIBUTE, FOUND_FREE,     1, _, 1): complete_up(EVENT_COMPLETED);
            (INTENT_CONTRIBUTE, FOUND_EXPIRED,  _, _, _): evict();
            (INTENT_CONTRIBUTE, FOUND_OTHER,    _, _, _): collide();
            (INTENT_CONTRIBUTE, FOUND_OPEN,     _, 1, _): absorb(EVENT_DUPLICATE);
            (INTENT_CONTRIBUTE, FOUND_OPEN,     _, 0, 0): absorb(EVENT_ADDED);
            (INTENT_CONTRIBUTE, FOUND_OPEN,     0, 0, 1): complete_to_all();
            (INTENT_CONTRIBUTE, FOUND_OPEN,     1, 0, 1): complete_up(EVENT_COMPLETED);
            (INTENT_CONTRIBUTE, FOUND_DONE,     0, _, _): complete_to_sender();
            (INTENT_CONTRIBUTE, FOUND_DONE,     1, _, _): complete_up(EVENT_ANSWERED);

            (INTENT_RESEND,     FOUND_OPEN,     _, 1, _): hand_over_slot();
            (INTENT_RESEND,     FOUND_OPEN,     _, 0, 0): hand_over_sum();
            (INTENT_RESEND,     FOUND_OPEN,     0, 0, 1): complete_to_all();
            (INTENT_RESEND,     FOUND_OPEN,     1, 0, 1): complete_up(EVENT_COMPLETED);
            (INTENT_RESEND,     FOUND_DONE,     0, _, _): complete_to_sender();
            (INTENT_RESEND,     FOUND_DONE,     1, _, _): complete_up(EVENT_ANSWERED);
            (INTENT_RESEND,     _,              _, _, _): pass_up(EVENT_PASSED_UP);

            (INTENT_PROBE,      FOUND_OPEN,     _, _, _): reply();
            (INTENT_PROBE,      FOUND_DONE,     0, _, _): reply();
            (INTENT_PROBE,      _,              _, _, _): pass_up(EVENT_PROBED);

            (INTENT_RELEASE,    _,              _, _, _): fan_out();
            (INTENT_FINISH,     _,              _, _, _): absorb(EVENT_FINISHED);
            (INTENT_BEYOND,     _,              _, _, _): pass_up(EVENT_PASSED_UP);
        }
    }

    apply {
        verdict.apply();
    }
}

#endif
