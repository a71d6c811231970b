"""The golden scenarios. Each says what it shows; together they hit every row of the verdict table (p4src/core/verdict.p4).

workers 0, 1, 2    10.0.0.1 to .3    UDP 5000 to 5002    ports 1 to 3
parameter server   10.0.0.100        UDP 21313           port 9
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sa_atp.control.jobspec import JobSpec, Member

from .packets import (
    COLLISION,
    CONTROL,
    DATA,
    FAN_OUT,
    FROM_PS,
    ON_BEHALF,
    OVERFLOW,
    PARTIAL,
    PROBE,
    PROBE_REPLY,
    RESEND,
    RESULT,
    Arp,
    Header,
    Host,
    Packet,
    Raw,
)  # fmt: skip
from .scenario import ECT0, Scenario, host, packet_of

LONG_TICKS = 60_000  # a minute: nothing expires in a test
SHORT_TICKS = 20  # less than one `wait`
MAX, MIN = 2**31 - 1, -(2**31)
UNUSED_PORT = 40000


def worker(rank: int, switch_port: int | None = None) -> Member:
    return Member(
        rank=rank,
        ip=f"10.0.0.{rank + 1}",
        udp_port=5000 + rank,
        mac=f"02:00:00:00:00:{rank + 1:02x}",
        switch_port=rank + 1 if switch_port is None else switch_port,
    )


W0, W1, W2 = worker(0), worker(1), worker(2)
SERVER = Member(ip="10.0.0.100", udp_port=21313, mac="02:00:00:00:00:64", switch_port=9)
OTHER_SERVER = Member(ip="10.0.0.101", udp_port=21313, mac="02:00:00:00:00:65", switch_port=10)

TWO = JobSpec(
    job=3, epoch=2, fan_in=0b11, slot_base=256, slot_count=256, group=30, ttl_ticks=LONG_TICKS, level="root",
    members=(W0, W1), parameter_server=SERVER, uplink=SERVER,
)  # fmt: skip
THREE = dataclasses.replace(TWO, fan_in=0b111, members=(W0, W1, W2))
# a leaf with workers 0 and 1; the spine, and the parameter server behind it, are at port 40
LEAF_SERVER = dataclasses.replace(SERVER, switch_port=40)
LEAF = dataclasses.replace(TWO, level="leaf", parameter_server=LEAF_SERVER, uplink=LEAF_SERVER)
LEAF_OF_THREE = dataclasses.replace(LEAF, fan_in=0b111, members=(W0, W1, W2))
# the spine of two leaves with two workers each: workers 0 and 1 are behind port 21, workers 2 and 3 behind port 22
SPINE = dataclasses.replace(
    TWO, fan_in=0b1111, members=(worker(0, 21), worker(1, 21), worker(2, 22), worker(3, 22)), receivers=(0, 2)
)


def aggregate(lanes: int) -> Scenario:
    s = Scenario(
        "aggregate",
        """
        Sums of three workers: the first contribution claims a slot, the next are added, the last completes the sum,
        which goes to all workers and to the parameter server.
        """,
        lanes=lanes,
        jobs=[THREE],
    )
    s.data(
        W1,
        THREE,
        "claimed",
        "worker 1 sends -1, -2, -3, ...",
        seq=7,
        slot=263,
        bits=0b010,
        lanes=s.falling,
    )
    s.data(W0, THREE, "added", "worker 0 sends 1000, 2000, 3000, ...", seq=7, slot=263, bits=0b001,
           lanes=s.values(lambda k: 1000 * (k + 1)))  # fmt: skip
    s.data(W2, THREE, "completed", "worker 2 sends -1 in every lane: the sum is 998, 1997, 2996, ...",
           seq=7, slot=263, bits=0b100, lanes=s.values(lambda _: -1))  # fmt: skip

    s.comment("Two fragments at the same time in neighbouring slots do not touch each other.")
    s.data(W0, THREE, "claimed", "fragment 8", seq=8, slot=264, bits=0b001, lanes=s.values(lambda k: 8 + k))
    s.data(W0, THREE, "claimed", "fragment 9", seq=9, slot=265, bits=0b001, lanes=s.values(lambda k: 9 + k))
    s.data(W1, THREE, "added", "fragment 9", seq=9, slot=265, bits=0b010, lanes=s.values(lambda k: 900 + k))
    s.data(W2, THREE, "added", "fragment 8", seq=8, slot=264, bits=0b100, lanes=s.values(lambda k: 800 + k))
    s.data(W1, THREE, "completed", "fragment 8: 1608, 1611, 1614, ...", seq=8, slot=264, bits=0b010,
           lanes=s.values(lambda k: 800 + k))  # fmt: skip
    s.data(W2, THREE, "completed", "fragment 9: 1009, 1012, 1015, ...", seq=9, slot=265, bits=0b100,
           lanes=s.values(lambda k: 100 + k))  # fmt: skip

    s.comment("The slot of fragment 7, whose sum is complete, is taken by another fragment: no old value is left.")
    s.data(W2, THREE, "claimed", "fragment 256 + 7", seq=263, slot=263, bits=0b100)
    s.data(
        W0, THREE, "completed",
        "a helper sends for itself and for a straggler: two contributions in one packet, and the flag of the last packet "
        "does not stay in the result", seq=263, slot=263, bits=0b011, flags=ON_BEHALF,
    )  # fmt: skip

    s.comment("A packet that brings all contributions is complete at once, and claims the slot for whoever asks again.")
    s.data(W1, THREE, "completed", "all three in one packet", seq=10, slot=266, bits=0b111)
    s.data(W0, THREE, "answered", "worker 0 asks again", seq=10, slot=266, bits=0b001)

    s.comment("Exponent and tag stay as they are; poisoned lanes are up to the receivers: the flag goes with the sum.")
    s.data(W0, THREE, "claimed", "fragment 11, exponent -3", seq=11, slot=267, bits=0b001, exponent=-3, tag=0xAB)
    s.data(W1, THREE, "added", "fragment 11", seq=11, slot=267, bits=0b010, exponent=-3, tag=0xAB)
    s.data(W2, THREE, "completed", "fragment 11, with the overflow flag", seq=11, slot=267, bits=0b100, exponent=-3,
           tag=0xAB, flags=OVERFLOW)  # fmt: skip
    s.check_counters()
    return s


def high_bits() -> Scenario:
    """Contributions in both halves of the bitmap."""
    job = dataclasses.replace(TWO, fan_in=0xC000_0001_8000_0003)
    s = Scenario("high_bits", "Contributions 32 to 63 of the bitmap: both halves count.", jobs=[job])
    s.data(W0, job, "claimed", "contributions 62 and 63", bits=0xC000_0000_0000_0000)
    s.data(W1, job, "added", "contributions 0 and 1", bits=0b11)
    s.data(W0, job, "duplicate", "contribution 63 again, with 31, which is new: not added", bits=0x8000_0000_8000_0000)
    s.data(W1, job, "added", "contribution 31", bits=0x8000_0000)
    s.data(W1, job, "passed up", "contribution 2 is not of this job: passed up unmerged", bits=0b100)
    s.data(W0, job, "passed up", "contribution 33 is not of this job: passed up unmerged", bits=1 << 33)
    s.probe(W0, job, "probed", "the slot tells what it has")
    s.data(W0, job, "completed", "contribution 32 is the last", bits=1 << 32)
    s.check_counters()
    return s


def duplicates() -> Scenario:
    s = Scenario(
        "duplicates",
        """
        Nothing is added twice: what is in already is dropped while the sum is incomplete, and answered with the result
        when it is complete.
        """,
        jobs=[THREE],
    )
    s.data(W0, THREE, "claimed", "worker 0 sends 1, 2, 3, ...", bits=0b001)
    s.data(W0, THREE, "duplicate", "worker 0 again", bits=0b001)
    s.data(W1, THREE, "added", "worker 1", bits=0b010)
    s.data(W2, THREE, "duplicate", "a partly contained packet is dropped whole, though 0x4 is new", bits=0b110)
    s.data(
        W1, THREE, "duplicate", "a helper sends for worker 0, whose contribution is there", bits=0b001, flags=ON_BEHALF
    )
    s.data(W2, THREE, "completed", "worker 2: the sum is 3, 6, 9, ...", bits=0b100)
    s.comment("From now on the slot answers: the result in the form for one receiver, whatever the packet brought.")
    s.data(W1, THREE, "answered", "worker 1 did not get the result", bits=0b010, lanes=s.values(lambda _: 0x7777))
    s.data(W2, THREE, "answered", "worker 2 asks with the resend flag", bits=0b100, flags=RESEND)
    s.data(W0, THREE, "answered", "a helper asks for worker 1", bits=0b010, flags=ON_BEHALF)
    s.data(W0, THREE, "answered", "once more, with other bits of the sum", bits=0b101)
    s.check_counters()
    return s


def collisions(lanes: int) -> Scenario:
    """Slots are shared where quotas overlap, so another job may be the owner too."""
    other = dataclasses.replace(TWO, job=4, epoch=9, group=40, parameter_server=OTHER_SERVER, uplink=OTHER_SERVER)
    s = Scenario(
        "collisions",
        """
        A slot that another fragment holds: the packet is marked and goes to the parameter server of its own job, with its
        values as they were; the slot keeps its owner. Two jobs share the slots here.
        """,
        lanes=lanes,
        jobs=[TWO, other],
    )
    s.data(W0, TWO, "claimed", "the owner: fragment 1 of job 3", seq=1, bits=0b01)
    s.data(W1, TWO, "collision", "another fragment", seq=257, bits=0b10, lanes=s.values(lambda k: -k))
    s.data(W0, TWO, "collision", "another fragment, sent by a helper", seq=257, bits=0b10, flags=ON_BEHALF)
    s.data(W1, TWO, "collision", "another exponent", seq=1, bits=0b10, exponent=1)
    s.data(W1, TWO, "collision", "another tag", seq=1, bits=0b10, tag=1)
    s.data(W0, other, "collision", "another job", seq=1, bits=0b01)
    s.data(W0, other, "collision", "another job, all contributions at once", seq=1, bits=0b11)
    s.data(W1, TWO, "completed", "the owner has not lost anything: 2, 4, 6, ...", seq=1, bits=0b10)
    s.data(W0, other, "claimed", "the sum is complete, so the slot is free for others", seq=1, bits=0b01)
    s.data(W1, TWO, "collision", "and its first owner has to go to the parameter server", seq=1, bits=0b10)
    s.check_counters()
    return s


def resends(lanes: int) -> Scenario:
    s = Scenario(
        "resends",
        """
        The resend flag: what the slot holds of this fragment leaves as a partial sum for the next level, with the packet's
        values where they could be added; where the slot holds nothing of the fragment, the packet passes up as it is.
        """,
        lanes=lanes,
        jobs=[THREE],
    )
    s.data(
        W0,
        THREE,
        "passed up",
        "the slot is free: the packet passes, claims nothing",
        seq=1,
        bits=0b001,
        flags=RESEND,
    )
    s.data(W0, THREE, "claimed", "so this is the first contribution: -1, -2, ...", seq=1, bits=0b001, lanes=s.falling)
    s.data(W1, THREE, "handed over", "worker 1's values could be added: 999, 1998, ... leave, with both bits", seq=1,
           bits=0b010, flags=RESEND, lanes=s.values(lambda k: 1000 * (k + 1)))  # fmt: skip
    s.data(W2, THREE, "claimed", "the slot is free now: -1, -2, ...", seq=1, bits=0b100, lanes=s.falling)
    s.data(W2, THREE, "handed over", "worker 2's values were in already: the slot leaves, not the packet", seq=1,
           bits=0b100, flags=RESEND, lanes=s.values(lambda _: 0x7777))  # fmt: skip
    s.data(W2, THREE, "passed up", "the next resend finds nothing, and passes by itself", seq=1, bits=0b100, flags=RESEND,
           lanes=s.values(lambda _: 0x7777))  # fmt: skip

    s.comment("A partly contained resend: the slot leaves, the packet's own new contribution has to be sent again.")
    s.data(W0, THREE, "claimed", "fragment 2", seq=2, bits=0b001)
    s.data(W1, THREE, "handed over", "a helper resends 0x1 and 0x2", seq=2, bits=0b011, flags=RESEND | ON_BEHALF,
           lanes=s.values(lambda _: 5))  # fmt: skip

    s.comment("A resend that completes the sum is as good as any other packet.")
    s.data(W0, THREE, "claimed", "fragment 3", seq=3, bits=0b001, lanes=s.falling)
    s.data(W1, THREE, "added", "fragment 3", seq=3, bits=0b010, lanes=s.falling)
    s.data(W2, THREE, "completed", "-3, -6, -9, ... to everyone", seq=3, bits=0b100, flags=RESEND, lanes=s.falling)
    s.data(W2, THREE, "answered", "and again, to one", seq=3, bits=0b100, flags=RESEND)
    s.data(
        W0,
        THREE,
        "answered",
        "with the collision flag of a first attempt",
        seq=3,
        bits=0b001,
        flags=RESEND | COLLISION,
    )

    s.comment("Another fragment holds the slot: a resend passes without a mark, and the slot keeps its owner.")
    s.data(W0, THREE, "claimed", "fragment 4", seq=4, bits=0b001)
    s.data(W1, THREE, "passed up", "fragment 5", seq=5, bits=0b010, flags=RESEND)
    s.data(W1, THREE, "added", "fragment 4 goes on", seq=4, bits=0b010)
    s.data(W2, THREE, "completed", "fragment 4: 3, 6, 9, ...", seq=4, bits=0b100)
    s.check_counters()
    return s


def evictions(lanes: int) -> Scenario:
    """Time passes only where `wait` says so: a packet that finds an idle slot must come after one."""
    patient = dataclasses.replace(TWO, job=3, ttl_ticks=LONG_TICKS)
    hasty = dataclasses.replace(
        TWO, job=4, epoch=9, group=40, ttl_ticks=SHORT_TICKS, parameter_server=OTHER_SERVER, uplink=OTHER_SERVER
    )
    s = Scenario(
        "evictions",
        """
        A slot whose owner was idle for longer than the time to live of the arriving packet's job: the packet takes it, and
        the old sum leaves as a partial sum, under its own name, towards its own parameter server. Two jobs share the slots:
        job 3 waits for a minute, job 4 for 20 ticks.
        """,
        lanes=lanes,
        jobs=[patient, hasty],
    )
    s.data(W0, patient, "claimed", "job 3 sends -1, -2, -3, ...", seq=1, exponent=-2, tag=7, bits=0b01,
           lanes=s.falling)  # fmt: skip
    s.wait("A tenth of a second.")
    s.data(W1, patient, "collision", "job 3 is patient: not long enough", seq=2, bits=0b10)
    s.data(W0, hasty, "evicted", "job 4 is not: it takes the slot, and -1, -2, -3, ... go to the server of job 3", seq=5,
           bits=0b01, flags=ON_BEHALF)  # fmt: skip
    s.data(W1, hasty, "completed", "job 4 has its sum: 2, 4, 6, ...", seq=5, bits=0b10)
    s.comment("The old owner finds the complete sum of another fragment, and starts again.")
    s.data(W1, patient, "claimed", "job 3, fragment 1", seq=1, exponent=-2, tag=7, bits=0b10)
    s.wait("A tenth of a second.")
    s.data(W1, hasty, "evicted", "all contributions at once: the old sum leaves first, in this packet", seq=6, bits=0b11,
           lanes=s.values(lambda k: -5 - k))  # fmt: skip
    s.data(W0, hasty, "answered", "so the complete sum is served when its sender asks again", seq=6, bits=0b01)
    s.data(W0, hasty, "claimed", "fragment 7", seq=7, bits=0b01)
    s.wait("A tenth of a second.")
    s.comment(
        "Neither a resend nor a probe takes a slot, however long it was idle; a contribution of its owner keeps it."
    )
    s.data(W1, hasty, "passed up", "a resend of fragment 8", seq=8, bits=0b10, flags=RESEND)
    s.probe(W1, hasty, "probed", "a probe of fragment 8", seq=8)
    s.data(W1, hasty, "completed", "fragment 7 goes on", seq=7, bits=0b10)
    s.check_counters()
    return s


def probes() -> Scenario:
    s = Scenario(
        "probes",
        """
        A probe comes back with the contributions that the slot holds of its fragment; where it holds none the probe goes on
        to the parameter server. It changes nothing.
        """,
        jobs=[THREE],
    )
    s.probe(W0, THREE, "probed", "the slot is free", seq=1)
    s.data(W0, THREE, "claimed", "worker 0", seq=1, bits=0b001)
    s.probe(W2, THREE, "probed", "only worker 0 is there", seq=1)
    s.probe(W2, THREE, "probed", "a probe about another fragment", seq=2)
    s.data(W2, THREE, "added", "worker 2", seq=1, bits=0b100)
    s.probe(
        W0,
        THREE,
        "probed",
        "worker 1 is missing; the bits of the probe do not matter",
        seq=1,
        bits=0b111,
    )
    s.data(W1, THREE, "completed", "worker 1", seq=1, bits=0b010)
    s.probe(W1, THREE, "probed", "all are there", seq=1)
    s.check_counters()
    return s


def fan_out() -> Scenario:
    s = Scenario(
        "fan_out",
        """
        The parameter server has finished a sum: its result is copied to all members, and what the slot holds of the
        fragment is forgotten. Nobody else may have a result copied. A result for one receiver passes like other traffic.
        """,
        jobs=[TWO],
        routes=[("10.0.0.1/32", 1), ("10.0.0.2/32", 2), ("10.0.0.100/32", 9)],
    )
    s.data(W0, TWO, "claimed", "worker 0, fragment 1", seq=1, bits=0b01)
    s.result(TWO, "fanned out", "the parameter server has the sum", seq=1, flags=FAN_OUT | FROM_PS | COLLISION)
    s.probe(W0, TWO, "probed", "the slot has forgotten fragment 1", seq=1)
    s.data(W1, TWO, "claimed", "fragment 2", seq=2, bits=0b10)
    s.result(TWO, "fanned out", "a result of fragment 1 leaves fragment 2 alone", seq=1, flags=FAN_OUT | FROM_PS)
    s.data(W0, TWO, "completed", "fragment 2: 2, 4, 6, ...", seq=2, bits=0b01)
    s.result(TWO, "fanned out", "a result does not undo a complete sum", seq=2, flags=FAN_OUT | FROM_PS)
    s.data(W0, TWO, "answered", "which is served as before", seq=2, bits=0b01)
    s.data(W0, TWO, "claimed", "fragment 3", seq=3, bits=0b01)
    s.send(1, packet_of(W0, TWO, RESULT, seq=3, bits=0b11, flags=FAN_OUT, lanes=s.values(lambda _: 0)), "foreign",
           "a worker may not have a result copied")  # fmt: skip
    s.data(W1, TWO, "completed", "so fragment 3 is still there", seq=3, bits=0b10)
    s.send(9, packet_of(SERVER, TWO, RESULT, seq=4, bits=0b11, flags=FROM_PS, lanes=s.values(lambda k: k)).having(
        target=host(W1)), None, "a result for one worker: like other traffic")  # fmt: skip
    s.check_counters()
    return s


def admission() -> Scenario:
    other = dataclasses.replace(TWO, job=4, epoch=9, slot_base=512, group=40, members=(W1, W2))
    s = Scenario(
        "admission",
        """
        Packets that a switch does not take: of others than the job's members, of another epoch, for slots of another job,
        and malformed ones. Each is counted and dropped, and changes nothing.
        """,
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
    s.send(2, again.having(lanes=again.lanes[:-1]), "malformed", "one lane too few")
    s.send(2, again.having(lanes=(*again.lanes, 0)), "malformed", "one lane too many")
    s.send(2, again.having(cut=1), "malformed", "the last byte is missing")
    s.send(2, again.having(cut=4 * s.lanes), "malformed", "all lanes are missing, though the UDP length counts them")
    s.send(2, again.having(lanes=None), "malformed", "data without lanes")
    s.send(2, again.having(kind=PROBE), "malformed", "a probe with lanes")
    s.send(9, packet_of(SERVER, TWO, RESULT, seq=1, bits=0b11, flags=FAN_OUT), "malformed", "a result without lanes")
    s.comment("Too short for a header: counted for job 0, because there is none to read.")
    s.send(2, again.having(lanes=None, cut=1), "malformed", "19 bytes of 20")
    s.send(2, again.having(sa=None, lanes=None), "malformed", "an empty datagram")
    s.comment("A wrong checksum in the IPv4 header: dropped before anybody looks further.")
    s.send(2, again.having(ip_checksum=0x1234), None, "not counted")

    s.comment("The slot has seen nothing of all this.")
    s.send(2, again, "completed", "worker 1: 2, 4, 6, ...")
    s.check_counters()
    return s


def leaf() -> Scenario:
    s = Scenario(
        "leaf",
        """
        A leaf switch with two of the job's workers: its complete sum goes up as one packet, as if one worker had sent it,
        from port 40. A result of the level above comes by that port and is copied to the two workers.
        """,
        jobs=[LEAF],
    )
    s.data(W0, LEAF, "claimed", "worker 0", seq=1, bits=0b01)
    s.data(W0, LEAF, "passed up", "worker 1's, by a helper: for the last level", seq=1, bits=0b10, flags=ON_BEHALF)
    s.data(W1, LEAF, "completed", "worker 1: 2, 4, 6, ... go up", seq=1, bits=0b10)
    s.data(W1, LEAF, "answered", "worker 1 again: the sum goes up again, so the level above answers", seq=1, bits=0b10)
    s.data(W0, LEAF, "answered", "with the resend flag, which the level above sees too", seq=1, bits=0b01, flags=RESEND)
    s.probe(W0, LEAF, "probed", "complete here says nothing of the others: the probe goes up", seq=1)
    s.data(W0, LEAF, "completed", "both contributions in one packet", seq=2, slot=258, bits=0b11)
    s.data(W0, LEAF, "claimed", "fragment 3", seq=3, slot=259, bits=0b01)
    s.probe(W1, LEAF, "probed", "an incomplete sum: the leaf answers", seq=3, slot=259)
    s.data(W0, LEAF, "duplicate", "worker 0 again", seq=3, slot=259, bits=0b01)
    s.data(W1, LEAF, "completed", "a resend that completes", seq=3, slot=259, bits=0b10, flags=RESEND)
    s.data(W0, LEAF, "passed up", "a helper sends for a worker of another leaf: contribution 0x4 passes", seq=3, slot=259,
           bits=0b100, flags=ON_BEHALF)  # fmt: skip
    s.data(W0, LEAF, "passed up", "own and foreign contributions in one packet pass too", seq=4, slot=260, bits=0b101)
    s.data(W1, LEAF, "claimed", "fragment 4", seq=4, slot=260, bits=0b10)
    s.data(W1, LEAF, "collision", "another fragment in its slot", seq=5, slot=260, bits=0b10)
    s.data(W0, LEAF, "claimed", "fragment 7", seq=7, slot=263, bits=0b01)
    s.result(LEAF, "fanned out", "the level above has the sum of all: a copy for each worker here", seq=7, slot=263,
             bits=0b1111, flags=FAN_OUT)  # fmt: skip
    s.probe(W0, LEAF, "probed", "the slot has forgotten fragment 7", seq=7, slot=263)
    s.check_counters()
    return s


def leaf_resends() -> Scenario:
    s = Scenario(
        "leaf_resends",
        """
        The resend flag at a leaf with three workers: an incomplete sum leaves for the level above, as a partial sum.
        """,
        jobs=[LEAF_OF_THREE],
    )
    job = LEAF_OF_THREE
    s.data(W0, job, "claimed", "worker 0", seq=1, bits=0b001)
    s.data(W1, job, "handed over", "worker 1's values could be added", seq=1, bits=0b010, flags=RESEND)
    s.data(W1, job, "passed up", "nothing is left here", seq=1, bits=0b010, flags=RESEND)
    s.data(W2, job, "claimed", "fragment 2", seq=2, bits=0b100)
    s.data(W2, job, "handed over", "worker 2's values were in already", seq=2, bits=0b100, flags=RESEND)
    s.data(W1, job, "passed up", "a helper's, for worker 0, with the resend flag", seq=2, bits=0b001,
           flags=RESEND | ON_BEHALF)  # fmt: skip
    s.data(W2, job, "claimed", "a packet without the flag starts anew", seq=2, bits=0b100)
    s.data(W1, job, "added", "worker 1", seq=2, bits=0b010)
    s.data(W0, job, "completed", "a resend that completes goes up as any complete sum", seq=2, bits=0b001, flags=RESEND)
    s.check_counters()
    return s


def spine() -> Scenario:
    """What comes from a leaf comes in the name of a worker behind it."""
    w0, w1, w2, w3 = SPINE.members
    s = Scenario(
        "spine",
        """
        The switch above two leaves: each sends the sum of its workers as one packet. The result goes once to each leaf,
        addressed to a worker there, at the port that switches listen to; the leaf makes the copies.
        """,
        jobs=[SPINE],
    )
    s.data(w0, SPINE, "claimed", "the sum of leaf 0", seq=1, bits=0b0011)
    s.data(w2, SPINE, "completed", "the sum of leaf 1", seq=1, bits=0b1100, lanes=s.values(lambda k: 100 * k))
    s.data(w2, SPINE, "answered", "leaf 1 did not get the result", seq=1, bits=0b1100)
    s.data(w1, SPINE, "claimed", "fragment 2: one contribution that leaf 0 did not sum", seq=2, bits=0b0010)
    s.data(w3, SPINE, "added", "a helper's, for worker 0, by way of leaf 1", seq=2, bits=0b0001, flags=ON_BEHALF)
    s.probe(w0, SPINE, "probed", "leaf 1 is missing", seq=2)
    s.data(w2, SPINE, "completed", "the sum of leaf 1", seq=2, bits=0b1100)
    s.check_counters()
    return s


def saturation() -> Scenario:
    s = Scenario(
        "saturation",
        """
        Sums stop at the bounds of a signed 32-bit number; they never wrap. What has stopped at a bound is added to as any
        other number, so the order of the packets matters there, and receivers can tell.
        """,
        jobs=[THREE],
    )
    sets = [
        ("claimed", W0, 0b001, [MAX, MAX, MIN, MIN, MAX, MIN, 1, -1, 0, 0x40000000, -0x40000000, MAX - 1]),
        ("added", W1, 0b010, [1, MAX, -1, MIN, MIN, MAX, MAX, MIN, MAX, 0x40000000, -0x40000000, 1]),
        ("completed", W2, 0b100, [-1, -1, 1, 1, 1, -1, -1, 1, MIN, 0x40000000, -0x40000001, -1]),
    ]
    for event, sender, bits, first in sets:
        shown = ", ".join(str(v) for v in first)
        s.data(sender, THREE, event, f"worker {sender.rank} sends {shown}, then zeroes", bits=bits,
               lanes=s.values(lambda k, first=first: first[k] if k < len(first) else 0))  # type: ignore[misc]  # fmt: skip
    s.data(W0, THREE, "answered", "the slot keeps what it sent", bits=0b001)
    s.check_counters()
    return s


def forwarding() -> Scenario:
    s = Scenario(
        "forwarding",
        """
        Everything that is not for a switch goes where its IP address lives, as through a bridge: addresses, time to live,
        options and payload stay as they are. What has no route is dropped, and so is what is not IPv4 or ARP.
        """,
        jobs=[TWO],
        routes=[("10.0.0.1/32", 1), ("10.0.0.2/32", 2), ("10.0.0.100/32", 9), ("10.1.0.0/16", 5), ("10.1.2.0/24", 6)],
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


def partials() -> Scenario:
    """Partial sums that arrive from elsewhere."""
    s = Scenario(
        "partials",
        "Partial sums, which left a slot of the level below or of an earlier time, are contributions like any other.",
        jobs=[THREE],
    )
    s.data(W0, THREE, "claimed", "worker 0", seq=1, bits=0b001)
    s.data(W1, THREE, "duplicate", "a partial sum that overlaps", seq=1, bits=0b011, flags=PARTIAL)
    s.data(
        W1, THREE, "completed", "a partial sum that fits: the result is not partial", seq=1, bits=0b110, flags=PARTIAL
    )
    s.data(W2, THREE, "answered", "the same sum once more", seq=1, bits=0b110, flags=PARTIAL)
    s.data(W1, THREE, "claimed", "a partial sum for a free slot", seq=2, slot=258, bits=0b010, flags=PARTIAL)
    s.data(W2, THREE, "handed over", "with the resend flag it empties the slot", seq=2, slot=258, bits=0b100,
           flags=PARTIAL | RESEND)  # fmt: skip
    s.data(W2, THREE, "passed up", "and then passes", seq=2, slot=258, bits=0b100, flags=PARTIAL | RESEND)
    s.probe(W1, THREE, "probed", "the slot is free", seq=2, slot=258)
    s.check_counters()
    return s


# file name: scenario
ALL: dict[str, Callable[[], Scenario]] = {
    "aggregate": lambda: aggregate(64),
    "high_bits": high_bits,
    "duplicates": duplicates,
    "collisions": lambda: collisions(64),
    "resends": lambda: resends(64),
    "evictions": lambda: evictions(64),
    "probes": probes,
    "fan_out": fan_out,
    "admission": admission,
    "leaf": leaf,
    "leaf_resends": leaf_resends,
    "spine": spine,
    "saturation": saturation,
    "forwarding": forwarding,
    "partials": partials,
    "aggregate_256": lambda: aggregate(256),
    "collisions_256": lambda: collisions(256),
    "resends_256": lambda: resends(256),
    "evictions_256": lambda: evictions(256),
}
