"""Who of a job's ranks is in a step's sum, where it is that of the first who ask. (protocol section 10.6)

A job with seats has fewer of them than ranks. Who has computed its gradient asks for a seat; the first get one each, and
whoever gets none is not in that sum. A seat is given once, so that the contribution bits that it names are one rank's.
"""

from collections.abc import Iterable

STEPS_KEPT = 4  # as in the ledger: whoever asks for an older step asks for a sum that is complete


class Seats:
    def __init__(self, seats: int) -> None:
        """Args: seats: of each sum; 0: the job has none, every rank is in every sum."""
        self.seats = seats
        self._holders: dict[int, list[int]] = {}  # step: ranks, by seat

    def take(self, step: int, rank: int) -> int | None:
        """A rank is done with a step. Returns: its seat, the same whenever it asks; None: all are taken."""
        if self._holders and step <= max(self._holders) - STEPS_KEPT:
            return None  # somebody is that far ahead, so that sum is complete
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
        """Who has a seat in the newest step, by seat."""
        return tuple(self._holders[max(self._holders)]) if self._holders else ()

    def ranks_of(self, seats: Iterable[int]) -> list[int]:
        """Who has these seats in the newest step, as far as they are taken: whose contributions are there."""
        newest = self.newest
        return sorted({newest[seat] for seat in seats if seat < len(newest)})
