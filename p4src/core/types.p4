// Types, codes and limits that every part of the program uses.
//
// A build includes, in this order: the architecture, generated/lanes_N.p4, the target's types (PortId_t, GroupId_t,
// CopyId_t) and this file. Widths and codes of the packet come from p4src/wire.toml.

#ifndef SA_TYPES_P4
#define SA_TYPES_P4

#include "generated/spec.p4"

typedef bit<48> mac_t;
typedef bit<32> ip_t;
typedef bit<8>  job_t;
typedef bit<32> word_t;   // half of a contribution bitmap
typedef bit<32> tick_t;   // time in units of about a millisecond

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_UDP   = 17;

const bit<16> UDP_HEADER_BYTES  = 8;
const bit<16> BARE_UDP_BYTES    = UDP_HEADER_BYTES + SA_HEADER_BYTES;
const bit<16> LANES_UDP_BYTES   = BARE_UDP_BYTES + 4 * LANES;

// What an admitted packet wants of its slot. (protocol section 4.2)
typedef bit<3> intent_t;
// 0 (no intent) leaves the slot alone, as does everything that is not SA-ATP.
const intent_t INTENT_CONTRIBUTE = 1;  // be added
const intent_t INTENT_RESEND     = 2;  // have the slot handed over, and pass
const intent_t INTENT_PROBE      = 3;  // see the bitmap
const intent_t INTENT_RELEASE    = 4;  // free the slot: the sum was finished elsewhere
const intent_t INTENT_BEYOND     = 5;  // pass up unmerged: this level does not sum these contributions
const intent_t INTENT_REFUSED    = 6;  // be dropped: stale, foreign or malformed

// What the packet finds in its slot. (protocol section 4.3)
typedef bit<3> found_t;
const found_t FOUND_FREE    = 0;  // nothing, or another fragment's complete sum: may be claimed
const found_t FOUND_EXPIRED = 1;  // another fragment's incomplete sum, idle for longer than the time to live
const found_t FOUND_OTHER   = 2;  // another fragment's incomplete sum
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
