"""Contended links in virtual time: a plan's spells of contention as events that change rates."""

from collections.abc import Callable, Iterator

from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.tasks import link_contention
from sa_atp.lab.simulator.network import Clock

Change = Callable[[int, float], None]
"""Called with (rank, share): sets the rate of the rank's link to a share of the plan's, both ways."""


def schedule(plan: Plan, clock: Clock, change: Change) -> None:
    """Schedules the changes of rate at the beginning and end of each spell; without contention, nothing."""
    contention = link_contention(plan)
    if contention is not None:
        for rank in contention.workers:
            _next(clock, rank, contention.spells(rank), change)


def _next(clock: Clock, rank: int, spells: Iterator[tuple[int, int, float]], change: Change) -> None:
    start_us, end_us, share = next(spells)

    def end() -> None:
        change(rank, 1.0)
        _next(clock, rank, spells, change)

    clock.at(start_us, lambda: change(rank, share))
    clock.at(end_us, end)
