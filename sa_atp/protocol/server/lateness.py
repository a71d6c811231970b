"""Finds slow ranks, by how long each rank waited for the same sums. (protocol section 7.7)

A sum arrives at all ranks at once, so clocks need not be compared: the rank that contributed last waited least.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from sa_atp.protocol.packets.lateness_messages import LONGEST_TOTAL_US, JobLateness, RankLateness, Wait

MOST_WAITING = 256  # sums that some ranks have reported, and others have not


@dataclass(slots=True)
class _Totals:
    late: int = 0
    last: int = 0
    late_us: int = 0
    computing_us: int = 0
    sending_us: int = 0
    waited_us: int = 0


class Lateness:
    """The lateness of the ranks of a job, in one epoch."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._told: dict[int, dict[int, Wait]] = {}  # by operation: the waits that ranks have reported
        self._sums = 0
        self._begun_us = self._last_us = 0
        self._totals = [_Totals() for _ in range(world_size)]

    def begin(self, now_us: int) -> None:
        """The job runs from now on."""
        self._begun_us = now_us

    def take(self, rank: int, waits: Iterable[Wait], now_us: int) -> None:
        """Takes a rank's report of its waits. A sum is compared when all ranks have reported it."""
        for wait in waits:
            self._last_us = now_us
            told = self._told.setdefault(wait.operation, {})
            told.setdefault(rank, wait)
            if len(told) == self._world_size:
                del self._told[wait.operation]
                self._compare(told)
        while len(self._told) > MOST_WAITING:
            del self._told[next(iter(self._told))]

    def _compare(self, told: Mapping[int, Wait]) -> None:
        self._sums += 1
        busy_us = {rank: min(wait.waited_us, wait.sent_us + wait.round_trip_us) for rank, wait in told.items()}
        idle_us = {rank: wait.waited_us - busy_us[rank] for rank, wait in told.items()}
        round_trip_us = median_low(wait.round_trip_us for wait in told.values())
        late_us: dict[int, int] = {}
        idle_of_others, busy_of_others = _Others(idle_us.values()), _Others(busy_us.values())
        for rank, wait in told.items():
            totals = self._totals[rank]
            totals.waited_us += wait.waited_us
            behind_us = idle_of_others.median_us(idle_us[rank]) - idle_us[rank]
            if behind_us <= round_trip_us:
                continue
            late_us[rank] = behind_us
            sending_us = min(max(0, busy_us[rank] - busy_of_others.median_us(busy_us[rank])), behind_us)
            totals.late += 1
            totals.late_us += behind_us
            totals.sending_us += sending_us
            totals.computing_us += behind_us - sending_us
        if late_us:
            self._totals[max(late_us, key=lambda rank: (late_us[rank], -told[rank].waited_us, -rank))].last += 1

    def told(self) -> JobLateness:
        """Returns the lateness of all ranks so far, the worst first."""
        if not self._sums:
            return JobLateness()
        order = sorted(range(self._world_size), key=lambda rank: (-self._totals[rank].late_us, rank))
        lasted_us = min(max(0, self._last_us - self._begun_us), LONGEST_TOTAL_US)
        return JobLateness(sums=self._sums, ranks=[self._of(rank) for rank in order], lasted_us=lasted_us)

    def _of(self, rank: int) -> RankLateness:
        t = self._totals[rank]
        times = (min(each, LONGEST_TOTAL_US) for each in (t.late_us, t.computing_us, t.sending_us, t.waited_us))
        return RankLateness(rank, t.late, t.last, *times)


class _Others:
    """Times of all ranks, sorted once."""

    def __init__(self, times_us: Iterable[int]) -> None:
        self._sorted_us = sorted(times_us)

    def median_us(self, own_us: int) -> int:
        """The median of the other ranks. Args: own_us: the time of the rank that is left out."""
        middle = max(0, len(self._sorted_us) - 2) // 2  # of the others
        if own_us > self._sorted_us[middle] or len(self._sorted_us) == 1:
            return self._sorted_us[middle]
        return self._sorted_us[middle + 1]
