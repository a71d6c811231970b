"""Scenarios of what is no contribution: packets that are refused, and ordinary traffic."""

import dataclasses

from .packets import CONTROL, DATA, FAN_OUT, FROM_PS, PROBE, PROBE_REPLY, RESULT, Arp, Header, Host, Packet, Raw
from .scenario import ECT0, Scenario, host, packet_of
from .sites import SERVER, TWO, UNUSED_PORT, W0, W1, W2


def admission(lanes: int) -> Scenario:
    other = dataclasses.replace(TWO, job=4, epoch=9, slot_base=512, group=40, members=(W1, W2))
    s = Scenario(
        "admission",
        """
        Packets that a switch does not take: of others than the job's members, of another epoch, for slots of another job,
        and malformed ones. Each is counted and dropped, and changes nothing.
        """,
        lanes=lanes,
        jobs=[TWO, other],
        routes=[("10.0.0.0/24", 9)],
    )
    good = packet_of(W0, TWO, DATA, seq=1, bits=0b01, lanes=s.values(lambda k: k + 1))
    s.send(1, good, "claimed", "a good packet; the others differ from it in one thing")
    again = good.having(bits=0b10, source=host(W1))

    s.comment("Foreign: who may send is a matter of job, port, IP address and UDP port together.")
    s.send(3, again, "foreign", "worker 1's packet from another port")
    s.send(2, again.having(source=dataclasses.replace(host(W1), ip=0x0A000009)), "foreign", "another IP address")
    s.send(2, again.having(source=dataclasses.replace(host(W1), udp_port=5009)), "foreign", "another UDP port")
    s.send(3, again.having(source=host(W2)), "foreign", "worker 2 is a member of job 4 only")
    s.send(1, packet_of(W0, other, DATA, seq=1, bits=0b01, lanes=s.values(lambda k: k)), "foreign",
           "worker 0 is no member of job 4")  # fmt: skip
    s.send(3, packet_of(W2, TWO, PROBE, seq=1), "foreign", "a probe needs to come from a member too")

    s.comment("Stale: no such job, another epoch, or a slot that the job does not have.")
    s.send(2, again.having(job=5), "stale", "job 5 does not exist")
    s.send(2, again.having(epoch=1), "stale", "an earlier epoch")
    s.send(2, again.having(epoch=3), "stale", "a later epoch")
    s.send(2, again.having(slot=255), "stale", "the slot before the quota")
    s.send(2, again.having(slot=512), "stale", "the slot after the quota: it belongs to job 4")
    s.send(2, again.having(slot=256 + 4096), "stale", "the right slot modulo 4096 is still another one")
    s.send(9, packet_of(SERVER, TWO, RESULT, seq=1, bits=0b11, epoch=1, flags=FAN_OUT, lanes=s.values(lambda k: k)),
           "stale", "a result of another epoch is not copied")  # fmt: skip

    s.comment("Malformed: version, kind, contributions, lengths.")
    s.send(2, again.having(version=2), "malformed", "another version")
    s.send(2, again.having(version=0), "malformed", "version 0")
    s.send(2, again.having(kind=5), "malformed", "an unknown kind")
    s.send(2, again.having(bits=0), "malformed", "no contribution")
    assert again.lanes is not None
    s.send(2, again.having(lanes=again.lanes[:-1]), "malformed", "one lane too few")
    s.send(2, again.having(lanes=(*again.lanes, 0)), "malformed", "one lane too many")
    s.send(2, again.having(lanes=None), "malformed", "data without lanes")
    s.send(2, again.having(kind=PROBE), "malformed", "a probe with lanes")
    s.send(9, packet_of(SERVER, TWO, RESULT, seq=1, bits=0b11, flags=FAN_OUT), "malformed", "a result without lanes")
    s.comment("A wrong checksum in the IPv4 header: dropped before anybody looks further.")
    s.send(2, again.having(ip_checksum=0x1234), None, "not counted")

    s.comment("The slot has seen nothing of all this.")
    s.send(2, again, "completed", "worker 1: 2, 4, 6, ...")
    s.check_counters()
    return s


def truncated(lanes: int) -> Scenario:
    s = Scenario(
        "truncated",
        """
        Packets that end before the headers do that they announce. They are dropped, and counted as far as somebody can say
        for whom.
        """,
        lanes=lanes,
        jobs=[TWO],
    )
    good = packet_of(W0, TWO, DATA, seq=1, bits=0b01, lanes=s.values(lambda k: k + 1))
    s.send(1, good, "claimed", "a good packet; the others differ from it in one thing")
    again = good.having(bits=0b10, source=host(W1))
    s.send(2, again.having(cut=1), "malformed", "the last byte is missing")
    for cut in (3, 4, 5, 8):
        s.send(2, again.having(cut=cut), "malformed", f"the last {cut} bytes are missing")
    s.send(2, again.having(cut=4 * s.lanes), "malformed", "all lanes are missing, though the UDP length counts them")
    s.comment("Too short for a header: counted for job 0, because there is none to read.")
    s.send(2, again.having(lanes=None, cut=1), "malformed", "19 bytes of 20")
    s.send(2, again.having(sa=None, lanes=None), "malformed", "an empty datagram")
    s.comment("The slot has seen nothing of all this.")
    s.send(2, again, "completed", "worker 1: 2, 4, 6, ...")
    s.check_counters()
    return s


def forwarding(lanes: int) -> Scenario:
    s = Scenario(
        "forwarding",
        """
        Everything that is not for a switch goes where its IP address lives, as through a bridge: addresses, time to live,
        options and payload stay as they are. What has no route is dropped, and so is what is not IPv4 or ARP.
        """,
        lanes=lanes,
        jobs=[TWO],
        routes=[("10.0.0.1/32", 1), ("10.0.0.2/32", 2), ("10.0.0.100/32", 9), ("10.1.0.0/16", 5), ("10.1.2.0/24", 12)],
    )
    zero, one, server = host(W0), host(W1), host(SERVER)
    s.send(1, Arp(zero, server, 1), None, "who has 10.0.0.100?")
    s.send(9, Arp(server, zero, 2, zero.mac, zero.mac), None, "10.0.0.100 is at 02:00:00:00:00:64")
    s.send(1, Arp(zero, Host("nobody", 0, 0x0A0000FE, 0), 1), None, "who has 10.0.0.254? no route")

    tcp = Packet(zero, one, protocol=6, ttl=7, identification=0x1234, payload=bytes(range(40)))
    s.send(1, tcp, None, "TCP to worker 1, time to live 7")
    s.send(
        1, tcp.having(tos=0xB9, ttl=1), None, "a DSCP, an ECN mark, and a time to live of 1: a bridge counts no hops"
    )
    s.send(1, tcp.having(target=Host("", 2, 0x0A0100FF, 0)), None, "10.1.0.255 is in 10.1.0.0/16")
    s.send(1, tcp.having(target=Host("", 2, 0x0A0102FF, 0)), None, "10.1.2.255 is in 10.1.2.0/24 too, which is longer")
    s.send(1, tcp.having(target=Host("", 2, 0x0A020001, 0)), None, "10.2.0.1: no route")
    s.send(1, tcp.having(ip_checksum=0xDEAD), None, "a wrong checksum")
    s.send(1, tcp.having(options=bytes.fromhex("94040000")), None, "an IP option (router alert)")
    s.send(1, tcp.having(options=bytes.fromhex("94040000"), ip_checksum=0xDEAD), None,
           "an IP option and a wrong checksum: headers with options are not checked, nor changed")  # fmt: skip
    s.send(1, tcp.having(protocol=1, payload=bytes.fromhex("0800f7ff00000000")), None, "an ICMP echo request")

    s.comment("UDP: only port 21313 is looked at, and only whole datagrams.")
    s.send(2, Packet(one, zero, payload=b"hello", udp_checksum=0xBEEF), None, "UDP to worker 0")
    s.send(
        2, Packet(one, server, dst_port=UNUSED_PORT, payload=b"hello", udp_checksum=0xBEEF), None, "another UDP port"
    )
    data = packet_of(W0, TWO, DATA, seq=1, bits=0b01, lanes=s.values(lambda k: k), udp_checksum=0xBEEF)
    s.send(1, data.having(fragment=0x2000), None, "a first fragment, which looks like data")
    s.send(1, data.having(fragment=0x0001), None, "a later fragment")
    s.send(1, data.having(options=bytes.fromhex("94040000")), None, "data with an IP option")

    s.comment("SA-ATP from host to host.")
    body = b'{"type":"join","job":"demo"}'
    s.send(1, Packet(zero, server, sa=Header(kind=CONTROL), payload=body, tos=ECT0, udp_checksum=0xBEEF), None,
           "a control packet of worker 0")  # fmt: skip
    s.send(9, Packet(server, one, sa=Header(kind=PROBE_REPLY, job=3, epoch=2, bits=1, flags=FROM_PS)), None,
           "the parameter server's answer to a probe")  # fmt: skip
    s.send(1, Packet(zero, server, sa=Header(kind=PROBE_REPLY, job=77), udp_checksum=0xBEEF), None,
           "from port 1 to port 21313: still nothing for a switch")  # fmt: skip

    s.comment("Other protocols.")
    s.send(1, Raw(zero, one, 0x86DD, bytes.fromhex("6000000000003b40")), None, "IPv6")
    s.send(1, Raw(zero, one, 0x88CC, bytes.fromhex("0207040200000000010000")), None, "LLDP")
    s.check_counters()
    return s
