// Turns the verdict's route into ports and addresses.
//
// `uplink` is looked up by the job that the packet names when it leaves, which after an eviction is another one than
// when it came. (protocol section 4.5)

#ifndef SA_DISPATCH_P4
#define SA_DISPATCH_P4

#include "headers.p4"

control Dispatch(inout headers_t hdr, inout meta_t meta, in PortId_t came_by, out PortId_t egress_port,
                 out bit<1> drop) {
    action to_port(PortId_t port) {
        egress_port = port;
    }
    action nowhere() {
        drop = 1;
    }

    // Next level of a job: the spine switch or the parameter server. What a member sent goes on in its name, so that answers
    // find the way back to it. An evicted sum goes in the name of a member of its own job: the next level admits nobody else.
    action in_the_name_of(PortId_t port, mac_t from_mac, ip_t from_ip, bit<16> from_udp_port, mac_t to_mac,
                          ip_t to_ip, bit<16> to_udp_port) {
        egress_port = port;
        hdr.ethernet.src = from_mac;
        hdr.ipv4.src = from_ip;
        hdr.udp.src_port = from_udp_port;
        hdr.ethernet.dst = to_mac;
        hdr.ipv4.dst = to_ip;
        hdr.udp.dst_port = to_udp_port;
    }
    table uplink {
        key = {
            hdr.sa.job:   exact @name("job");
            meta.evicted: exact @name("evicted");
        }
        actions = { to_port; in_the_name_of; nowhere; }
        const default_action = nowhere();
        size = 512;
    }

    // Everything that is not aggregated, ARP included, goes where its IP address lives.
    table bridge {
        key = { meta.next_hop: lpm @name("ip"); }
        actions = { to_port; nowhere; }
        const default_action = nowhere();
        size = 1024;
    }

    // An answer seems to come from where the question was going: the parameter server's address.
    action swap_addresses() {
        mac_t mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        ip_t ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = ip;
        bit<16> port = hdr.udp.dst_port;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = port;
    }

    apply {
        egress_port = 0;
        drop = 0;
        if (meta.route == ROUTE_UP) {
            uplink.apply();
        } else if (meta.route == ROUTE_BRIDGE) {
            bridge.apply();
        } else if (meta.route == ROUTE_ANSWER) {
            swap_addresses();
            egress_port = came_by;
        } else if (meta.route == ROUTE_DROP) {
            drop = 1;
        }
    }
}

#endif
