// What is done to a lane, the TNA form: a table for each lane, because what one table does must fit in one stage, which has four
// stateful ALUs.

#define LANE_ACTION(i, does, ...) \
    RegisterAction<int<32>, bit<16>, int<32>>(lane_##i) does##_lane_##i = { \
        void apply(inout int<32> held, out int<32> seen) { __VA_ARGS__ } }; \
    action does##i() { hdr.lanes.v##i = does##_lane_##i.execute(hdr.sa.slot); }
#define LANE(i) \
    Register<int<32>, bit<16>>(SLOTS) lane_##i; \
    LANE_ACTION(i, set, held = hdr.lanes.v##i; seen = held;) \
    LANE_ACTION(i, add, held = held |+| hdr.lanes.v##i; seen = held;) \
    LANE_ACTION(i, read, seen = held;) \
    LANE_ACTION(i, swap, seen = held; held = hdr.lanes.v##i;)
#define LANE_ACTIONS EACH_LANE(LANE)
#define EACH_LANE_TABLE(F) EACH_LANE(F)
#define LANE_TABLE_SIZE size = 8;
