"""How far a sum has got, and the contributions of a group to it: record classes (records.py), and what changes them.

Whatever is missing or in flight is counted in the connection's `UnderWay`, too.
"""

from numbers import Number
from typing import Any
from zlib import crc32

from sa_atp.protocol.rank.sums.under_way import UnderWay, acknowledge_up_to

NEVER = 0  # a time, or the number of a transmission: of what has not been sent


def tag_of(index: int, values: int, name: int = 0) -> int:
    """Returns the tag that an operation's fragments carry, so that sums of different operations are never mixed.

    It follows from the operation's number, size and name (protocol section 7.5): ranks that disagree about one of these
    have different tags, where they agree about everything else. Sizes that need the same fragments always differ in the
    tag, others in all cases but one of 256; likewise names, for each number anew.
    """
    fragment, within = divmod(values - 1, 256)
    return (index + within + (fragment * 0x9E3779B1 >> 24) + (name * (2 * index + 1) >> 24)) & 0xFF


def name_of(key: object | None, scale: float) -> int:
    """A digest of a sum's key and of what the sum is multiplied by, the same in every process; 0: no key, times 1."""
    if key is None and scale == 1.0:
        return 0
    return crc32(repr((_comparable(key), float(scale))).encode())


def _comparable(key: object | None) -> object:
    """What two processes can compare of a key: text, numbers, tuples of these; of other objects their type."""
    match key:
        case None | str() | bytes():
            return key
        case Number():
            return hash(key)  # equal numbers of different types have the same
        case tuple():
            return tuple(map(_comparable, key))
        case _:
            return type(key).__qualname__


def miss(progress: "Progress", under_way: UnderWay, more: int) -> None:
    """Counts more missing fragments, or fewer if `more` is negative."""
    progress.missing += more
    under_way.missing += more


def fly(group: "Transmissions", under_way: UnderWay, more: int) -> None:
    """Counts more fragments in flight, or fewer if `more` is negative."""
    group.in_flight += more
    under_way.in_flight += more


def on_taken(
    progress: "Progress", group: "Transmissions", under_way: UnderWay, sent: Any, last: int, fresh: int, flown: int,
    accepted: int, newest_us: int,
) -> None:  # fmt: skip
    """Results are in the sums, by a kernel, which has marked their fragments.

    Args:
        sent: the group's arrays, see kernels.Sent.
        last: the last of the fragments; fresh: how many there are; flown: how many of them were in flight.
        accepted: chunks that are accepted by that.
        newest_us: when the newest was sent that was sent once.
    """
    miss(progress, under_way, -fresh)
    progress.resolved += accepted
    fly(group, under_way, -flown)
    if last < group.high and sent.tries[last] == 1:
        acknowledge_up_to(under_way, int(sent.order[last]))
    group.newest_done_us = max(group.newest_done_us, newest_us)


class Progress:
    """How far a sum has got."""

    first_seq: int
    """Sequence number of the first fragment."""
    tag: int
    missing: int
    """Fragments whose sum is needed and not known."""
    resolved: int
    """Chunks whose sum is accepted."""
    low: int
    """No fragment below is missing."""

    def __init__(self, first_seq: int, tag: int) -> None:
        self.first_seq, self.tag = first_seq, tag
        self.missing = self.resolved = self.low = 0


class Transmissions:
    """How far a group's transmissions have got."""

    in_flight: int
    """Fragments that have been sent, and are neither answered nor given up."""
    high: int
    """Nothing at or above has been sent."""
    newest_done_us: int
    """When the latest was sent of the fragments that were sent once and are complete."""
    asked_before_us: int
    """Time of sending before which fragments, late by results of later ones, have been asked for."""
    late_up_to: int
    """The transmission up to which answers showed that what is not known has to be asked for."""
    asked_up_to: int
    """Number of the transmission up to which late fragments have been asked for."""

    def __init__(self) -> None:
        self.in_flight = self.high = 0
        self.newest_done_us = self.asked_before_us = self.late_up_to = self.asked_up_to = NEVER
