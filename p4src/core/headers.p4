// Headers, and what the controls tell one another about a packet.

#ifndef SA_HEADERS_P4
#define SA_HEADERS_P4

#include "types.p4"

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

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> bytes;
    bit<16> checksum;
}

#define LANE_FIELD(i) int<32> v##i;
header lanes_h {
    EACH_LANE(LANE_FIELD)
}

struct headers_t {
    ethernet_h ethernet;
    arp_h      arp;
    ipv4_h     ipv4;
    udp_h      udp;
    sa_h       sa;
    lanes_h    lanes;
}

struct meta_t {
    // Bridge: the IP address that decides where ordinary traffic goes
    ip_t      next_hop;

    // Admission: what the job's tables say
    intent_t  intent;
    word_t    fan_in_hi;   // contributions that this level must see before a sum is complete
    word_t    fan_in_lo;
    bit<1>    is_leaf;     // complete sums go up instead of down
    bit<16>   group;       // multicast group of the job's members below this switch
    tick_t    ttl;
    bit<1>    fans_out;    // this sender may have its results copied to everyone

    // SlotState: what the slot held
    found_t   found;
    bit<1>    overlap;     // at least one contribution of the packet is in the slot already
    bit<1>    full;        // with the packet's, all contributions are there
    word_t    held_hi;     // contributions in the slot before the packet
    word_t    held_lo;
    bit<32>   held_stream; // job, epoch, exponent and tag of the slot's owner
    bit<32>   held_seq;

    // Verdict: what is to be done
    lane_op_t lane_op;
    route_t   route;
    bit<5>    event;       // which counter of the job goes up
}

#endif
