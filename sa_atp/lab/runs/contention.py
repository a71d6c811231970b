"""Contended links in virtual time: a plan's spells as events that change rates."""

from collections.abc import Callable, Iterator

from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.tasks import link_contention
from sa_atp.lab.simulator.network import Clock

Change = Callable[[int, float], None]
"""(rank, share): from now on the rank's link has this share of its rate, both ways."""


def schedule(plan: Plan, clock: Clock, change: Change) -> None:
    """Has the links of a plan's workers change when a spell begins and ends; nothing, where none are contended."""
    contention = link_contention(plan)
    if contention is not None:
        for rank in contention.workers:
            _next(clock, rank, contention.spells(rank), contention.share, change)


def _next(clock: Clock, rank: int, spells: Iterator[tuple[int, int]], share: float, change: Change) -> None:
    start_us, end_us = next(spells)

    def end() -> None:
        change(rank, 1.0)
        _next(clock, rank, spells, share, change)

    clock.at(start_us, lambda: change(rank, share))
    clock.at(end_us, end)
