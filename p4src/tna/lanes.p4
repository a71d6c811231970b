// The values of the slots: one array a lane, each touched at one index by one operation. The TNA form: a table for each lane,
// because what one table does must fit in one stage, which has four stateful ALUs.
//
// Addition saturates, so that a sum never wraps. (protocol section 6.3)

#ifndef SA_TNA_LANES_P4
#define SA_TNA_LANES_P4

#include "headers.p4"

#define LANE_ACTION(i, does, ...) \
    RegisterAction<int<32>, bit<16>, int<32>>(lane_##i) lane_##does##_##i = { \
        void apply(inout int<32> held, out int<32> seen) { __VA_ARGS__ } };
#define LANE(i) \
    Register<int<32>, bit<16>>(SLOTS) lane_##i; \
    LANE_ACTION(i, set, held = hdr.lanes.v##i; seen = held;) \
    LANE_ACTION(i, add, held = held |+| hdr.lanes.v##i; seen = held;) \
    LANE_ACTION(i, read, seen = held;) \
    LANE_ACTION(i, swap, seen = held; held = hdr.lanes.v##i;) \
    action set_##i() { hdr.lanes.v##i = lane_set_##i.execute(hdr.sa.slot); } \
    action add_##i() { hdr.lanes.v##i = lane_add_##i.execute(hdr.sa.slot); } \
    action read_##i() { hdr.lanes.v##i = lane_read_##i.execute(hdr.sa.slot); } \
    action swap_##i() { hdr.lanes.v##i = lane_swap_##i.execute(hdr.sa.slot); } \
    table lane_table_##i { \
        key = { lane_op: exact @name("operation"); } \
        actions = { set_##i; add_##i; read_##i; swap_##i; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            LANE_SET: set_##i(); LANE_ADD: add_##i(); LANE_READ: read_##i(); LANE_SWAP: swap_##i(); } \
        size = 8; }
#define APPLY_LANE(i) lane_table_##i.apply();

control Lanes(inout headers_t hdr, in lane_op_t lane_op) {
    EACH_LANE(LANE)
    apply {
        EACH_LANE(APPLY_LANE)
    }
}

#endif
