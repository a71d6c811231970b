// The values of the slots: one array a lane, each touched at one index by one operation. The v1model form.
//
// Addition saturates, so that a sum never wraps: honest senders stay below a bound at which it cannot happen, and
// whatever exceeds it is recognised by the receivers. (protocol section 6.3)
//
// The two casts in LANE_DO_ADD change nothing in P4. They are for BMv2, which copies the bits of a register into a signed
// field without giving them a sign, and would add the large positive number that they spell.

#ifndef SA_V1MODEL_LANES_P4
#define SA_V1MODEL_LANES_P4

#include "headers.p4"

#define LANE_REGISTER(i) register<int<32>>(SLOTS) lane_##i;
#define LANE_DO_SET(i)   lane_##i.write(slot, hdr.lanes.v##i);
#define LANE_DO_ADD(i)   lane_##i.read(held, slot); \
                         hdr.lanes.v##i = (int<32>)(bit<32>)held |+| hdr.lanes.v##i; \
                         lane_##i.write(slot, hdr.lanes.v##i);
#define LANE_DO_READ(i)  lane_##i.read(hdr.lanes.v##i, slot);
#define LANE_DO_SWAP(i)  lane_##i.read(held, slot); lane_##i.write(slot, hdr.lanes.v##i); hdr.lanes.v##i = held;

control Lanes(inout headers_t hdr, in lane_op_t lane_op) {
    EACH_LANE(LANE_REGISTER)
    bit<32> slot = SLOT;  // as an expression it would be worked out anew for each lane
    int<32> held;
    action set()  { EACH_LANE(LANE_DO_SET) }
    action add()  { EACH_LANE(LANE_DO_ADD) }
    action read() { EACH_LANE(LANE_DO_READ) }
    action swap() { EACH_LANE(LANE_DO_SWAP) }
    table lanes {
        key = { lane_op: exact @name("operation"); }
        actions = { set; add; read; swap; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            LANE_SET:  set();
            LANE_ADD:  add();
            LANE_READ: read();
            LANE_SWAP: swap();
        }
    }
    apply {
        lanes.apply();
    }
}

#endif
