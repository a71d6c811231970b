"""Contended links in virtual time: a plan's spells of contention as events that change rates."""

from collections.abc import Callable, Iterator

from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.tasks import link_contention, straggler_pattern
from sa_atp.lab.simulator.network import Clock

Change = Callable[[int, float], None]
"""Called with (rank, share): sets the rate of the rank's link to a share of the plan's, both ways."""


class Contention:
    """Changes rates at the beginning and end of each spell, in steps that have stragglers; without contention, never."""

    def __init__(self, plan: Plan, clock: Clock, change: Change) -> None:
        self._clock = clock
        self._change = change
        self._pattern = straggler_pattern(plan)
        contention = link_contention(plan)
        workers = contention.workers if contention is not None else ()
        self._is_on = dict.fromkeys(workers, self._pattern.is_on(0))
        self._shares = dict.fromkeys(workers, 1.0)
        for rank in workers:
            assert contention is not None
            self._next(rank, contention.spells(rank))

    def begin(self, rank: int, step: int) -> None:
        """Notes that a worker begins a step."""
        if rank in self._is_on and self._is_on[rank] != self._pattern.is_on(step):
            self._is_on[rank] = not self._is_on[rank]
            self._apply(rank)

    def _next(self, rank: int, spells: Iterator[tuple[int, int, float]]) -> None:
        start_us, end_us, share = next(spells)

        def end() -> None:
            self._set(rank, 1.0)
            self._next(rank, spells)

        self._clock.at(start_us, lambda: self._set(rank, share))
        self._clock.at(end_us, end)

    def _set(self, rank: int, share: float) -> None:
        self._shares[rank] = share
        self._apply(rank)

    def _apply(self, rank: int) -> None:
        self._change(rank, self._shares[rank] if self._is_on[rank] else 1.0)
