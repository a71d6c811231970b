"""Which ranks are in a step's sum, where it is the sum of the first N ranks that are done. (protocol section 10.6)

A job with seats has at most as many seats as ranks. A rank that has computed its gradient asks for a seat; the first N get
one each, the others are not in that sum. A seat is given to one rank only, so its contribution bits are that rank's. With a
cut-off, seats close after a time; the rank that first asks after that contributes zeros for those that are empty.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sa_atp.protocol.packets.control import CutOff, Seated

STEPS_KEPT = 4  # as in the ledger: the sum of an older step is complete


@dataclass(slots=True)
class _Step:
    """The seats of one step."""

    opened_us: int
    """Time at which the step's first seat was taken."""
    holders: list[int] = field(default_factory=list)
    """The ranks that have seats, in order of seats."""
    filler: int | None = None
    """The rank that contributes zeros for the empty seats; None: the seats are not closed."""


class Seats:
    def __init__(self, seats: int, cut_off: CutOff | None = None) -> None:
        """Args: seats: of each sum; 0: the job has none, every rank is in every sum. cut_off: when they close."""
        self.seats = seats
        self.cut_off = cut_off
        self._steps: dict[int, _Step] = {}

    def take(self, number: int, rank: int, now_us: int) -> Seated | None:
        """Gives a rank a seat in a step, the same whenever it asks.

        Args: number: of the step.
        Returns: the answer to the rank; None: it gets no seat.
        """
        if self._steps and number <= max(self._steps) - STEPS_KEPT:
            return None  # another rank is so far ahead that this sum must be complete
        step = self._steps.setdefault(number, _Step(now_us))
        for old in [n for n in self._steps if n <= number - STEPS_KEPT]:
            del self._steps[old]
        if rank not in step.holders:
            if step.filler is not None or len(step.holders) == self.seats:
                return None
            step.holders.append(rank)
        seat = step.holders.index(rank)
        if self.cut_off is None or len(step.holders) == self.seats:
            return Seated(seat=seat)
        left_us = step.opened_us + self.cut_off.after_us - now_us
        if left_us > 0:
            return Seated(seat=seat, again_us=left_us)
        if step.filler is None and len(step.holders) >= self.cut_off.least:
            step.filler = rank
        return Seated(seat=seat, empty=self._empty(step) if step.filler == rank else 0)

    def _empty(self, step: _Step) -> int:
        return sum(1 << seat for seat in range(len(step.holders), self.seats))

    @property
    def _newest(self) -> _Step:
        return self._steps[max(self._steps)] if self._steps else _Step(0)

    @property
    def newest(self) -> tuple[int, ...]:
        """The ranks that have seats in the newest step, in order of seats; empty ones are their filler's."""
        step = self._newest
        empty = 0 if step.filler is None else self.seats - len(step.holders)
        return (*step.holders, *([step.filler] if step.filler is not None else []) * empty)

    def ranks_of(self, seats: Iterable[int]) -> list[int]:
        """The ranks that have these seats in the newest step; free seats are left out."""
        newest = self.newest
        return sorted({newest[seat] for seat in seats if seat < len(newest)})
