"""Sync-opt: each sum has the first N gradients, and no worker waits for the others."""

import random
import re
from typing import Any

import numpy as np
import pytest
from helpers.cluster import Cluster, reference_sum
from helpers.training import Setting, Training, lossy

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans.plan_files import parse
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.protocol.job.errors import NonFiniteError, OperationTimeoutError
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.packets.control import CutOff
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

SHARD_US = 4 * 2_000


def setting(**options: Any) -> Setting:
    return Setting(**{"help_grade": HelpGrade.NONE, "helps": False, "seats": 3, "micro_batches": 4, **options})


def slow(*ranks: int, factor: float = 6.0) -> Any:
    return lambda step, rank: factor if rank in ranks else 1.0


def test_a_straggler_is_left_out_and_stops(pipeline: Pipeline) -> None:
    training = Training([pipeline], setting(slowdown=slow(1), steps=6)).run()
    for step in range(6):
        assert training.seated(step) == [0, 2, 3]
        assert training.step_us(step) < 1.3 * SHARD_US
        assert training.records[1][step].micro_batches == 0
    assert any("cancelled" in a.label for a in training.records[1][3].activities)


def test_more_stragglers_than_backups(pipeline: Pipeline) -> None:
    factors = {1: 3.0, 2: 6.0}
    training = Training([pipeline], setting(slowdown=lambda step, rank: factors.get(rank, 1.0))).run()
    for step in range(4):
        assert training.seated(step) == [0, 1, 3]
        assert 3 * SHARD_US <= training.step_us(step) < 3.3 * SHARD_US


@pytest.mark.parametrize("seed", range(3))
def test_the_update_is_the_mean_of_n_gradients(pipeline: Pipeline, seed: int) -> None:
    """With random stragglers and links that lose and duplicate: N ranks are in each sum, and all workers agree."""
    rng = random.Random(seed)
    workers = rng.randrange(3, 7)
    seats = rng.randrange(workers // 2 + 1, workers + 1)
    speeds = [[rng.uniform(1.0, 4.0) for _ in range(workers)] for _ in range(5)]
    wanted = setting(
        workers=workers, seats=seats, micro_batches=2, steps=5, slowdown=lambda step, rank: speeds[step][rank],
        links=lossy(rng.choice([0.0, 0.05]), duplicate=0.05, reorder=0.05), seed=seed,
    )  # fmt: skip
    training = Training([pipeline], wanted).run()
    updates = training.workload.applied
    assert len(updates) == 5 * workers
    left = list(updates)
    for step in range(5):
        # a workload's gradients are its shard's mean gradient over the number of ranks, and micro-batches
        means = [
            workers * sum(training.workload.gradient(step, rank, m)[0].astype(np.float64) for m in range(2))
            for rank in training.seated(step)
        ]
        mean = sum(means) / seats
        _, exponents = training.sum_of(step)
        parts = [training.workload.gradient(step, rank, m)[0] for rank in training.seated(step) for m in range(2)]
        _, bound = reference_sum(parts, exponents)
        tolerance = bound * workers / seats + 1e-6 * np.abs(mean)
        same = [each for each in left if (np.abs(each - mean) <= tolerance).all()]
        assert len(same) == workers, "every rank applies it once"
        left = [each for each in left if not any(each is other for other in same)]
    assert not left


def test_with_two_levels_the_root_sums(pipelines: list[Pipeline]) -> None:
    wanted = setting(workers=5, seats=3, slowdown=slow(0, 2, factor=5.0), links=lossy(0.02), steps=5)
    training = Training(pipelines, wanted).run()
    assert training.seated(4) == [1, 3, 4]


def test_a_worker_away_for_several_steps_takes_the_missed_sums(pipeline: Pipeline) -> None:
    away_us = 30 * SHARD_US
    wanted = setting(steps=12, pause_us=lambda step, rank: away_us if (step, rank) == (1, 2) else 0)
    training = Training([pipeline], wanted).run()
    others = [training.records[rank] for rank in (0, 1, 3)]
    assert max(each[-1].end_us for each in others) < training.records[2][1].end_us, "they did not wait"
    caught_up = training.records[2][-1].end_us - training.records[2][1].end_us
    assert caught_up < 3 * SHARD_US, "it computes nothing anew that is over"


def test_a_worker_rejoins_after_it_caught_up(pipeline: Pipeline) -> None:
    wanted = setting(
        seats=3, steps=14, slowdown=lambda step, rank: 1.5 if rank == 0 and step > 5 else 1.0,
        pause_us=lambda step, rank: 3 * SHARD_US if (step, rank) == (1, 2) else 0,
    )  # fmt: skip
    training = Training([pipeline], wanted).run()
    assert training.seated(3) == [0, 1, 3]
    assert training.seated(13) == [1, 2, 3]


def test_a_hung_worker_delays_nobody(pipeline: Pipeline) -> None:
    wanted = setting(hangs=lambda step, rank, m: (step, rank, m) == (1, 3, 2))
    training = Training([pipeline], wanted).run()
    assert training.seated(1) == [0, 1, 2]


def failure_of(training: Training, seconds: float) -> Any:
    """The error of a failing job, which is the same for all ranks."""
    workers = training.workers
    training.cluster.run(lambda: len(training.errors) == len(workers), seconds)
    assert len({str(error) for error in training.errors}) == 1
    return training.errors[0]


def test_too_few_gradients_end_the_job_and_name_the_ranks(pipeline: Pipeline) -> None:
    wanted = setting(hangs=lambda step, rank, m: step == 1 and rank in (0, 3))
    training = Training([pipeline], wanted)
    training.cluster.run(lambda: bool(training.errors), 90.0)
    assert all(isinstance(error, OperationTimeoutError) for error in training.errors)
    assert training.errors[0].ranks == (0, 3)


def test_nan_names_the_rank_and_not_its_seat(pipeline: Pipeline) -> None:
    training = Training([pipeline], setting(slowdown=slow(0)))
    gradient = training.workload.gradient

    def with_nan(step: int, shard: int, micro_batch: int) -> tuple[np.ndarray, float]:
        values, loss = gradient(step, shard, micro_batch)
        if (step, shard, micro_batch) == (2, 3, 1):
            values = values.copy()
            values[5] = np.nan
        return values, loss

    training.workload.gradient = with_nan  # type: ignore[method-assign]
    error = failure_of(training, 20.0)
    assert isinstance(error, NonFiniteError)
    assert error.ranks == (3,)


def test_ranks_that_disagree_about_seats_are_told(pipeline: Pipeline) -> None:
    cluster = Cluster([pipeline])
    for rank in range(2):
        cluster.world.add_worker(rank)
    first = cluster.new_worker("job", 0, 2, seats=1)
    second = cluster.new_worker("job", 1, 2, seats=2, cut_off=CutOff(5_000, 2))
    cluster.run(lambda: first.error is not None or second.error is not None, 2.0)
    assert (
        "seats is 2 for rank 1 and 1 for rank 0, cut_off is 5000 us, 2 seats for rank 1 and never for rank 0: all ranks of "
        "a job must say the same"
    ) in str(second.error)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"seats": 5}, "seats = 5: expected 0 to world_size = 4"),
        ({"seats": -1}, "seats = -1: expected 0 to world_size = 4"),
        ({"seats": 1.5}, "seats = 1.5: expected a whole number"),
        ({"seats": 3, "help_grade": HelpGrade.STEAL}, "seats = 3 with help 'steal': expected one or the other"),
        ({"seats": 3, "micro_batches": 171}, "at most 512 contributions"),
        ({"seats": 3, "cut_off": CutOff(0, 4)}, "cut_off waits for 4 seats, of 3: expected 1 to 3"),
        ({"seats": 3, "cut_off": CutOff(0, 1.5)}, "cut_off waits for 1.5 seats, of 3: expected 1 to 3"),  # type: ignore[arg-type]
        ({"seats": 3, "cut_off": CutOff(-1, 1)}, "cut_off after -1 us: expected a whole number from 0 to 3600000000"),
        ({"seats": 3, "cut_off": CutOff(1 << 40, 1)}, "cut_off after 1099511627776 us: expected a whole number"),
        ({"seats": 3, "cut_off": (0, 1)}, "cut_off = (0, 1): expected a sa_atp.protocol.packets.control.CutOff"),
        ({"cut_off": CutOff(0, 1)}, "cut_off without seats: expected seats = 1 or more, or no cut_off"),
    ],
)
def test_seats_that_make_no_sense_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=re.escape(problem)):
        JoinRequest(**{"job": "job", "rank": 0, "world_size": 4, **changed})


PLAN = """
[run]
steps = 4
warm_up = 0
policies = ["atp", "sync-opt", "ps"]
[topology]
workers = 4
[job]
model = "resnet-50"
model_scale = 0.0001
micro_batches = 4
batch_size = 8
compute_us_per_sample = 2000
[straggler]
workers = [3]
slowdown = 5.0
"""


@pytest.mark.parametrize("kind", ["star", "two-level"])
def test_a_plan_runs_it_beside_others_and_checks_every_sum(kind: str) -> None:
    plan = parse(PLAN, "a plan", [f"topology.kind={kind}", "sync-opt.backups=1"])
    summary = summarise(RunResult(plan, "a plan", "sim", "embedded", {}, simulated.run(plan, Progress())))
    for policy in summary["policies"].values():
        assert (policy["sums_checked"], policy["sums_wrong"]) == (16, 0)
    found = summary["policies"]["sync-opt"]
    assert [worker["micro_batches_per_step"]["own"] for worker in found["workers"]] == [4, 4, 4, 0]
    assert found["iteration_time_s"]["mean"] < 0.3 * summary["policies"]["atp"]["iteration_time_s"]["mean"]
    assert found["fluid_bound_s"] == pytest.approx(0.75 * summary["policies"]["atp"]["fluid_bound_s"])
    assert found["ratio_to_fluid_bound"] > 1
    assert summary["policies"]["ps"]["fragments"]["in_switch"] == 0
    assert summary["policies"]["atp"]["fragments"]["at_ps"] == 0
