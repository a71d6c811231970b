"""X of N: everybody names the same group a step ahead, and each gradient is in one sum."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.plans import policies_of, small_plan
from helpers.training import Setting, Training, lossy

from sa_atp.lab.policies.x_of_n import DONE_DIGITS, TOOK_DIGITS, Done, Groups, _digits, _number
from sa_atp.lab.runs.records import RunResult
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.embedded.pipeline import Pipeline

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"
PLAN = small_plan(
    run={"steps": 10, "warm_up": 1, "backend": "sim", "policies": ["x-of-n"]},
    topology={"workers": 4},
    job={"batch_size": 16, "micro_batches": 4},
    straggler={"pattern": "constant", "workers": [2], "slowdown": 4.0},
)
SHARD_S = 16 * 1000e-6
ALL = (0, 1, 2, 3)
BUT_2 = (0, 1, 3)


run = partial(policies_of, PLAN)


def members(result: RunResult, number: int = 0) -> list[tuple[int, ...]]:
    """The ranks whose gradients are in each step's sum."""
    found: list[list[int]] = [[] for _ in range(result.plan.run.steps)]
    for each in result.runs[number].iterations:
        if each.micro_batches:
            found[each.step].append(each.worker)
    return [tuple(sorted(ranks)) for ranks in found]


# --- who is in a sum --------------------------------------------------------------------------------------------------


def groups_of(takes_us: list[int], steps: int, sum_us: int = 100, **settings: Any) -> list[tuple[int, ...]]:
    """The groups of workers that always need so long for a gradient."""
    groups = Groups(len(takes_us), **{"x": 0, "noise": 3.0, "weight": 0.5, **settings})
    began, now, found = [0] * len(takes_us), 0, []
    for _ in range(steps):
        found.append(groups.members)
        done = {rank: Done(takes_us[rank], began[rank] + takes_us[rank]) for rank in groups.members}
        now = max(now, *(each.done_us for each in done.values())) + sum_us
        for rank in groups.members:
            began[rank] = now
        groups.follow(done)
    return found


def test_the_time_of_a_gradient_follows_a_worker_that_becomes_slower() -> None:
    groups = Groups(1, x=0, noise=3.0, weight=0.25)
    groups.follow({0: Done(100, 100)})
    groups.follow({0: Done(200, 300)})
    assert groups._takes_us == [125.0]


def test_a_slow_worker_is_in_the_sum_for_which_it_is_ready() -> None:
    assert groups_of([1000, 1000, 4000, 1000], 10) == [ALL, BUT_2, BUT_2, BUT_2, ALL, BUT_2, BUT_2, BUT_2, ALL, BUT_2]


def test_workers_that_are_as_fast_as_others_are_in_every_sum() -> None:
    assert groups_of([1000, 1050, 980, 1000], 20) == [ALL] * 20


def test_with_more_noise_a_sum_waits_for_more_workers() -> None:
    """A worker that needs 1.4 times as long is worth the wait if a larger update is."""
    times = [1000, 1000, 1400, 1000]
    assert groups_of(times, 2, noise=1000.0) == [ALL, BUT_2]
    assert groups_of([1000, 1000, 1300, 1000], 2, noise=1000.0) == [ALL, ALL]
    assert groups_of([1000, 1000, 1300, 1000], 2, noise=1.0) == [ALL, BUT_2]


def test_a_fixed_x_takes_those_that_are_ready_first_and_nobody_starves() -> None:
    found = groups_of([1000, 1000, 4000, 1000], 41, x=2)[1:]
    assert {len(ranks) for ranks in found} == {2}
    shares = [sum(rank in ranks for ranks in found) for rank in range(4)]
    assert min(shares) >= 5
    assert max(shares) - min(shares[0], shares[1], shares[3]) <= 2, "the fast ones take turns"


def test_the_decision_depends_on_measurements_alone() -> None:
    rng = random.Random(3)
    mine, other = (Groups(5, x=0, noise=3.0, weight=0.5) for _ in range(2))
    now = 0
    for _ in range(50):
        assert mine.members == other.members
        measured = {rank: Done(took := rng.randrange(1, 5000), now + took) for rank in mine.members}
        now = max(each.done_us for each in measured.values())
        mine.follow(measured)
        other.follow(dict(reversed(measured.items())))


def test_times_travel_exactly() -> None:
    for us in (0, 1, 65_535, 65_536, 3_600_000_000):
        assert _number(_digits(us, TOOK_DIGITS)) == us
        assert _number(_digits(1000 * us, DONE_DIGITS)) == 1000 * us


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_each_gradient_is_in_exactly_one_sum(pipelines: list[Pipeline], levels: int, seed: int) -> None:
    """With random stragglers, and links that lose and duplicate.

    All ranks have the same sum, bit for bit, of the group's gradients and nothing else (`Training.check`).
    """
    rng = random.Random(seed)
    workers = rng.randrange(3, 7)
    x = rng.choice([0, 0, rng.randrange(1, workers + 1)])
    speeds = [[rng.choice([1.0, 1.1, rng.uniform(1.0, 6.0)]) for _ in range(workers)] for _ in range(8)]
    setting = Setting(
        help_grade=HelpGrade.NONE, helps=False, workers=workers, seats=workers, micro_batches=2, steps=8, seed=seed,
        groups=lambda: Groups(workers, x=x, noise=3.0, weight=0.5), slowdown=lambda step, rank: speeds[step][rank],
        pause_us=lambda step, rank: 3_000 if (step + rank) % 5 == 0 else 0,
        links=lossy(rng.choice([0.0, 0.05]), duplicate=0.05, reorder=0.05),
    )  # fmt: skip
    training = Training(pipelines[:1] if levels == 1 else pipelines, setting).run()
    pieces = [p[:3] for records in training.records for record in records for p in record.pieces]
    assert len(set(pieces)) == len(pieces)
    sizes = [len(training.seated(step)) for step in range(8)]
    assert sizes[0] == workers
    assert set(sizes[1:]) == {x} if x else len(set(sizes)) > 1
    for rank, records in enumerate(training.records):
        # a gradient is begun in the step after the one whose sum has the one before
        begun = 0
        for record in records:
            if record.computed:
                assert {p.step for p in record.pieces} == {begun}, rank
                begun = record.step + 1
    updates = list(training.workload.applied)
    assert len(updates) == 8 * workers
    for step in range(8):
        wanted = sum(
            training.workload.gradient(*p[:3])[0].astype(np.float64)
            for records in training.records
            for p in records[step].pieces
        )
        same = [each for each in updates if np.abs(each - wanted).max() < 1e-3]
        assert len(same) == workers, "every rank applies it once"
        updates = [each for each in updates if not any(each is other for other in same)]


@pytest.mark.parametrize(
    "overrides", [[], ["sim.network=flows"], ["topology.kind=two-level"], ["network.loss=0.01"], ["switch.lanes=32"]]
)
def test_it_runs_wherever_sums_do(overrides: list[str]) -> None:
    found, result = run(*overrides)
    assert members(result) == [ALL, BUT_2, BUT_2, BUT_2, ALL, BUT_2, BUT_2, BUT_2, ALL, BUT_2]
    assert found["x-of-n"]["iteration_time_s"]["mean"] == pytest.approx(SHARD_S, rel=0.1)
    slow = found["x-of-n"]["workers"][2]
    assert slow["seconds_per_step"]["compute"] == pytest.approx(SHARD_S, rel=0.1), "it works all the time"


def test_a_gradient_is_that_of_the_weights_with_which_it_was_begun() -> None:
    """With packets every rank has a model of its own, with flows all share one: training is the same, bit for bit."""
    _, packets = run("job.model=digits-cnn", "sim.network=packets")
    _, flows = run("job.model=digits-cnn", "sim.network=flows")
    assert members(packets) == members(flows)
    assert [(e.loss, e.accuracy) for e in packets.runs[0].evaluations] == [
        (e.loss, e.accuracy) for e in flows.runs[0].evaluations
    ]


def test_with_all_workers_in_a_group_training_is_that_of_atp() -> None:
    changed = "job.model=digits-cnn", "x-of-n.x=4", 'run.policies=["atp", "x-of-n"]', "sim.network=flows"
    _, result = run(*changed)
    atp, groups = result.runs
    assert [(e.loss, e.accuracy) for e in atp.evaluations] == [(e.loss, e.accuracy) for e in groups.evaluations]
    assert [e.time_s for e in atp.evaluations] == pytest.approx([e.time_s for e in groups.evaluations], rel=0.01)


def test_who_is_slow_once_is_left_out_when_it_is_not() -> None:
    """Prediction from the last steps is of no use against slowness that comes and goes with a step."""
    found, _ = run("straggler.pattern=random", 'run.policies=["atp", "sa-atp", "x-of-n"]', "run.steps=20")

    def us_per_sample(policy: str) -> float:
        return float(found[policy]["iteration_time_s"]["mean"] / found[policy]["samples_per_update"])

    assert us_per_sample("sa-atp") < us_per_sample("x-of-n")
    assert us_per_sample("x-of-n") > 0.5 * us_per_sample("atp")
