// What an admitted packet leads to: the rules of protocol section 4.4 as one truth table.
//
// Everything it looks at was found out before (Admission: intent; SlotState: found, overlap, full), everything it decides
// is written down for others to do (Lanes: lane_op; Dispatch: route). It has no state of its own.

#ifndef SA_VERDICT_P4
#define SA_VERDICT_P4

#include "headers.p4"
#include "admission.p4"

control Verdict(inout headers_t hdr, inout meta_t meta) {
    action decide(lane_op_t lane_op, route_t route, event_t event) {
        meta.lane_op = lane_op;
        meta.route = route;
        meta.event = event;
    }

    // The packet stays here: its values are in the slot, or were before.
    action absorb(lane_op_t lane_op, event_t event) {
        decide(lane_op, ROUTE_DROP, event);
    }

    // The sum is complete at the last level: it goes down to everyone.
    action complete(lane_op_t lane_op, route_t route, event_t event) {
        decide(lane_op, route, event);
        hdr.sa.kind = KIND_RESULT;
        hdr.sa.bits_hi = meta.fan_in_hi;
        hdr.sa.bits_lo = meta.fan_in_lo;
        hdr.sa.resend = 0;
        hdr.sa.partial = 0;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
    }
    action complete_to_all(lane_op_t lane_op) {
        complete(lane_op, ROUTE_DOWN, EVENT_COMPLETED);
        hdr.sa.fan_out = 1;
    }
    action complete_to_sender() {
        complete(LANE_READ, ROUTE_ANSWER, EVENT_ANSWERED);
    }

    // The sum is complete at a leaf: it goes up as one packet, as if one worker had sent it.
    action complete_up(lane_op_t lane_op, event_t event) {
        decide(lane_op, ROUTE_UP, event);
        hdr.sa.bits_hi = meta.fan_in_hi;
        hdr.sa.bits_lo = meta.fan_in_lo;
        hdr.sa.partial = 0;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
    }

    // What the slot holds leaves for the next level and is not kept: with the packet's values where they could be added,
    // without them where some were in already (then the sender's next resend finds no slot, and passes by itself). The
    // resend has had its effect here: at the next level the sum is a contribution like any other.
    action hand_over(lane_op_t lane_op) {
        decide(lane_op, ROUTE_UP, EVENT_HANDED_OVER);
        hdr.sa.resend = 0;
        hdr.sa.partial = 1;
        hdr.sa.on_behalf = 0;
    }
    action hand_over_sum() {
        hand_over(LANE_ADD);
        hdr.sa.bits_hi = meta.held_hi | hdr.sa.bits_hi;
        hdr.sa.bits_lo = meta.held_lo | hdr.sa.bits_lo;
    }
    action hand_over_slot() {
        hand_over(LANE_READ);
        hdr.sa.bits_hi = meta.held_hi;
        hdr.sa.bits_lo = meta.held_lo;
    }

    // The packet takes the slot; what the idle owner left goes up under the owner's name.
    action evict() {
        decide(LANE_SWAP, ROUTE_UP, EVENT_EVICTED);
        hdr.sa.partial = 1;
        hdr.sa.collision = 0;
        hdr.sa.on_behalf = 0;
        hdr.sa.bits_hi = meta.held_hi;
        hdr.sa.bits_lo = meta.held_lo;
        hdr.sa.job = meta.held_stream[31:24];
        hdr.sa.epoch = meta.held_stream[23:16];
        hdr.sa.exponent = meta.held_stream[15:8];
        hdr.sa.tag = meta.held_stream[7:0];
        hdr.sa.seq = meta.held_seq;
    }

    action pass_up(event_t event) {
        decide(LANE_KEEP, ROUTE_UP, event);
    }
    action collide() {
        decide(LANE_KEEP, ROUTE_UP, EVENT_COLLISION);
        hdr.sa.collision = 1;
    }

    action reply() {
        decide(LANE_KEEP, ROUTE_ANSWER, EVENT_PROBED);
        hdr.sa.kind = KIND_PROBE_REPLY;
        hdr.sa.bits_hi = meta.held_hi;
        hdr.sa.bits_lo = meta.held_lo;
    }

    action fan_out() {
        decide(LANE_KEEP, ROUTE_DOWN, EVENT_FANNED_OUT);
    }

    action refuse() {
        meta.route = ROUTE_DROP;
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
            (INTENT_CONTRIBUTE, FOUND_FREE,     _, _, 0): absorb(LANE_SET, EVENT_CLAIMED);
            (INTENT_CONTRIBUTE, FOUND_FREE,     0, _, 1): complete_to_all(LANE_SET);
            (INTENT_CONTRIBUTE, FOUND_FREE,     1, _, 1): complete_up(LANE_SET, EVENT_COMPLETED);
            (INTENT_CONTRIBUTE, FOUND_EXPIRED,  _, _, _): evict();
            (INTENT_CONTRIBUTE, FOUND_OTHER,    _, _, _): collide();
            (INTENT_CONTRIBUTE, FOUND_OPEN,     _, 1, _): absorb(LANE_KEEP, EVENT_DUPLICATE);
            (INTENT_CONTRIBUTE, FOUND_OPEN,     _, 0, 0): absorb(LANE_ADD, EVENT_ADDED);
            (INTENT_CONTRIBUTE, FOUND_OPEN,     0, 0, 1): complete_to_all(LANE_ADD);
            (INTENT_CONTRIBUTE, FOUND_OPEN,     1, 0, 1): complete_up(LANE_ADD, EVENT_COMPLETED);
            (INTENT_CONTRIBUTE, FOUND_DONE,     0, _, _): complete_to_sender();
            (INTENT_CONTRIBUTE, FOUND_DONE,     1, _, _): complete_up(LANE_READ, EVENT_ANSWERED);

            (INTENT_RESEND,     FOUND_OPEN,     _, 1, _): hand_over_slot();
            (INTENT_RESEND,     FOUND_OPEN,     _, 0, 0): hand_over_sum();
            (INTENT_RESEND,     FOUND_OPEN,     0, 0, 1): complete_to_all(LANE_ADD);
            (INTENT_RESEND,     FOUND_OPEN,     1, 0, 1): complete_up(LANE_ADD, EVENT_COMPLETED);
            (INTENT_RESEND,     FOUND_DONE,     0, _, _): complete_to_sender();
            (INTENT_RESEND,     FOUND_DONE,     1, _, _): complete_up(LANE_READ, EVENT_ANSWERED);
            (INTENT_RESEND,     _,              _, _, _): pass_up(EVENT_PASSED_UP);

            (INTENT_PROBE,      FOUND_OPEN,     _, _, _): reply();
            (INTENT_PROBE,      FOUND_DONE,     0, _, _): reply();
            (INTENT_PROBE,      _,              _, _, _): pass_up(EVENT_PROBED);

            (INTENT_RELEASE,    _,              _, _, _): fan_out();
            (INTENT_BEYOND,     _,              _, _, _): pass_up(EVENT_PASSED_UP);
        }
    }

    apply {
        verdict.apply();
    }
}

#endif
