"""Scenarios of one switch and its slots: what happens to contributions."""

import dataclasses

from .packets import COLLISION, FAN_OUT, ON_BEHALF, OVERFLOW, PARTIAL, RESEND
from .scenario import Scenario
from .sites import LONG_TICKS, MAX, MIN, OTHER_SERVER, SHORT_TICKS, THREE, TWO, W0, W1, W2


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


def high_bits(lanes: int) -> Scenario:
    """Contributions in both halves of the bitmap."""
    job = dataclasses.replace(TWO, fan_in=0xC000_0001_8000_0003)
    s = Scenario("high_bits", "Contributions 32 to 63 of the bitmap: both halves count.", lanes=lanes, jobs=[job])
    s.data(W0, job, "claimed", "contributions 62 and 63", bits=0xC000_0000_0000_0000)
    s.data(W1, job, "added", "contributions 0 and 1", bits=0b11)
    s.data(W0, job, "duplicate", "contribution 63 again", bits=1 << 63)
    s.data(W1, job, "duplicate", "contribution 1 again", bits=0b10)
    s.data(W1, job, "added", "contribution 31", bits=0x8000_0000)
    s.data(W1, job, "passed up", "contribution 2 is not of this job: passed up unmerged", bits=0b100)
    s.data(W0, job, "passed up", "contribution 33 is not of this job: passed up unmerged", bits=1 << 33)
    s.probe(W0, job, "probed", "the slot tells what it has")
    s.data(W0, job, "completed", "contribution 32 is the last", bits=1 << 32)
    s.check_counters()
    return s


def duplicates(lanes: int) -> Scenario:
    s = Scenario(
        "duplicates",
        """
        Nothing is added twice: what is in already is dropped while the sum is incomplete, and answered with the result
        when it is complete.
        """,
        lanes=lanes,
        jobs=[THREE],
    )
    s.data(W0, THREE, "claimed", "worker 0 sends 1, 2, 3, ...", bits=0b001)
    s.data(W0, THREE, "duplicate", "worker 0 again", bits=0b001)
    s.data(W1, THREE, "added", "worker 1", bits=0b010)
    s.data(
        W1, THREE, "duplicate", "a helper sends for worker 0, whose contribution is there", bits=0b001, flags=ON_BEHALF
    )
    s.data(W2, THREE, "completed", "worker 2: the sum is 3, 6, 9, ...", bits=0b100)
    s.comment("From now on the slot answers: the result in the form for one receiver, whatever the packet brought.")
    s.data(W1, THREE, "answered", "worker 1 did not get the result", bits=0b010, lanes=s.values(lambda _: 0x7777))
    s.data(W0, THREE, "answered", "a helper asks for worker 1", bits=0b010, flags=ON_BEHALF)
    s.data(W0, THREE, "answered", "once more, with other bits of the sum", bits=0b101)
    s.data(W2, THREE, "answered", "worker 2 asks with the resend flag", bits=0b100, flags=RESEND)

    s.comment("A partly contained packet is dropped whole, and its new contribution is refused from then on: it was "
              "offered. A resend gets things going again.")  # fmt: skip
    s.data(W1, THREE, "claimed", "fragment 2: worker 1", seq=2, slot=258, bits=0b010)
    s.data(W2, THREE, "duplicate", "worker 1's and worker 2's", seq=2, slot=258, bits=0b110)
    s.data(W2, THREE, "duplicate", "worker 2's alone", seq=2, slot=258, bits=0b100)
    s.probe(W2, THREE, "probed", "the slot says that it is not in", seq=2, slot=258)
    s.data(W0, THREE, "added", "worker 0", seq=2, slot=258, bits=0b001)
    s.data(W2, THREE, "handed over", "worker 2 resends: the sum of the others leaves", seq=2, slot=258, bits=0b100,
           flags=RESEND)  # fmt: skip
    s.data(W2, THREE, "passed up", "and then worker 2's values", seq=2, slot=258, bits=0b100, flags=RESEND)
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
    s.data(W0, other, "collision", "another job", seq=7, bits=0b01)
    s.data(W0, other, "collision", "another job, all contributions at once", seq=7, bits=0b11)
    s.data(W1, TWO, "completed", "the owner has not lost anything: 2, 4, 6, ...", seq=1, bits=0b10)
    s.data(W0, other, "claimed", "the sum is complete, so the slot is free for others", seq=7, bits=0b01)
    s.data(W1, TWO, "collision", "and its first owner has to go to the parameter server", seq=1, bits=0b10)

    s.comment(
        "Strangers of the same number: nothing is added to the owner's sum, but what they bring counts as offered."
    )
    s.data(W0, TWO, "claimed", "fragment 2", seq=2, slot=258, bits=0b01)
    s.data(W1, TWO, "collision", "another exponent", seq=2, slot=258, bits=0b10, exponent=1)
    s.data(W1, TWO, "collision", "another tag", seq=2, slot=258, bits=0b10, tag=1)
    s.data(W0, other, "collision", "another job", seq=2, slot=258, bits=0b01)
    s.data(W1, TWO, "duplicate", "so the owner's next contribution is refused", seq=2, slot=258, bits=0b10)
    s.data(W1, TWO, "handed over", "until it resends", seq=2, slot=258, bits=0b10, flags=RESEND)
    s.data(W1, TWO, "collision", "nothing is left here for fragment 2", seq=2, slot=258, bits=0b10)
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
    s.data(W2, THREE, "collision", "fragment 1 is over here: what still comes passes up, marked", seq=1, bits=0b100,
           lanes=s.falling)  # fmt: skip
    s.data(W2, THREE, "passed up", "a resend passes without a mark", seq=1, bits=0b100, flags=RESEND, lanes=s.falling)
    s.data(W2, THREE, "claimed", "another fragment takes the slot: -1, -2, ...", seq=257, bits=0b100, lanes=s.falling)
    s.data(W2, THREE, "handed over", "worker 2's values were in already: the slot leaves, not the packet", seq=257,
           bits=0b100, flags=RESEND, lanes=s.values(lambda _: 0x7777))  # fmt: skip
    s.data(W2, THREE, "passed up", "the next resend finds nothing, and passes by itself", seq=257, bits=0b100, flags=RESEND,
           lanes=s.values(lambda _: 0x7777))  # fmt: skip

    s.comment("A partly contained resend: the slot leaves, the packet's own new contribution has to be sent again.")
    s.data(W0, THREE, "claimed", "fragment 2", seq=2, bits=0b001)
    s.data(W1, THREE, "handed over", "a helper resends 0x1 and 0x2", seq=2, bits=0b011, flags=RESEND | ON_BEHALF,
           lanes=s.values(lambda _: 5))  # fmt: skip

    s.comment("A resend that completes the sum is as good as any other packet.")
    s.data(W0, THREE, "claimed", "fragment 3", seq=3, bits=0b001, lanes=s.falling)
    s.data(W1, THREE, "added", "fragment 3", seq=3, bits=0b010, lanes=s.falling)
    s.data(W2, THREE, "completed", "-3, -6, -9, ... to everyone", seq=3, bits=0b100, flags=RESEND, lanes=s.falling)
    s.data(W2, THREE, "passed up", "but the slot has given it up: who missed it asks the next level", seq=3, bits=0b100,
           flags=RESEND)  # fmt: skip
    s.comment("A resend that finds a complete sum gets it, and the slot gives it up, too.")
    s.data(W0, THREE, "completed", "fragment 6, all at once", seq=6, bits=0b111)
    s.data(W0, THREE, "answered", "with the collision flag of a first attempt", seq=6, bits=0b001,
           flags=RESEND | COLLISION)  # fmt: skip
    s.data(W1, THREE, "collision", "worker 1 asks the next level", seq=6, bits=0b010)

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
    s.check_counters()
    return s


def lapses(lanes: int) -> Scenario:
    """Whatever the time to live is, a `wait` is longer, on every target."""
    one = dataclasses.replace(TWO, job=3, ttl_ticks=SHORT_TICKS)
    other = dataclasses.replace(
        TWO, job=4, epoch=9, group=40, ttl_ticks=SHORT_TICKS, parameter_server=OTHER_SERVER, uplink=OTHER_SERVER
    )
    s = Scenario(
        "lapses",
        """
        What may become of a slot that was idle for longer than the time to live: anybody claims it; nothing else takes it.
        Two jobs share the slots.
        """,
        lanes=lanes,
        jobs=[one, other],
    )
    s.data(W0, one, "claimed", "job 3 sends -1, -2, -3, ...", seq=1, exponent=-2, tag=7, bits=0b01,
           lanes=s.falling)  # fmt: skip
    s.data(W0, other, "collision", "job 4 finds it in use", seq=4, bits=0b01)
    s.wait("Longer than the time to live.")
    s.data(
        W0, other, "evicted", "job 4 takes the slot, and -1, -2, -3, ... go to the server of job 3", seq=5, bits=0b01
    )
    s.data(W1, one, "collision", "now job 3 finds it in use", seq=2, bits=0b10)
    s.data(W1, other, "completed", "job 4 has its sum: 2, 4, 6, ...", seq=5, bits=0b10)
    s.comment("The old owner finds the complete sum of another fragment, and starts again.")
    s.data(W1, one, "claimed", "job 3, fragment 1", seq=1, exponent=-2, tag=7, bits=0b10)
    s.wait("Longer than the time to live.")
    s.data(W1, other, "completed", "all contributions at once: the packet has its own sum to carry, and the old one is "
           "lost; its senders send again", seq=6, bits=0b11, lanes=s.values(lambda k: -5 - k))  # fmt: skip
    s.data(W0, other, "answered", "the complete sum is served when somebody asks again", seq=6, bits=0b01)
    s.wait("Longer than the time to live.")
    s.data(W0, other, "answered", "also when time has passed, as long as nobody has claimed the slot", seq=6, bits=0b01)
    s.data(W0, other, "claimed", "fragment 7", seq=7, bits=0b01)
    s.wait("Longer than the time to live.")
    s.comment(
        "Neither a resend nor a probe takes a slot, however long it was idle; a contribution of its owner keeps it."
    )
    s.data(W1, other, "passed up", "a resend of fragment 8", seq=8, bits=0b10, flags=RESEND)
    s.probe(W1, other, "probed", "a probe of fragment 8", seq=8)
    s.data(W1, other, "completed", "fragment 7 goes on", seq=7, bits=0b10)
    s.comment("An incomplete sum that was idle twice as long.")
    s.data(W0, other, "claimed", "fragment 9", seq=9, bits=0b01)
    s.wait("Longer than the time to live.")
    s.wait("And again.")
    s.data(W0, one, "evicted", "job 3 takes the slot", seq=3, bits=0b01)
    s.check_counters()
    return s


def probes(lanes: int) -> Scenario:
    s = Scenario(
        "probes",
        """
        A probe comes back with the contributions that the slot holds of its fragment; where it holds none the probe goes on
        to the parameter server. It changes nothing.
        """,
        lanes=lanes,
        jobs=[THREE],
    )
    number = FAN_OUT, OVERFLOW, COLLISION, PARTIAL
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
    s.probe(W1, THREE, "probed", "the number of the question comes back", seq=1, flags=sum(number))
    s.probe(W1, THREE, "probed", "and goes on", seq=2, flags=sum(number))
    for flag in number:
        s.probe(W0, THREE, "probed", "each bit of it", seq=1, flags=flag)
    s.check_counters()
    return s


def saturation(lanes: int) -> Scenario:
    s = Scenario(
        "saturation",
        """
        Sums stop at the bounds of a signed 32-bit number; they never wrap. What has stopped at a bound is added to as any
        other number, so the order of the packets matters there, and receivers can tell.
        """,
        lanes=lanes,
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
