// Ethernet, ARP, IPv4, UDP, and SA-ATP where the port, the version and the lengths say so.
//
// Anything that is not a well-formed SA-ATP packet for a switch leaves `hdr.sa` invalid and is bridged like ordinary
// traffic, or, where it claims to be SA-ATP and is not, refused (see SwitchIngress).

#ifndef SA_PARSER_P4
#define SA_PARSER_P4

#include "headers.p4"

parser SwitchParser(packet_in packet, out headers_t hdr, PARSER_METADATA) {
    VERIFIER
    state start {
        BEFORE_ETHERNET
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_ARP:  arp;
            default:        opaque;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        meta.next_hop = hdr.arp.target_ip;
        transition opaque;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        VERIFY(hdr.ipv4)
        meta.next_hop = hdr.ipv4.dst;
        // Options and fragments are bridged: an SA-ATP packet has neither.
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            (4, 5, _, _, _):            plain;
            default:                    opaque;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            SA_UDP_PORT: sa;
            default:     plain;
        }
    }

    state opaque {
        TELL_EGRESS(LAYERS_NONE)
        transition accept;
    }

    state plain {
        TELL_EGRESS(LAYERS_IP)
        transition accept;
    }

    state sa {
        meta.stream = packet.lookahead<bit<64>>()[31:0];  // job, epoch, exponent and tag: one word in the packet, too
        packet.extract(hdr.sa);
        PARSE_MORE_BITS
        transition select(hdr.sa.kind, hdr.udp.bytes) {
            (KIND_DATA,   LANES_UDP_BYTES): lanes;
            (KIND_RESULT, LANES_UDP_BYTES): lanes;
            default:                        end;
        }
    }

    state lanes {
        packet.extract(hdr.lanes);
        transition AFTER_LANES
    }

    state end {
        TELL_EGRESS(LAYERS_SA)
        transition accept;
    }
    OTHER_END
}

#endif
