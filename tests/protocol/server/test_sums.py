"""Sums over a hostile network: 500 random scenarios through the compiled switch program, every integer checked.

Losses of 0, 0.1, 1 and 10 %, duplicates, reordering, jitter, short queues, one or two jobs that share 16 slots, tensors
from one value up, several operations in flight, magnitudes that jump so that chunks are done again, and a switch that
loses its state and its tables in mid-run. (design, invariants 1 to 3)
"""

import pytest
from helpers.scenario import LOSSES, Runner, draw

from sa_atp.switches.embedded.pipeline import Pipeline

SEEDS = 500
PER_CASE = 20


@pytest.mark.parametrize("first", range(0, SEEDS, PER_CASE))
def test_every_sum_is_that_of_the_quantised_values(first: int, pipeline: Pipeline) -> None:
    for seed in range(first, first + PER_CASE):
        scenario = draw(seed)
        try:
            Runner(scenario, [pipeline]).run()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{scenario}") from error


def test_the_scenarios_hold_what_they_are_meant_to_hold() -> None:
    """Counted, so that a change of the generator cannot quietly make the test above easy."""
    scenarios = [draw(seed) for seed in range(SEEDS)]
    assert len(scenarios) == 500
    for loss in LOSSES:
        assert sum(s.links.loss == loss for s in scenarios) == SEEDS // len(LOSSES)
    assert sum(len(s.job_sizes) == 2 for s in scenarios) > 150
    assert sum(bool(s.restarts) for s in scenarios) > 150
    assert sum(s.links.duplicate > 0 and s.links.reorder > 0 for s in scenarios) > 100
    assert {1, 63, 64, 65, 16_385} <= {n for s in scenarios for job in s.lengths for n in job}


def test_the_scenarios_reach_the_paths_that_are_rarely_taken(pipeline: Pipeline) -> None:
    total = dict.fromkeys(
        ("chunks_redone", "poisoned", "resends", "results_from_server", "results_fetched", "probes"), 0
    )
    overlaps = added = 0
    for seed in range(1, 60, 4):
        runner = Runner(draw(seed + 2), [pipeline])
        runner.run()
        for workers in runner.cluster.jobs:
            for worker in workers:
                stats = worker.worker.stats.as_dict()
                total = {name: count + stats[name] for name, count in total.items()}
        for job in runner.cluster.world.server.jobs.values():
            overlaps += job.stats.duplicates
            added += job.stats.added
    assert all(total.values()), total
    assert overlaps
    assert added
