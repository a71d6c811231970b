"""Deadline: a sum has who was there in time, exactly, and everybody divides by their number."""

import random
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
from helpers.plans import policies_of, small_plan
from helpers.training import Setting, Training, lossy

from sa_atp.protocol.packets.control import CutOff
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"
PLAN = small_plan(
    run={"steps": 4, "warm_up": 0, "backend": "sim", "policies": ["deadline"]},
    topology={"workers": 4},
    job={"batch_size": 16, "micro_batches": 4},
    straggler={"pattern": "constant", "workers": [2]},
)
SHARD_S = 16 * 1000e-6


run = partial(policies_of, PLAN)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_a_sum_of_a_known_subset_is_exactly_the_sum_of_that_subset(
    pipelines: list[Pipeline], levels: int, seed: int
) -> None:
    """With random stragglers, and links that lose and duplicate.

    All ranks have the same sum, bit for bit (`Training.check`), of the shards that were contributed, and divide it by
    their number.
    """
    rng = random.Random(seed)
    workers = rng.randrange(3, 7)
    least = rng.randrange(1, workers + 1)
    speeds = [[rng.choice([1.0, 1.1, rng.uniform(1.0, 6.0)]) for _ in range(workers)] for _ in range(5)]
    setting = Setting(
        help_grade=HelpGrade.NONE, helps=False, workers=workers, seats=workers, micro_batches=2, steps=5, seed=seed,
        cut_off=CutOff(rng.randrange(0, 8_000), least), slowdown=lambda step, rank: speeds[step][rank],
        links=lossy(rng.choice([0.0, 0.05]), duplicate=0.05, reorder=0.05),
    )  # fmt: skip
    training = Training(pipelines[:1] if levels == 1 else pipelines, setting).run()
    updates = list(training.workload.applied)
    assert len(updates) == 5 * workers
    sizes = set()
    for step in range(5):
        there = training.seated(step)
        sizes.add(len(there))
        updates = training.without_updates_of(step, updates)
    assert least in (workers, *sizes) or len(sizes) > 1


def test_a_worker_that_is_away_holds_nobody_up(pipeline: Pipeline) -> None:
    setting = Setting(
        help_grade=HelpGrade.NONE, helps=False, seats=4, cut_off=CutOff(4_000, 2), micro_batches=4, steps=6,
        hangs=lambda step, rank, m: (step, rank, m) == (1, 0, 2),
    )  # fmt: skip
    training = Training([pipeline], setting).run()
    assert training.seated(0) == [0, 1, 2, 3]
    assert training.seated(1) == [1, 2, 3]
    assert training.step_us(1) < 4 * 2_000 + 4_000 + 4_000, "its time, the deadline, and sending zeros"


def test_a_late_worker_is_left_out_and_costs_the_deadline_only() -> None:
    found, result = run()
    assert found["deadline"]["iteration_time_s"]["mean"] == pytest.approx(1.25 * SHARD_S, rel=0.1)
    own = [worker["micro_batches_per_step"]["own"] for worker in found["deadline"]["workers"]]
    assert own == [4, 4, 0, 4]
    assert found["deadline"]["samples_per_update"] == 3 * 16
    cancelled = [i for i in result.runs[0].intervals if i.worker == 2 and i.label.endswith(", cancelled")]
    assert cancelled, "it stops, and begins the next step with the others"


def test_a_sum_waits_for_the_least_number_of_workers() -> None:
    found, _ = run("deadline.least=4")
    assert found["deadline"]["samples_per_update"] == 4 * 16
    assert found["deadline"]["iteration_time_s"]["mean"] > 4 * SHARD_S


def test_without_late_workers_training_is_that_of_atp() -> None:
    changed = (
        "straggler.pattern=none",
        "sim.network=flows",
        "job.model=digits-cnn",
        'run.policies=["atp", "deadline"]',
    )
    found, result = run(*changed)
    atp, deadline = result.runs
    assert [(e.loss, e.accuracy) for e in atp.evaluations] == [(e.loss, e.accuracy) for e in deadline.evaluations]
    longer = found["deadline"]["iteration_time_s"]["mean"] / found["atp"]["iteration_time_s"]["mean"]
    assert 1 <= longer < 1.01, "a question for a seat in each step"


def test_the_update_is_the_mean_over_those_in_the_sum() -> None:
    """With another worker late in each step: samples of an update vary, and no step has a smaller weight for it."""
    found, result = run("straggler.pattern=random", "straggler.slowdown_range=[1.0, 2.0]", "deadline.after=0.3")
    of_step = [sum(i.micro_batches for i in result.runs[0].iterations if i.step == step) for step in range(4)]
    assert len(set(of_step)) == 2
    assert found["deadline"]["samples_per_update"] == round(Fraction(sum(of_step) * 16, 4 * 4))


@pytest.mark.parametrize(
    "overrides", [["sim.network=flows"], ["topology.kind=two-level"], ["network.loss=0.01"], ["switch.lanes=32"]]
)
def test_it_runs_wherever_sums_do(overrides: list[str]) -> None:
    found, _ = run(*overrides)
    assert found["deadline"]["samples_per_update"] == 3 * 16
