// The values of the slots: one array a lane, each touched at one index by one operation.
//
// Addition saturates, so that a sum never wraps: honest senders stay below a bound at which it cannot happen, and
// whatever exceeds it is recognised by the receivers. (protocol section 6.3)
//
// What a target does to a lane is in lane_actions.p4: LANE_ACTIONS. EACH_LANE_TABLE(F) expands F once a table: there is one for
// all lanes, or one for each, called by its number, where what a table does must fit in one stage.

#ifndef SA_LANES_OF_SLOTS_P4
#define SA_LANES_OF_SLOTS_P4

#include "headers.p4"
#include "lane_actions.p4"

#define LANE_TABLE(i) \
    table lanes##i { \
        key = { lane_op: exact @name("operation"); } \
        actions = { set##i; add##i; read##i; swap##i; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { LANE_SET: set##i(); LANE_ADD: add##i(); LANE_READ: read##i(); LANE_SWAP: swap##i(); } \
        LANE_TABLE_SIZE \
    }
#define APPLY_LANE_TABLE(i) lanes##i.apply();

control Lanes(inout headers_t hdr, in lane_op_t lane_op) {
    LANE_ACTIONS
    EACH_LANE_TABLE(LANE_TABLE)
    apply {
        EACH_LANE_TABLE(APPLY_LANE_TABLE)
    }
}

#endif
