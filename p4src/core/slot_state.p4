// Who owns the slot, since when, which contributions are in it: what a packet finds there, and what that makes of it.
//
// The same code on every target. A switch's memory can be touched once a packet, at one index, by one short
// read-modify-write whose result the next stage sees. So what one would write as one function over a slot's state is a
// chain here, and each link decides for the next:
//
//   entry      does the packet claim the slot?   slot_claim {id, touched}
//   owner      whose slot is it, exactly?        slot_stream, slot_seq     what was offered?  offered_hi, offered_lo
//   merge      what is in the sum?               bits_hi, bits_lo          is it wanted?      slot_live
//   find       all of this as one word, for the verdict
//
// Two arrays of bits, because no link can both look at a bitmap and decide to leave it alone: `offered` takes every bit
// that ever came, `bits` only those whose values were added, which is sure where none of them was offered before. A packet
// that overlaps partly leaves bits in `offered` that are in no sum; contributions under those bits are refused here until
// a resend has the slot handed over. (protocol section 4.3)
//
// A complete sum stays in its slot for those who missed the result, but anyone may claim the slot. A target that can touch an
// array twice says so at once (CLAIMABLE_WHEN_COMPLETE); another one sends itself a copy of the result (INTENT_FINISH).
//
// ON_STATE(array, name, result, update): an action `name` that touches `array` at the packet's slot. `update` turns `held` into
// what the array shall hold, and sets `seen`, which ends up in `result`. ON_PAIR is the same for two words; `was` is what they
// were, and DO(name, result) is how an action does it. (target.p4)

#ifndef SA_SLOT_STATE_P4
#define SA_SLOT_STATE_P4

#include "headers.p4"
#include "admission.p4"

#define LONG_AGO 0x40000000  // ticks; whatever was touched then has lapsed

#define IS_OWN     (was.id == meta.claim_id)
#define HAS_LAPSED (meta.now - was.touched > TTL)
#define IS_ONE_OF_THEM ((IS_OWN && !HAS_LAPSED) || (!IS_OWN && HAS_LAPSED))

// Whose slot: what is done with one array where the packet takes the slot, meets its own fragment there, resends it, or only
// looks. One table an array, because an action can touch one.
#define ACTIONS_OF_stream            take_stream; read_stream; drop_stream
#define ACTIONS_OF_seq               take_seq; read_seq
#define ACTIONS_OF_offered_hi_access first_offer_hi; offer_hi; see_hi
#define ACTIONS_OF_offered_lo_access first_offer_lo; offer_lo; see_lo
#define ACTIONS_OF_owner             put
#define WHOSE(array, take, meet, resend, look) \
    table array { \
        key = { meta.intent: ternary @name("intent"); meta.entry: ternary @name("entry"); } \
        actions = { ACTIONS_OF_##array; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (INTENT_CONTRIBUTE, ENTRY_LAPSED):     take; \
            (INTENT_CONTRIBUTE, ENTRY_OWN):        meet; \
            (INTENT_CONTRIBUTE, ENTRY_OWN_LAPSED): meet; \
            (INTENT_RESEND,     ENTRY_OWN):        resend; \
            (INTENT_RESEND,     ENTRY_OWN_LAPSED): resend; \
            (_,                 ENTRY_OWN):        look; \
            (_,                 ENTRY_OWN_LAPSED): look; \
        } \
    }

// What is in the sum, and whether it is wanted: one table an array again, all with the same key.
#define MERGE_KEY \
    meta.place:      ternary @name("place"); \
    meta.intent:     ternary @name("intent"); \
    meta.alone:      ternary @name("alone"); \
    meta.stranger:   ternary @name("stranger"); \
    meta.overlap_hi: ternary @name("overlap_hi"); \
    meta.overlap_lo: ternary @name("overlap_lo");
#define WHAT(array, first, add, read) \
    table array { \
        key = { MERGE_KEY } \
        actions = { first; add; read; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (PLACE_CLAIMED, _,                 _, _, _, _): first(); \
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, 0, 0): add(); \
            (PLACE_MET,     INTENT_RESEND,     _, 0, 0, 0): add(); \
            (PLACE_MET,     _,                 _, 0, _, _): read(); \
        } \
    }

control SlotState(inout headers_t hdr, inout meta_t meta) {
    // --- entry ----------------------------------------------------------------------------------------------------

    STATE_PAIR(slot_claim)
    // The fragment's own slot is refreshed, unless it has lapsed: then its sum is complete, given up or finished elsewhere.
    ON_PAIR(slot_claim, claim, meta.entry, SEE_CASE(IS_OWN, HAS_LAPSED)
        WHEN(HAS_LAPSED, held.id, meta.claim_id)
        WHEN(IS_ONE_OF_THEM, held.touched, meta.now))
    ON_PAIR(slot_claim, give_up, meta.entry, SEE_CASE(IS_OWN, HAS_LAPSED)
        WHEN(IS_OWN, held.touched, meta.now - LONG_AGO))
    ON_PAIR(slot_claim, look_up, meta.entry, SEE_CASE(IS_OWN, HAS_LAPSED))

    action refuse(event_t event) {
        meta.intent = INTENT_REFUSED;
        meta.event = event;
    }
    action pass() {
        meta.intent = INTENT_BEYOND;
    }
    action contribute() {
        meta.intent = INTENT_CONTRIBUTE;
        DO(claim, meta.entry)
    }
    action end(intent_t intent) {
        meta.intent = intent;
        DO(give_up, meta.entry)
    }
    action probe() {
        meta.intent = INTENT_PROBE;
        DO(look_up, meta.entry)
    }
    table entry {
        key = {
            meta.asks:     ternary @name("asks");
            meta.admitted: ternary @name("admitted");
            meta.fans_out: ternary @name("fans_out");
            meta.known:    ternary @name("known");
            meta.within:   ternary @name("within");
        }
        actions = { refuse; pass; contribute; end; probe; }
        const default_action = refuse(EVENT_FOREIGN);
        const entries = {
            //                  member fans known within
            (INTENT_REFUSED,    _, _, _, _): refuse(EVENT_MALFORMED);
            (_,                 _, _, 0, _): refuse(EVENT_STALE);
            (INTENT_CONTRIBUTE, 1, _, 1, 1): contribute();
            (INTENT_CONTRIBUTE, 1, _, 1, 0): pass();
            (INTENT_RESEND,     1, _, 1, 1): end(INTENT_RESEND);
            (INTENT_RESEND,     1, _, 1, 0): pass();
            (INTENT_PROBE,      1, _, 1, _): probe();
            (INTENT_RELEASE,    1, 1, 1, _): end(INTENT_RELEASE);
            (INTENT_FINISH,     _, _, 1, _): end(INTENT_FINISH);
        }
    }
    action measure() {
        meta.need_hi = meta.fan_in_hi & ~hdr.sa.bits_hi;
        meta.need_lo = meta.fan_in_lo & ~hdr.sa.bits_lo;
    }
    action is_alone(bit<1> alone) {
        meta.alone = alone;
    }
    table lone {
        key = {
            meta.need_hi: ternary @name("need_hi");
            meta.need_lo: ternary @name("need_lo");
        }
        actions = { is_alone; }
        const default_action = is_alone(0);
        const entries = { (0, 0): is_alone(1); }
    }

    // --- owner ----------------------------------------------------------------------------------------------------

    STATE(word_t, slot_stream)
    ON_STATE(word_t, slot_stream, take_stream, meta.stranger, seen = held ^ meta.stream; held = meta.stream;)
    ON_STATE(word_t, slot_stream, drop_stream, meta.stranger, seen = held ^ meta.stream;
        WHEN(held == meta.stream, held, 0))
    ON_STATE(word_t, slot_stream, read_stream, meta.stranger, seen = held ^ meta.stream;)

    STATE(word_t, slot_seq)
    ON_STATE(word_t, slot_seq, take_seq, meta.held_seq, seen = held; held = hdr.sa.seq;)
    ON_STATE(word_t, slot_seq, read_seq, meta.held_seq, seen = held;)

    STATE(word_t, offered_hi)
    STATE(word_t, offered_lo)
    ON_STATE(word_t, offered_hi, first_offer_hi, meta.overlap_hi, seen = 0; held = hdr.sa.bits_hi;)
    ON_STATE(word_t, offered_lo, first_offer_lo, meta.overlap_lo, seen = 0; held = hdr.sa.bits_lo;)
    ON_STATE(word_t, offered_hi, offer_hi, meta.overlap_hi, seen = held & hdr.sa.bits_hi; held = held | hdr.sa.bits_hi;)
    ON_STATE(word_t, offered_lo, offer_lo, meta.overlap_lo, seen = held & hdr.sa.bits_lo; held = held | hdr.sa.bits_lo;)

    ON_STATE(word_t, offered_hi, see_hi, meta.overlap_hi, seen = held & hdr.sa.bits_hi;)
    ON_STATE(word_t, offered_lo, see_lo, meta.overlap_lo, seen = held & hdr.sa.bits_lo;)

    WHOSE(stream, take_stream(), read_stream(), drop_stream(), read_stream())
    WHOSE(seq, take_seq(), read_seq(), read_seq(), read_seq())
    WHOSE(offered_hi_access, first_offer_hi(), offer_hi(), offer_hi(), see_hi())
    WHOSE(offered_lo_access, first_offer_lo(), offer_lo(), offer_lo(), see_lo())
    action put(place_t place) {
        meta.place = place;
    }
    WHOSE(owner, put(PLACE_CLAIMED), put(PLACE_MET), put(PLACE_MET), put(PLACE_MET))

    // --- merge ----------------------------------------------------------------------------------------------------

    STATE(word_t, bits_hi)
    STATE(word_t, bits_lo)
    ON_STATE(word_t, bits_hi, first_hi, meta.held_hi, seen = held; held = hdr.sa.bits_hi;)
    ON_STATE(word_t, bits_lo, first_lo, meta.held_lo, seen = held; held = hdr.sa.bits_lo;)
    ON_STATE(word_t, bits_hi, add_hi,   meta.held_hi, seen = held; held = held | hdr.sa.bits_hi;)
    ON_STATE(word_t, bits_lo, add_lo,   meta.held_lo, seen = held; held = held | hdr.sa.bits_lo;)
    ON_STATE(word_t, bits_hi, read_hi,  meta.held_hi, seen = held;)
    ON_STATE(word_t, bits_lo, read_lo,  meta.held_lo, seen = held;)

    // Whether the sum in the slot is still wanted: if not, nobody misses it when the slot is claimed.
    STATE(bit<8>, slot_live)
    ON_STATE(bit<8>, slot_live, begin_life, meta.was_live, seen = held; held = 1;)
    ON_STATE(bit<8>, slot_live, end_life,   meta.was_live, seen = held; held = 0;)
    ON_STATE(bit<8>, slot_live, read_life,  meta.was_live, seen = held;)

    WHAT(bits_hi_access, first_hi, add_hi, read_hi)
    WHAT(bits_lo_access, first_lo, add_lo, read_lo)
    table live {
        key = { MERGE_KEY }
        actions = { begin_life; read_life; end_life; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (PLACE_CLAIMED, _,                 _, _, _, _): begin_life();
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, _, _): read_life();
            (PLACE_MET,     INTENT_PROBE,      _, 0, _, _): read_life();
            (PLACE_MET,     _,                 _, 0, _, _): end_life();
        }
    }
    action settle(place_t place, lane_op_t lane_op) {
        meta.place = place;
        meta.lane_op = lane_op;
    }
    table merge {
        key = { MERGE_KEY }
        actions = { settle; }
        const default_action = settle(PLACE_NONE, LANE_KEEP);
        const entries = {
            //                                alone stranger overlap
            (PLACE_CLAIMED, _,                 1, _, _, _): settle(PLACE_CLAIMED, LANE_SET);
            (PLACE_CLAIMED, _,                 0, _, _, _): settle(PLACE_CLAIMED, LANE_SWAP);
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, 0, 0): settle(PLACE_MERGED, LANE_ADD);
            (PLACE_MET,     INTENT_RESEND,     _, 0, 0, 0): settle(PLACE_MERGED, LANE_ADD);
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, _, _): settle(PLACE_MET, LANE_READ);
            (PLACE_MET,     INTENT_RESEND,     _, 0, _, _): settle(PLACE_MET, LANE_READ);
            (PLACE_MET,     _,                 _, 0, _, _): settle(PLACE_MET, LANE_KEEP);
        }
    }

    // --- find -----------------------------------------------------------------------------------------------------

    action compare() {
        meta.short_hi = meta.held_hi ^ meta.need_hi;
        meta.short_lo = meta.held_lo ^ meta.need_lo;
        meta.rest_hi = meta.held_hi ^ meta.fan_in_hi;
        meta.rest_lo = meta.held_lo ^ meta.fan_in_lo;
    }
    action is(found_t found, bit<1> overlap, bit<1> full) {
        meta.found = found;
        meta.overlap = overlap;
        meta.full = full;
    }
    table find {
        key = {
            meta.place:    ternary @name("place");
            meta.alone:    ternary @name("alone");
            meta.was_live: ternary @name("was_live");
            meta.short_hi: ternary @name("short_hi");
            meta.short_lo: ternary @name("short_lo");
            meta.rest_hi:  ternary @name("rest_hi");
            meta.rest_lo:  ternary @name("rest_lo");
        }
        actions = { is; }
        const default_action = is(FOUND_OTHER, 0, 0);
        const entries = {
            //          alone live short rest
            (PLACE_CLAIMED, 1, _, _, _, _, _): is(FOUND_FREE, 0, 1);
            (PLACE_CLAIMED, 0, 0, _, _, _, _): is(FOUND_FREE, 0, 0);
            (PLACE_CLAIMED, 0, _, _, _, _, _): is(FOUND_EXPIRED, 0, 0);
            (PLACE_MERGED,  _, _, 0, 0, _, _): is(FOUND_OPEN, 0, 1);
            (PLACE_MERGED,  _, _, _, _, _, _): is(FOUND_OPEN, 0, 0);
            (PLACE_MET,     _, _, _, _, 0, 0): is(FOUND_DONE, 1, 0);
            (PLACE_MET,     _, _, _, _, _, _): is(FOUND_OPEN, 1, 0);
        }
    }

    apply {
        entry.apply();
        measure();
        lone.apply();
        stream.apply();
        seq.apply();
        offered_hi_access.apply();
        offered_lo_access.apply();
        owner.apply();
        bits_hi_access.apply();
        bits_lo_access.apply();
        live.apply();
        merge.apply();
        compare();
        find.apply();
        CLAIMABLE_WHEN_COMPLETE
    }
}

#endif
