// Who owns the slot, since when, and which contributions are in it: the v1model form.
//
// Four arrays, each read once and written once, all at the packet's slot. TNA has its own form of this control with the
// same parameters; nothing outside it knows how the state is kept. (protocol section 4.3)

#ifndef SA_V1MODEL_SLOT_STATE_P4
#define SA_V1MODEL_SLOT_STATE_P4

#include "headers.p4"

typedef bit<8> phase_t;
const phase_t PHASE_FREE = 0;
const phase_t PHASE_OPEN = 1;
const phase_t PHASE_DONE = 2;

control SlotState(inout headers_t hdr, inout meta_t meta, in tick_t now) {
    register<bit<64>>(SLOTS) slot_owner;   // job, epoch, exponent, tag, seq
    register<bit<64>>(SLOTS) slot_bits;    // contributions in the sum
    register<tick_t>(SLOTS)  slot_touched; // when its owner was last heard of
    register<phase_t>(SLOTS) slot_phase;

    apply {
        bit<32> slot = (bit<32>)hdr.sa.slot;
        bit<64> owner;
        bit<64> bits;
        tick_t touched;
        phase_t phase;
        slot_owner.read(owner, slot);
        slot_bits.read(bits, slot);
        slot_touched.read(touched, slot);
        slot_phase.read(phase, slot);

        bit<64> mine = hdr.sa.bits_hi ++ hdr.sa.bits_lo;
        bit<64> fan_in = meta.fan_in_hi ++ meta.fan_in_lo;
        bit<64> me = hdr.sa.job ++ hdr.sa.epoch ++ hdr.sa.exponent ++ hdr.sa.tag ++ hdr.sa.seq;
        bool open = phase == PHASE_OPEN;

        if (owner == me && open) {
            meta.found = FOUND_OPEN;
        } else if (owner == me && phase == PHASE_DONE) {
            meta.found = FOUND_DONE;
        } else if (!open) {
            meta.found = FOUND_FREE;
        } else if (now - touched > meta.ttl) {
            meta.found = FOUND_EXPIRED;
        } else {
            meta.found = FOUND_OTHER;
        }
        meta.held_hi = bits[63:32];
        meta.held_lo = bits[31:0];
        meta.held_stream = owner[63:32];
        meta.held_seq = owner[31:0];

        bool claim = meta.intent == INTENT_CONTRIBUTE
                     && (meta.found == FOUND_FREE || meta.found == FOUND_EXPIRED);
        bool merge = meta.found == FOUND_OPEN && bits & mine == 0
                     && (meta.intent == INTENT_CONTRIBUTE || meta.intent == INTENT_RESEND);
        if (claim) {
            owner = me;
            bits = mine;
        } else if (merge) {
            bits = bits | mine;
        } else if (meta.found == FOUND_OPEN) {
            meta.overlap = 1;
        }
        if (claim || merge) {
            touched = now;
            phase = PHASE_OPEN;
            if (bits == fan_in) {
                meta.full = 1;
                phase = PHASE_DONE;
            }
        }
        // Handed over, or finished elsewhere: the slot is anyone's.
        if (meta.found == FOUND_OPEN && meta.full == 0
            && (meta.intent == INTENT_RESEND || meta.intent == INTENT_RELEASE)) {
            phase = PHASE_FREE;
        }

        slot_owner.write(slot, owner);
        slot_bits.write(slot, bits);
        slot_touched.write(slot, touched);
        slot_phase.write(slot, phase);
    }
}

#endif
