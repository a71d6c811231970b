// What happens to each copy of a packet on its way out: the receiver's address, and congestion marks.

#ifndef SA_EGRESS_P4
#define SA_EGRESS_P4

#include "headers.p4"

// Addresses of a job's members by copy number; copy 0 is the job's next level, which is found this way by whatever goes
// up, also when another job's packet pushed it out. The source is written too: the next level must see a member of the
// job, and the parameter server must not receive packets that seem to come from itself, which its kernel would drop.
// (protocol section 4.5)
control Readdress(inout headers_t hdr, in CopyId_t copy) {
    action send(mac_t from_mac, ip_t from_ip, bit<16> from_port, mac_t to_mac, ip_t to_ip, bit<16> to_port) {
        hdr.ethernet.src = from_mac;
        hdr.ipv4.src = from_ip;
        hdr.udp.src_port = from_port;
        hdr.ethernet.dst = to_mac;
        hdr.ipv4.dst = to_ip;
        hdr.udp.dst_port = to_port;
    }
    table addresses {
        key = {
            hdr.sa.job: exact @name("job");
            copy:       exact @name("copy");
        }
        actions = { send; @defaultonly NoAction; }
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
    bit<1> congested;
    action above(bit<19> packets) {
        congested = queue_depth > packets ? 1w1 : 1w0;
    }
    table threshold {
        actions = { above; }
        default_action = above(40);
    }
    apply {
        threshold.apply();
        if (congested == 1 && hdr.ipv4.isValid()) {
            if (hdr.ipv4.ecn != 0) {
                hdr.ipv4.ecn = 3;
            }
            if (hdr.sa.isValid()) {
                hdr.sa.congestion = 1;
            }
        }
    }
}

#endif
