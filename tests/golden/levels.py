"""Scenarios of switches that are one of two levels, and of sums that come from another level."""

from .packets import COLLISION, FAN_OUT, FROM_PS, ON_BEHALF, OVERFLOW, PARTIAL, RESEND, RESULT
from .scenario import Scenario, host, packet_of
from .sites import (
    LEAF,
    LEAF_OF_THREE,
    SCATTERED,
    SCATTERED_LEAF,
    SCATTERED_UNEVEN,
    SERVER,
    SPINE,
    THREE,
    TWO,
    UNEVEN,
    W0,
    W1,
    W2,
)


def leaf(lanes: int) -> Scenario:
    s = Scenario(
        "leaf",
        """
        A leaf switch with two of the job's workers: its complete sum goes up as one packet, as if one worker had sent it,
        from port 40. A result of the level above comes by that port and is copied to the two workers.
        """,
        lanes=lanes,
        jobs=[LEAF],
    )
    s.data(W0, LEAF, "claimed", "worker 0", seq=1, bits=0b01)
    s.data(W0, LEAF, "passed up", "worker 1's, by a helper: for the last level", seq=1, bits=0b10, flags=ON_BEHALF)
    s.data(W1, LEAF, "completed", "worker 1: 2, 4, 6, ... go up", seq=1, bits=0b10)
    s.data(W1, LEAF, "answered", "worker 1 again: the sum goes up again, so the level above answers", seq=1, bits=0b10)
    s.data(W0, LEAF, "answered", "with the resend flag, which the level above sees too", seq=1, bits=0b01, flags=RESEND)
    s.probe(W0, LEAF, "probed", "complete here says nothing of the others: the probe goes up", seq=1)
    s.probe(
        W0, LEAF, "probed", "with the number of the question", seq=1, flags=FAN_OUT | OVERFLOW | COLLISION | PARTIAL
    )
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


def leaf_resends(lanes: int) -> Scenario:
    s = Scenario(
        "leaf_resends",
        """
        The resend flag at a leaf with three workers: an incomplete sum leaves for the level above, as a partial sum.
        """,
        lanes=lanes,
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
    s.data(W2, job, "collision", "fragment 2 is over here, also for packets without the flag", seq=2, bits=0b100)
    s.data(W1, job, "collision", "of all workers: the level above adds them", seq=2, bits=0b010)
    s.data(W2, job, "claimed", "fragment 3", seq=3, slot=259, bits=0b100)
    s.data(W1, job, "added", "worker 1", seq=3, slot=259, bits=0b010)
    s.data(W0, job, "completed", "a resend that completes goes up as any complete sum", seq=3, slot=259, bits=0b001,
           flags=RESEND)  # fmt: skip
    s.check_counters()
    return s


def spine(lanes: int) -> Scenario:
    """What comes from a leaf comes in the name of a worker behind it."""
    w0, w1, w2, w3 = SPINE.members
    s = Scenario(
        "spine",
        """
        The switch above two leaves: each sends the sum of its workers as one packet. The result goes once to each leaf,
        addressed to a worker there, at the port that switches listen to; the leaf makes the copies.
        """,
        lanes=lanes,
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


def uneven(lanes: int) -> Scenario:
    """A leaf needs its copy where it has one worker, too: or its slots would stay taken."""
    w0, _, w2, w3 = UNEVEN.members
    s = Scenario(
        "uneven",
        """
        The switch above a leaf with two workers and a leaf with one; a fourth worker is attached to the switch itself.
        Leaves get the result at the port that switches listen to, the fourth worker at its own.
        """,
        lanes=lanes,
        jobs=[UNEVEN],
    )
    s.data(w0, UNEVEN, "claimed", "the sum of leaf 0", seq=1, bits=0b0011)
    s.data(w3, UNEVEN, "added", "the worker that has no leaf", seq=1, bits=0b1000)
    s.data(w2, UNEVEN, "completed", "the sum of leaf 1, of one worker", seq=1, bits=0b0100)
    s.data(w2, UNEVEN, "answered", "leaf 1 did not get the result", seq=1, bits=0b0100)
    s.check_counters()
    return s


def partials(lanes: int) -> Scenario:
    """Partial sums that arrive from elsewhere."""
    s = Scenario(
        "partials",
        "Partial sums, which left a slot of the level below or of an earlier time, are contributions like any other.",
        lanes=lanes,
        jobs=[THREE],
    )
    s.data(W0, THREE, "claimed", "worker 0", seq=1, bits=0b001)
    s.data(W1, THREE, "duplicate", "a partial sum that is in already", seq=1, bits=0b001, flags=PARTIAL)
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


def fan_out(lanes: int) -> Scenario:
    s = Scenario(
        "fan_out",
        """
        The parameter server has finished a sum: its result is copied to all members, and what the slot holds of the
        fragment is forgotten. Nobody else may have a result copied. A result for one receiver passes like other traffic.
        """,
        lanes=lanes,
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


def scattered(lanes: int) -> Scenario:
    job = SCATTERED
    s = Scenario(
        "scattered",
        """
        Results that one of three workers needs, by the slot: the others get the header alone. The parameter server gets
        them whole, and so does a worker that asks again.
        """,
        lanes=lanes,
        jobs=[job],
    )
    for slot, whose in ((256, "worker 0's"), (287, "worker 0's"), (288, "worker 1's"), (320, "worker 2's"),
                        (352, "everybody's"), (383, "everybody's"), (384, "worker 0's"), (511, "everybody's")):  # fmt: skip
        s.data(W0, job, "claimed", f"{whose}: worker 0", seq=slot, slot=slot, bits=0b001)
        s.data(W1, job, "added", "worker 1", seq=slot, slot=slot, bits=0b010, lanes=s.falling)
        s.data(W2, job, "completed", "worker 2", seq=slot, slot=slot, bits=0b100)
    s.data(
        W0, job, "answered", "worker 0 has had no result of worker 1's: it gets a whole one", seq=288, slot=288, bits=1
    )
    s.data(W0, job, "claimed", "fragment 321", seq=321, slot=321, bits=0b001)
    s.data(W1, job, "handed over", "with the resend flag", seq=321, slot=321, bits=0b010, flags=RESEND)
    s.result(job, "fanned out", "the parameter server has finished it: for worker 2", seq=321, slot=321,
             flags=FAN_OUT | FROM_PS)  # fmt: skip
    s.result(job, "fanned out", "and one for everybody", seq=353, slot=353, flags=FAN_OUT | FROM_PS)
    s.check_counters()
    return s


def scattered_leaf(lanes: int) -> Scenario:
    s = Scenario(
        "scattered_leaf",
        """
        A leaf with two of four workers, and results that one of the four needs: a whole one for that worker if it is here,
        and a bare one for the others.
        """,
        lanes=lanes,
        jobs=[SCATTERED_LEAF],
    )
    for seq, whose in enumerate(("worker 0's", "worker 1's", "worker 2's", "worker 3's", "everybody's")):
        slot = 256 + 32 * seq
        s.data(W0, SCATTERED_LEAF, "claimed", f"{whose}: worker 0", seq=slot, slot=slot, bits=0b01)
        s.data(W1, SCATTERED_LEAF, "completed", "worker 1: up, as one contribution", seq=slot, slot=slot, bits=0b10)
        s.result(SCATTERED_LEAF, "fanned out", "from the level above", seq=slot, slot=slot, bits=0b1111)
    s.check_counters()
    return s


def scattered_uneven(lanes: int) -> Scenario:
    w0, _, w2, w3 = SCATTERED_UNEVEN.members
    s = Scenario(
        "scattered_uneven",
        """
        The switch above two leaves and a worker of its own: leaves get whole results, the worker those that it needs.
        """,
        lanes=lanes,
        jobs=[SCATTERED_UNEVEN],
    )
    for slot, whose in ((256, "worker 0's"), (352, "worker 3's"), (384, "everybody's")):
        s.data(w0, SCATTERED_UNEVEN, "claimed", f"{whose}: leaf 0", seq=slot, slot=slot, bits=0b0011)
        s.data(w3, SCATTERED_UNEVEN, "added", "worker 3", seq=slot, slot=slot, bits=0b1000)
        s.data(w2, SCATTERED_UNEVEN, "completed", "leaf 1", seq=slot, slot=slot, bits=0b0100)
    s.check_counters()
    return s
