// Types, codes and limits that every part of the program uses.
//
// What comes before it: the architecture, the target's types and stateful operations (target.p4), and the number of lanes
// (program.p4). Widths and codes of the packet come from p4src/wire.toml.

#ifndef SA_TYPES_P4
#define SA_TYPES_P4

#include "generated/spec.p4"

typedef bit<48> mac_t;
typedef bit<32> ip_t;
typedef bit<8>  job_t;
typedef bit<32> word_t;   // a word of a switch's memory: half of a bitmap of 64 contributions, for one
typedef bit<32> tick_t;   // time in units of about a millisecond

struct claim_t { word_t id; tick_t touched; }  // of a slot: whose it is, and when it was last wanted

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_UDP   = 17;

#ifdef HAS_BARE_RESULTS
const bit<16> IPV4_HEADER_BYTES = 20;
#endif
const bit<16> UDP_HEADER_BYTES  = 8;
const bit<16> BARE_UDP_BYTES    = UDP_HEADER_BYTES + SA_HEADER_BYTES;
const bit<16> LANES_UDP_BYTES   = BARE_UDP_BYTES + 4 * LANES;

// What egress may change: headers that the parser found. Told where egress parses packets again.
@noWarn("unused") const bit<8> LAYERS_NONE = 0;
@noWarn("unused") const bit<8> LAYERS_IP   = 1;  // Ethernet and IP without options
@noWarn("unused") const bit<8> LAYERS_SA   = 2;  // ..., UDP and SA-ATP
@noWarn("unused") const bit<8> LAYERS_SA_ODD = 3;  // the same

// What a packet wants of its slot. (protocol section 4.2)
typedef bit<3> intent_t;
const intent_t INTENT_REFUSED    = 0;  // be dropped: stale, foreign or malformed
const intent_t INTENT_CONTRIBUTE = 1;  // be added
const intent_t INTENT_RESEND     = 2;  // have the slot handed over, and pass
const intent_t INTENT_PROBE      = 3;  // see the bitmap
const intent_t INTENT_RELEASE    = 4;  // be copied to all; the sum is over, here too
const intent_t INTENT_FINISH     = 5;  // the switch's own copy of a result: the slot may be claimed from now on
const intent_t INTENT_BEYOND     = 6;  // pass up unmerged: this level does not sum these contributions

// Whether the packet may have the slot: one of four cases, as one bit each, which is what a stateful ALU of TNA says.
typedef bit<8> claim_case_t;
@noWarn("unused") const claim_case_t CLAIM_OTHER      = 1;  // another fragment holds it
const claim_case_t CLAIM_OWN        = 2;  // this fragment holds it
const claim_case_t CLAIM_LAPSED     = 4;  // another fragment had it: it is claimed
const claim_case_t CLAIM_OWN_LAPSED = 8;  // this fragment had it

// What became of that.
typedef bit<2> place_t;
const place_t PLACE_NONE    = 0;  // nothing of this fragment is here
const place_t PLACE_CLAIMED = 1;
const place_t PLACE_MET     = 2;  // its slot
const place_t PLACE_MERGED  = 3;  // its slot, and the packet's contributions are added

// What the packet finds in its slot. (protocol section 4.3)
typedef bit<3> found_t;
const found_t FOUND_FREE    = 0;  // nothing that anybody needs: claimed
const found_t FOUND_EXPIRED = 1;  // another fragment's incomplete sum, idle for longer than the time to live: claimed
const found_t FOUND_OTHER   = 2;  // another fragment's sum
const found_t FOUND_OPEN    = 3;  // this fragment's incomplete sum
const found_t FOUND_DONE    = 4;  // this fragment's complete sum

// What happens to the lanes of the slot. (protocol section 4.4)
typedef bit<3> lane_op_t;
const lane_op_t LANE_KEEP = 0;  // neither read nor written
const lane_op_t LANE_SET  = 1;  // slot = packet
const lane_op_t LANE_ADD  = 2;  // slot = packet = slot + packet
const lane_op_t LANE_READ = 3;  // packet = slot
const lane_op_t LANE_SWAP = 4;  // slot and packet change places

// Where the packet goes. (protocol section 4.5)
typedef bit<3> route_t;
const route_t ROUTE_DROP   = 0;
const route_t ROUTE_UP     = 1;  // to the next level: the spine, or the parameter server
const route_t ROUTE_DOWN   = 2;  // to every member of the job
const route_t ROUTE_ANSWER = 3;  // back to its sender
const route_t ROUTE_BRIDGE = 4;  // by its IP address, like any other traffic

#endif
