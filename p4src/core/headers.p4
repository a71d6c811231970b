// Headers, and what the controls tell one another about a packet.

#ifndef SA_HEADERS_P4
#define SA_HEADERS_P4

#include "types.p4"

// From ingress to egress, on targets whose egress parses packets again; on others it is never valid.
header bridge_h {
    bit<8> layers;
}

header ethernet_h {
    mac_t   dst;
    mac_t   src;
    bit<16> ether_type;
}

header arp_h {
    bit<16> hardware;
    bit<16> protocol;
    bit<8>  hardware_bytes;
    bit<8>  protocol_bytes;
    bit<16> operation;
    mac_t   sender_mac;
    ip_t    sender_ip;
    mac_t   target_mac;
    ip_t    target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_bytes;
    bit<16> identification;
    bit<1>  reserved;
    bit<1>  dont_fragment;
    bit<1>  more_fragments;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ip_t    src;
    ip_t    dst;
}

// What its checksum covers.
#define IPV4_FIELDS(h) h.version, h.ihl, h.dscp, h.ecn, h.total_bytes, h.identification, h.reserved, h.dont_fragment, \
                       h.more_fragments, h.fragment_offset, h.ttl, h.protocol, h.src, h.dst

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> bytes;
    bit<16> checksum;
}

MORE_BITS_TYPE
#define LANE_FIELD(i) int<32> v##i;
header lanes_h {
    EACH_LANE(LANE_FIELD)
}

struct headers_t {
    bridge_h   bridge;
    ethernet_h ethernet;
    arp_h      arp;
    ipv4_h     ipv4;
    udp_h      udp;
    sa_h       sa;
    MORE_BITS_HEADER
    lanes_h    lanes;
}

// A bitmap is several words, hi and lo or 0, 1, ... (generated/bits_*.p4): EACH_WORD(F) expands F(w, field) for each, where w is
// what it is called and field what it is in the header.
#define FAN_IN_WORD(w, field)  BITS_WORD fan_in_##w;
#define OVERLAP_WORD(w, field) BITS_WORD overlap_##w;
#define NEED_WORD(w, field)    BITS_WORD need_##w;
#define HELD_WORD(w, field)    BITS_WORD held_##w;
#define SHORT_WORD(w, field)   BITS_WORD short_##w;
#define REST_WORD(w, field)    BITS_WORD rest_##w;

struct meta_t {
    // Parser: damaged headers, and the IP address that decides where ordinary traffic goes
    bit<1>    damaged;
    ip_t      next_hop;

    // Admission: what the packet asks for, and what the tables say
    intent_t  requested;
    bit<1>    admitted;    // the sender belongs to the job
    bit<1>    fans_out;    // ... and may have its results copied to everyone
    bit<1>    known;       // the job exists, in this epoch, and owns the slot
    bit<1>    within;      // this level sums these contributions
    EACH_WORD(FAN_IN_WORD)   // contributions that this level must see before a sum is complete
    bit<1>    is_leaf;     // complete sums go up instead of down
    bit<16>   group;       // multicast group of the job's members below this switch
    tick_t    ttl;
    tick_t    now;
    word_t    claim_id;    // the sequence number, plus one: 0 is nobody's, and what slots hold at the beginning
    word_t    stream;      // job, epoch, exponent and tag: with the sequence number, what a slot's owner is known by

    // SlotState: what the slot held
    intent_t  intent;
    claim_case_t claim;    // may it have the slot?
    place_t   place;
    word_t    stream_diff; // owner's stream, XOR the packet's
    word_t    held_seq;
    EACH_WORD(OVERLAP_WORD)  // contributions that were offered before
    EACH_WORD(NEED_WORD)     // contributions that must be in the slot for this packet to complete it
    bit<1>    completes_alone;  // none: the packet brings all
    EACH_WORD(HELD_WORD)     // contributions in the slot before the packet
    bit<8>    was_live;    // the sum that was there is still wanted
    EACH_WORD(SHORT_WORD)    // what distinguishes held from need
    EACH_WORD(REST_WORD)     // what distinguishes held from the fan-in
    found_t   found;
    bit<1>    overlap;     // at least one contribution of the packet was offered before
    bit<1>    full;        // with the packet's, all contributions are there

    // what is to be done
    lane_op_t lane_op;
    route_t   route;
    bit<1>    evicted;     // what leaves belongs to another fragment, perhaps another job, than what came
    bit<5>    event;       // which counter of the job goes up
    bit<1>    counts;      // one does
    job_t     counts_for;
}

#endif
