// Who owns the slot, since when, which contributions are in it: what a packet finds there, and what that makes of it.
//
// The same code on every target. A switch's memory can be touched once a packet, at one index, by one short
// read-modify-write whose result the next stage sees. So what one would write as one function over a slot's state is a
// chain here, and each link decides for the next:
//
//   claim      may the packet have the slot?     slot_claim {id, touched}
//   owner      whose slot is it, exactly?        slot_stream, slot_seq     what was offered?  OfferedBits, twice
//   merge      what is in the sum?               SummedBits, twice         is it wanted?      slot_live
//   find       all of this as one word, for the verdict
//
// Two arrays of bits, because no link can both look at a bitmap and decide to leave it alone: `offered` takes every bit
// that ever came, `summed` only those whose values were added, which is sure where none of them was offered before. A packet
// that overlaps partly leaves bits in `offered` that are in no sum; contributions under those bits are refused here until
// a resend has the slot handed over. (protocol section 4.3) A bitmap has several words, since a word of memory has 32 bits, or 64:
// EACH_WORD says something of each (headers.p4).
//
// A complete sum stays in its slot for those who missed the result, but anyone may claim the slot. A target that can touch an
// array twice says so at once (CLAIMABLE_WHEN_COMPLETE); another one sends itself a copy of the result (INTENT_FINISH).
//
// ON_STATE(type, array, slot, name, result, update): an action `name` that touches `array` at the slot. `update` turns `held`
// into what the array shall hold, and sets `seen`, which ends up in `result`. ON_PAIR is the same for two words; `was` is what
// they were, and DO(name, slot, result) is how an action does it. HAS_LAPSED says of `was` that it was idle for too long, and
// what is given the time NEVER has lapsed. AT_STAGE is where the compiler has to put a table, so that lanes get all the
// stages behind. (target.p4)

#ifndef SA_SLOT_STATE_P4
#define SA_SLOT_STATE_P4

#include "headers.p4"
#include "admission.p4"

#define IS_OWN         (was.id == meta.claim_id)
#define IS_ONE_OF_THEM ((IS_OWN && !HAS_LAPSED) || (!IS_OWN && HAS_LAPSED))

#define OVERLAP_IN(w, field)  in BITS_WORD overlap_##w,
#define OVERLAP_KEY(w, field) overlap_##w: ternary @name(TEXT(overlap_##w));
#define META_OVERLAP_KEY(w, field) meta.overlap_##w: ternary @name(TEXT(overlap_##w));
#define META_OVERLAP(w, field) meta.overlap_##w,

// One word of the contributions that were offered for the slot's sum.
control OfferedBits(in bit<16> slot, in BITS_WORD bits, in intent_t intent, in claim_case_t claim, inout BITS_WORD overlap) {
    STATE(BITS_WORD, offered)
    ON_STATE(BITS_WORD, offered, slot, begin, overlap, seen = 0; held = bits;)
    ON_STATE(BITS_WORD, offered, slot, offer, overlap, seen = held & bits; held = held | bits;)
    ON_STATE(BITS_WORD, offered, slot, see,   overlap, seen = held & bits;)
    AT_STAGE(2)
    table offers {
        key = {
            intent: ternary @name("intent");
            claim:  ternary @name("claim");
        }
        actions = { begin; offer; see; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (INTENT_CONTRIBUTE, CLAIM_LAPSED):     begin();
            (INTENT_CONTRIBUTE, CLAIM_OWN):        offer();
            (INTENT_CONTRIBUTE, CLAIM_OWN_LAPSED): offer();
            (INTENT_RESEND,     CLAIM_OWN):        offer();
            (INTENT_RESEND,     CLAIM_OWN_LAPSED): offer();
            (_,                 CLAIM_OWN):        see();
            (_,                 CLAIM_OWN_LAPSED): see();
        }
    }
    apply {
        offers.apply();
    }
}

// One word of the contributions whose values are in the slot's sum.
control SummedBits(in bit<16> slot, in BITS_WORD bits, in place_t place, in intent_t intent, in word_t stream_diff,
                   EACH_WORD(OVERLAP_IN) inout BITS_WORD before) {
    STATE(BITS_WORD, summed)
    ON_STATE(BITS_WORD, summed, slot, begin, before, seen = held; held = bits;)
    ON_STATE(BITS_WORD, summed, slot, add,   before, seen = held; held = held | bits;)
    ON_STATE(BITS_WORD, summed, slot, read,  before, seen = held;)
    AT_STAGE(3)
    table sums {
        key = {
            place:       ternary @name("place");
            intent:      ternary @name("intent");
            stream_diff: ternary @name("stream_diff");
            EACH_WORD(OVERLAP_KEY)
        }
        actions = { begin; add; read; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            //                                diff overlap
            (PLACE_CLAIMED, _,                 _, ANY_BITS): begin();
            (PLACE_MET,     INTENT_CONTRIBUTE, 0, NO_BITS):  add();
            (PLACE_MET,     INTENT_RESEND,     0, NO_BITS):  add();
            (PLACE_MET,     _,                 0, ANY_BITS): read();
        }
    }
    apply {
        sums.apply();
    }
}

#define MEASURE(w, field)  meta.need_##w = meta.fan_in_##w & ~field;
#define NEED_KEY(w, field) meta.need_##w: ternary @name(TEXT(need_##w));
#define COMPARE_SHORT(w, field) meta.short_##w = meta.held_##w ^ meta.need_##w;
#define COMPARE_REST(w, field)  meta.rest_##w = meta.held_##w ^ meta.fan_in_##w;
#define SHORT_KEY(w, field) meta.short_##w: ternary @name(TEXT(short_##w));
#define REST_KEY(w, field)  meta.rest_##w: ternary @name(TEXT(rest_##w));
#define OFFERED(w, field) OfferedBits() offered_##w;
#define SUMMED(w, field)  SummedBits() summed_##w;
#define APPLY_OFFERED(w, field) offered_##w.apply(hdr.sa.slot, field, meta.intent, meta.claim, meta.overlap_##w);
#define APPLY_SUMMED(w, field) \
    summed_##w.apply(hdr.sa.slot, field, meta.place, meta.intent, meta.stream_diff, EVERY_WORD(META_OVERLAP) meta.held_##w);

control SlotState(inout headers_t hdr, inout meta_t meta) {
    // --- claim ----------------------------------------------------------------------------------------------------

    STATE_PAIR(slot_claim)
    // The fragment's own slot is refreshed, unless it has lapsed: then its sum is complete, given up or finished elsewhere.
    ON_PAIR(slot_claim, hdr.sa.slot, take, meta.claim, SEE_CASE(IS_OWN, HAS_LAPSED)
        WHEN(HAS_LAPSED, held.id, meta.claim_id)
        WHEN(IS_ONE_OF_THEM, held.touched, meta.now))
    ON_PAIR(slot_claim, hdr.sa.slot, give_up, meta.claim, SEE_CASE(IS_OWN, HAS_LAPSED)
        WHEN(IS_OWN, held.touched, NEVER))
    ON_PAIR(slot_claim, hdr.sa.slot, look_up, meta.claim, SEE_CASE(IS_OWN, HAS_LAPSED))

    action refuse(event_t event) {
        meta.intent = INTENT_REFUSED;
        meta.event = event;
    }
    action pass() {
        meta.intent = INTENT_BEYOND;
    }
    action contribute() {
        meta.intent = INTENT_CONTRIBUTE;
        DO(take, hdr.sa.slot, meta.claim)
    }
    action end(intent_t intent) {
        meta.intent = intent;
        DO(give_up, hdr.sa.slot, meta.claim)
    }
    action probe() {
        meta.intent = INTENT_PROBE;
        DO(look_up, hdr.sa.slot, meta.claim)
    }
    AT_STAGE(1)
    table claim {
        key = {
            meta.requested: ternary @name("requested");
            meta.admitted:  ternary @name("admitted");
            meta.fans_out:  ternary @name("fans_out");
            meta.known:     ternary @name("known");
            meta.within:    ternary @name("within");
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
        EACH_WORD(MEASURE)
    }
    action is_alone(bit<1> yes) {
        meta.completes_alone = yes;
    }
    table alone {
        key = {
            EACH_WORD(NEED_KEY)
        }
        actions = { is_alone; }
        const default_action = is_alone(0);
        const entries = { (NO_BITS): is_alone(1); }
    }

    // --- owner ----------------------------------------------------------------------------------------------------

    STATE(word_t, slot_stream)
    ON_STATE(word_t, slot_stream, hdr.sa.slot, take_stream, meta.stream_diff, seen = held ^ meta.stream; held = meta.stream;)
    ON_STATE(word_t, slot_stream, hdr.sa.slot, drop_stream, meta.stream_diff, seen = held ^ meta.stream;
        WHEN(held == meta.stream, held, 0))
    ON_STATE(word_t, slot_stream, hdr.sa.slot, read_stream, meta.stream_diff, seen = held ^ meta.stream;)
    AT_STAGE(2)
    table stream {
        key = {
            meta.intent: ternary @name("intent");
            meta.claim:  ternary @name("claim");
        }
        actions = { take_stream; read_stream; drop_stream; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (INTENT_CONTRIBUTE, CLAIM_LAPSED):     take_stream();
            (INTENT_RESEND,     CLAIM_OWN):        drop_stream();
            (INTENT_RESEND,     CLAIM_OWN_LAPSED): drop_stream();
            (_,                 CLAIM_OWN):        read_stream();
            (_,                 CLAIM_OWN_LAPSED): read_stream();
        }
    }

    STATE(word_t, slot_seq)
    ON_STATE(word_t, slot_seq, hdr.sa.slot, take_seq, meta.held_seq, seen = held; held = hdr.sa.seq;)
    ON_STATE(word_t, slot_seq, hdr.sa.slot, read_seq, meta.held_seq, seen = held;)
    AT_STAGE(2)
    table seq {
        key = {
            meta.intent: ternary @name("intent");
            meta.claim:  ternary @name("claim");
        }
        actions = { take_seq; read_seq; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (INTENT_CONTRIBUTE, CLAIM_LAPSED):     take_seq();
            (_,                 CLAIM_OWN):        read_seq();
            (_,                 CLAIM_OWN_LAPSED): read_seq();
        }
    }

    EACH_WORD(OFFERED)

    action put(place_t place) {
        meta.place = place;
    }
    AT_STAGE(2)
    table owner {
        key = {
            meta.intent: ternary @name("intent");
            meta.claim:  ternary @name("claim");
        }
        actions = { put; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (INTENT_CONTRIBUTE, CLAIM_LAPSED):     put(PLACE_CLAIMED);
            (_,                 CLAIM_OWN):        put(PLACE_MET);
            (_,                 CLAIM_OWN_LAPSED): put(PLACE_MET);
        }
    }

    // --- merge ----------------------------------------------------------------------------------------------------

    EACH_WORD(SUMMED)

    // Whether the sum in the slot is still wanted: if not, nobody misses it when the slot is claimed.
    STATE(bit<8>, slot_live)
    ON_STATE(bit<8>, slot_live, hdr.sa.slot, begin_life, meta.was_live, seen = held; held = 1;)
    ON_STATE(bit<8>, slot_live, hdr.sa.slot, end_life,   meta.was_live, seen = held; held = 0;)
    ON_STATE(bit<8>, slot_live, hdr.sa.slot, read_life,  meta.was_live, seen = held;)
    AT_STAGE(3)
    table live {
        key = {
            meta.place:       ternary @name("place");
            meta.intent:      ternary @name("intent");
            meta.stream_diff: ternary @name("stream_diff");
        }
        actions = { begin_life; read_life; end_life; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (PLACE_CLAIMED, _,                 _): begin_life();
            (PLACE_MET,     INTENT_CONTRIBUTE, 0): read_life();
            (PLACE_MET,     INTENT_PROBE,      0): read_life();
            (PLACE_MET,     _,                 0): end_life();
        }
    }

    action settle(place_t becomes, lane_op_t lane_op) {
        meta.place = becomes;
        meta.lane_op = lane_op;
    }
    AT_STAGE(3)
    table merge {
        key = {
            meta.place:           ternary @name("place");
            meta.intent:          ternary @name("intent");
            meta.completes_alone: ternary @name("completes_alone");
            meta.stream_diff:     ternary @name("stream_diff");
            EACH_WORD(META_OVERLAP_KEY)
        }
        actions = { settle; }
        const default_action = settle(PLACE_NONE, LANE_KEEP);
        const entries = {
            //                                alone diff overlap
            (PLACE_CLAIMED, _,                 1, _, ANY_BITS): settle(PLACE_CLAIMED, LANE_SET);
            (PLACE_CLAIMED, _,                 0, _, ANY_BITS): settle(PLACE_CLAIMED, LANE_SWAP);
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, NO_BITS):  settle(PLACE_MERGED, LANE_ADD);
            (PLACE_MET,     INTENT_RESEND,     _, 0, NO_BITS):  settle(PLACE_MERGED, LANE_ADD);
            (PLACE_MET,     INTENT_CONTRIBUTE, _, 0, ANY_BITS): settle(PLACE_MET, LANE_READ);
            (PLACE_MET,     INTENT_RESEND,     _, 0, ANY_BITS): settle(PLACE_MET, LANE_READ);
            (PLACE_MET,     _,                 _, 0, ANY_BITS): settle(PLACE_MET, LANE_KEEP);
        }
    }

    // --- find -----------------------------------------------------------------------------------------------------

    action compare() {
        EACH_WORD(COMPARE_SHORT)
        EACH_WORD(COMPARE_REST)
    }
    action is(found_t found, bit<1> overlap, bit<1> full) {
        meta.found = found;
        meta.overlap = overlap;
        meta.full = full;
    }
    table find {
        key = {
            meta.place:           ternary @name("place");
            meta.completes_alone: ternary @name("completes_alone");
            meta.was_live:        ternary @name("was_live");
            EACH_WORD(SHORT_KEY)
            EACH_WORD(REST_KEY)
        }
        actions = { is; }
        const default_action = is(FOUND_OTHER, 0, 0);
        const entries = {
            //          alone live short rest
            (PLACE_CLAIMED, 1, _, ANY_BITS, ANY_BITS): is(FOUND_FREE, 0, 1);
            (PLACE_CLAIMED, 0, 0, ANY_BITS, ANY_BITS): is(FOUND_FREE, 0, 0);
            (PLACE_CLAIMED, 0, _, ANY_BITS, ANY_BITS): is(FOUND_EXPIRED, 0, 0);
            (PLACE_MERGED,  _, _, NO_BITS,  ANY_BITS): is(FOUND_OPEN, 0, 1);
            (PLACE_MERGED,  _, _, ANY_BITS, ANY_BITS): is(FOUND_OPEN, 0, 0);
            (PLACE_MET,     _, _, ANY_BITS, NO_BITS):  is(FOUND_DONE, 1, 0);
            (PLACE_MET,     _, _, ANY_BITS, ANY_BITS): is(FOUND_OPEN, 1, 0);
        }
    }

    apply {
        claim.apply();
        measure();
        alone.apply();
        stream.apply();
        seq.apply();
        EACH_WORD(APPLY_OFFERED)
        owner.apply();
        EACH_WORD(APPLY_SUMMED)
        live.apply();
        merge.apply();
        compare();
        find.apply();
        CLAIMABLE_WHEN_COMPLETE
    }
}

#endif
