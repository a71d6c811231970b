// What happens to each copy of a packet on its way out: the receiver's address, and congestion marks.

#ifndef SA_EGRESS_P4
#define SA_EGRESS_P4

#include "headers.p4"

// Addresses of a job's receivers by copy number. The source is written too: workers expect results from the parameter
// server, which itself must not receive packets that seem to come from itself, because its kernel would drop them.
// (protocol section 4.5)
control Readdress(inout headers_t hdr, in bit<16> copy) {
    action send(mac_t from_mac, ip_t from_ip, bit<16> from_udp_port, mac_t to_mac, ip_t to_ip, bit<16> to_udp_port) {
        hdr.ethernet.src = from_mac;
        hdr.ipv4.src = from_ip;
        hdr.udp.src_port = from_udp_port;
        hdr.ethernet.dst = to_mac;
        hdr.ipv4.dst = to_ip;
        hdr.udp.dst_port = to_udp_port;
    }
#ifdef HAS_BARE_RESULTS
    // As `send`, for a receiver that needs no values: the header alone says that the sum is complete. (protocol section 5.9)
    action send_bare(mac_t from_mac, ip_t from_ip, bit<16> from_udp_port, mac_t to_mac, ip_t to_ip, bit<16> to_udp_port) {
        send(from_mac, from_ip, from_udp_port, to_mac, to_ip, to_udp_port);
        hdr.lanes.setInvalid();
        hdr.udp.bytes = BARE_UDP_BYTES;
        hdr.ipv4.total_bytes = IPV4_HEADER_BYTES + BARE_UDP_BYTES;
    }
#endif
    table addresses {
        key = {
            hdr.sa.job: exact @name("job");
            copy:       exact @name("copy");
        }
        actions = { send; SEND_BARE @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4096;
    }
    apply {
        addresses.apply();
    }
}

// Marks packets that found a long queue, so that workers shrink their windows before anything is lost: in the IP
// header for whoever speaks ECN (RFC 3168), and in the SA-ATP header, which costs a worker nothing to read.
control MarkCongestion(inout headers_t hdr, in bit<19> queue_depth) {
    bit<32> depth = (bit<32>)queue_depth;
    bit<32> limit;
    bit<32> excess;
    action above(bit<32> packets) {  // or cells, as the target counts
        limit = packets;
    }
    table threshold {
        actions = { above; }
        default_action = above(MARK_ABOVE);
    }
    bit<1> congested = 0;
    action congest(bit<1> is) {
        congested = is;
    }
    table queue {
        key = { excess: ternary @name("excess"); }
        actions = { congest; }
        const default_action = congest(1);
        const entries = { 0: congest(0); }
    }
    apply {
        threshold.apply();
        excess = depth |-| limit;
        queue.apply();
        if (congested == 1 && hdr.ipv4.isValid() && hdr.ipv4.ihl == 5) {  // the checksum is made anew without options
            if (hdr.ipv4.ecn != 0) {
                hdr.ipv4.ecn = 3;
            }
            if (hdr.sa.isValid()) {
                hdr.sa.congestion = 1;
                hdr.udp.checksum = 0;  // of what is bridged, the host's would no longer be right
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, EGRESS_METADATA) {
    Readdress() readdress;
    MarkCongestion() mark_congestion;
    apply {
        if (standard.egress_rid != 0) {
            readdress.apply(hdr, standard.egress_rid);
        }
        mark_congestion.apply(hdr, standard.enq_qdepth);
    }
}

#endif
