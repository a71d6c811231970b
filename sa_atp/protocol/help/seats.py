"""Which ranks are in a step's sum, where it is the sum of the first N ranks that are done. (protocol section 10.6)

A job with seats has fewer seats than ranks. A rank that has computed its gradient asks for a seat; the first N get one
each, the others are not in that sum. A seat is given to one rank only, so its contribution bits are that rank's.
"""

from collections.abc import Iterable

STEPS_KEPT = 4  # as in the ledger: the sum of an older step is complete


class Seats:
    def __init__(self, seats: int) -> None:
        """Args: seats: of each sum; 0: the job has none, every rank is in every sum."""
        self.seats = seats
        self._holders: dict[int, list[int]] = {}  # step: ranks, by seat

    def take(self, step: int, rank: int) -> int | None:
        """Gives a rank a seat in a step. Returns: its seat, the same whenever it asks; None: all are taken."""
        if self._holders and step <= max(self._holders) - STEPS_KEPT:
            return None  # another rank is so far ahead that this sum must be complete
        holders = self._holders.setdefault(step, [])
        for old in [s for s in self._holders if s <= step - STEPS_KEPT]:
            del self._holders[old]
        if rank in holders:
            return holders.index(rank)
        if len(holders) == self.seats:
            return None
        holders.append(rank)
        return len(holders) - 1

    @property
    def newest(self) -> tuple[int, ...]:
        """The ranks that have seats in the newest step, in order of seats."""
        return tuple(self._holders[max(self._holders)]) if self._holders else ()

    def ranks_of(self, seats: Iterable[int]) -> list[int]:
        """The ranks that have these seats in the newest step; free seats are left out."""
        newest = self.newest
        return sorted({newest[seat] for seat in seats if seat < len(newest)})
