// Turns the verdict's route into ports and addresses: TO_PORT, TO_GROUP and TO_NOBODY tell the architecture (target.p4).
//
// `uplink` is looked up by the job that the packet names when it leaves, which after an eviction is another one than
// when it came. (protocol section 4.5)

#ifndef SA_DISPATCH_P4
#define SA_DISPATCH_P4

#include "headers.p4"

control Dispatch(inout headers_t hdr, inout meta_t meta, INGRESS_METADATA) {
    action to_port(PortId_t port) {
        TO_PORT(port)
    }
    action nowhere() {
        TO_NOBODY
    }

    // Next level of a job: the spine switch or the parameter server. At a leaf, what a member sent goes on in its name, so that
    // the root's answers find the way back to it; an evicted sum goes in the name of a member of its own job: the root admits
    // nobody else. What leaves a root is readdressed to the parameter server, whatever address workers send to.
    action in_the_name_of(PortId_t port, mac_t from_mac, ip_t from_ip, bit<16> from_udp_port, mac_t to_mac,
                          ip_t to_ip, bit<16> to_udp_port) {
        TO_PORT(port)
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
    action answer() {
        mac_t mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        ip_t ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = ip;
        bit<16> port = hdr.udp.dst_port;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = port;
        TO_PORT(standard.ingress_port)
    }
    action to_members() {
        TO_GROUP(meta.group)
    }
    table forward {
        key = { meta.route: exact @name("route"); }
        actions = { answer; to_members; nowhere; }
        const default_action = nowhere();
        const entries = {
            ROUTE_ANSWER: answer();
            ROUTE_DOWN:   to_members();
        }
    }

    apply {
        if (meta.route == ROUTE_UP) {
            uplink.apply();
        } else if (meta.route == ROUTE_BRIDGE) {
            bridge.apply();
        } else {
            forward.apply();
        }
    }
}

#endif
