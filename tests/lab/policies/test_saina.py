"""SAINA: a sum has the first k gradients, and k grows where signs of successive sums say so, at all workers alike."""

import random
from functools import partial

import numpy as np
import pytest
from helpers.plans import policies_of, small_plan
from helpers.training import Setting, Training, lossy

from sa_atp.lab.policies.saina import Fastest
from sa_atp.lab.runs.records import RunResult
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

PLAN = small_plan(
    run={"steps": 10, "warm_up": 0, "backend": "sim", "policies": ["saina"]},
    topology={"workers": 4},
    job={"batch_size": 16, "micro_batches": 4},
    straggler={"pattern": "constant", "workers": [2], "slowdown": 4.0},
    saina={"count": 2},
)
SHARD_S = 16 * 1000e-6

run = partial(policies_of, PLAN)


def sizes(result: RunResult, number: int = 0) -> list[int]:
    """How many workers' gradients are in each step's sum."""
    iterations = result.runs[number].iterations
    return [sum(i.step == step and i.micro_batches > 0 for i in iterations) for step in range(result.plan.run.steps)]


# --- when k grows -----------------------------------------------------------------------------------------------------


def ks_of(sums: list[list[float]], **settings: float) -> list[int]:
    """k of each step, the one after the last sum included."""
    fastest = Fastest(3, **{"first": 1, "flips": 0.5, "count": 2, **settings})  # type: ignore[arg-type]
    found = [fastest.k]
    for total in sums:
        fastest.follow(np.array(total, np.float32))
        found.append(fastest.k)
    return found


def test_k_stays_while_successive_sums_agree() -> None:
    assert ks_of([[1, 2, -1, -3], [2, 1, -2, 1]] * 10) == [1] * 21, "one sign in four is another one"


def test_k_grows_up_to_all_workers_where_they_do_not() -> None:
    assert ks_of([[1, 2, -1], [-2, -1, 1]] * 4) == [1, 1, 1, 2, 2, 3, 3, 3, 3]
    assert ks_of([[1, 2, -1], [-2, -1, 1]] * 4, first=2) == [2, 2, 2, 3, 3, 3, 3, 3, 3]


def test_sums_that_agree_count_against_it() -> None:
    once_in_two = [[1.0], [1.0], [-1.0], [-1.0]] * 5
    assert ks_of(once_in_two) == [1] * 21
    assert ks_of([*once_in_two, [1.0], [-1.0]])[-1] == 2, "it does not fall below 0: two more suffice"


def test_values_that_are_zero_say_nothing() -> None:
    dead = [0.0] * 100
    assert ks_of([[1, *dead], [-1, *dead], [1, *dead]])[-1] == 2
    assert ks_of([dead] * 10, flips=0.0) == [1] * 11


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_an_update_is_the_mean_of_k_gradients_and_all_workers_agree_on_k(
    pipelines: list[Pipeline], levels: int, seed: int
) -> None:
    """With random stragglers, one that is away for some steps, and links that lose and duplicate.

    All ranks have the same sum, bit for bit, of those k gradients and nothing else (`Training.check`).
    """
    rng = random.Random(seed)
    workers = rng.randrange(3, 7)
    speeds = [[rng.choice([1.0, 1.1, rng.uniform(1.0, 6.0)]) for _ in range(workers)] for _ in range(10)]
    made: list[Fastest] = []

    def fastest() -> Fastest:
        made.append(Fastest(workers, first=1, flips=0.49, count=2))
        return made[-1]

    setting = Setting(
        help_grade=HelpGrade.NONE, helps=False, workers=workers, seats=workers, micro_batches=2, steps=10, seed=seed,
        fastest=fastest, slowdown=lambda step, rank: speeds[step][rank],
        pause_us=lambda step, rank: 30_000 if (step, rank) == (1, workers - 1) else 0,
        links=lossy(rng.choice([0.0, 0.05]), duplicate=0.05, reorder=0.05),
    )  # fmt: skip
    training = Training(pipelines[:1] if levels == 1 else pipelines, setting).run()
    again = Fastest(workers, first=1, flips=0.49, count=2)
    updates = list(training.workload.applied)
    seen = set()
    for step in range(10):
        there = training.seated(step)
        assert len(there) == again.k
        seen.add(again.k)
        updates = training.without_updates_of(step, updates)
        again.follow(training.sum_of(step)[0].astype(np.float32))
    assert not updates
    assert len(seen) > 1
    assert {each.k for each in made} == {again.k}


@pytest.mark.parametrize(
    "overrides", [[], ["sim.network=flows"], ["topology.kind=two-level"], ["network.loss=0.01"], ["switch.lanes=32"]]
)
def test_it_runs_wherever_sums_do(overrides: list[str]) -> None:
    """Gradients that are random numbers have other signs in half of their values, so k grows steadily."""
    found, result = run(*overrides)
    assert sizes(result) == [1, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert found["saina"]["samples_per_update"] == round(16 * 25 / 10)
    took = [max(i.end_s for i in result.runs[0].iterations if i.step == step) for step in range(10)]
    assert took[6] == pytest.approx(7 * SHARD_S, rel=0.2)
    assert took[9] - took[6] == pytest.approx(3 * 4 * SHARD_S, rel=0.2), "with all, sums wait for the straggler"


# --- training ---------------------------------------------------------------------------------------------------------


def test_with_all_workers_from_the_beginning_training_is_that_of_atp() -> None:
    changed = (
        "job.model=digits-cnn", "run.steps=4", "saina.first=4", 'run.policies=["atp", "saina"]', "sim.network=flows"
    )  # fmt: skip
    _, result = run(*changed)
    atp, saina = result.runs
    assert [(e.loss, e.accuracy) for e in atp.evaluations] == [(e.loss, e.accuracy) for e in saina.evaluations]


def test_it_is_sooner_to_an_accuracy_than_atp_and_k_grows_on_the_way() -> None:
    """Another worker is slow in each step, and real gradients decide about k."""
    changed = (
        "job.model=digits-cnn", "run.steps=30", "straggler.pattern=random", 'run.policies=["atp", "saina"]',
        "run.target_accuracy=0.7", "sim.network=flows", "job.micro_batches=1",
    )  # fmt: skip
    found, result = run(*changed)
    assert found["saina"]["time_to_accuracy_s"] < 0.5 * found["atp"]["time_to_accuracy_s"]
    grown = sizes(result, 1)
    assert grown == sorted(grown)
    assert grown[:3] == [1] * 3
    assert grown[-1] > 1
