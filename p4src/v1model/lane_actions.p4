// What is done to a lane, the v1model form: each action does it to all.
//
// The two casts in LANE_DO_ADD change nothing in P4. They are for BMv2, which copies the bits of a register into a signed
// field without giving them a sign, and would add the large positive number that they spell.

#define LANE_REGISTER(i) register<int<32>>(SLOTS) lane_##i;
#define LANE_DO_SET(i)   lane_##i.write(slot, hdr.lanes.v##i);
#define LANE_DO_ADD(i)   lane_##i.read(held, slot); \
                         hdr.lanes.v##i = (int<32>)(bit<32>)held |+| hdr.lanes.v##i; \
                         lane_##i.write(slot, hdr.lanes.v##i);
#define LANE_DO_READ(i)  lane_##i.read(hdr.lanes.v##i, slot);
#define LANE_DO_SWAP(i)  lane_##i.read(held, slot); lane_##i.write(slot, hdr.lanes.v##i); hdr.lanes.v##i = held;
#define LANE_ACTIONS \
    EACH_LANE(LANE_REGISTER) \
    bit<32> slot = AT(hdr.sa.slot);  /* as an expression it would be worked out anew for each lane */ \
    int<32> held; \
    action set()  { EACH_LANE(LANE_DO_SET) } \
    action add()  { EACH_LANE(LANE_DO_ADD) } \
    action read() { EACH_LANE(LANE_DO_READ) } \
    action swap() { EACH_LANE(LANE_DO_SWAP) }
#define EACH_LANE_TABLE(F) F()
#define LANE_TABLE_SIZE
