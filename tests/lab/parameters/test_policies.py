"""The characteristic property of each policy, over random schedules."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from helpers.parameters import Training
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.lab.parameters.rules.falcon import EnforcedFalconRules, FalconRules, FalconWorker, _Projection
from sa_atp.lab.parameters.rules.flexrr import Reassignment, helped_by, helpers_of
from sa_atp.lab.parameters.rules.messages import CancelReply, Gave, Transfer
from sa_atp.lab.parameters.rules.rules import ConSgdRules, DynSgdRules, Rules, SspRules, Terms
from sa_atp.lab.parameters.rules.store import Store, VersionMeans
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.steps.parallel import MOST_TASKS, NO_GAIN, Curve

SCHEDULES = settings(max_examples=20)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
bounds = st.integers(0, 4)


GAIN = (1.0, 1.5, 2.0, 2.5)


def terms(
    workers: int, *, bound: int = 0, micro_batches: int = 4, clocks: int = 6, rate: float = 0.1, parallel: int = 1,
    curve: Curve | None = None,
) -> Terms:  # fmt: skip
    return Terms(
        world_size=workers, micro_batches=micro_batches, learning_rate=rate, bound=bound, clocks=clocks,
        parallel=parallel, curves=(curve,) * workers if curve else (),
    )  # fmt: skip


def plain(workers: int) -> Callable[[int], WorkerRules]:
    return lambda rank: WorkerRules(rank, workers)


def uneven(seed: int) -> Callable[[int, int, random.Random], int]:
    """Devices of different speed, which pause at times."""
    speeds = random.Random(seed)
    slowness = [speeds.choice([1, 1, 2, 8]) for _ in range(16)]

    def task_us(rank: int, clock: int, rng: random.Random) -> int:
        return slowness[rank] * rng.randrange(200, 1500) * (20 if rng.random() < 0.02 else 1)

    return task_us


@SCHEDULES
@given(seeds, sizes, bounds)
def test_ssp_never_exceeds_its_bound(seed: int, workers: int, bound: int) -> None:
    run = Training(
        SspRules(terms(workers, bound=bound)), plain(workers), seed=seed, task_us=uneven(seed), longest_us=3000
    ).run()
    assert run.server.most_ahead <= bound
    # the same from outside: when an update of clock c is taken, all of clock c - bound - 1 is in the parameters
    done = [0] * workers
    for each in run.taken:
        assert each.clock - min(done) <= bound
        done[each.rank] = each.clock + 1
    run.whole_clocks()


def test_ssp_uses_its_bound() -> None:
    run = Training(SspRules(terms(3, bound=2)), plain(3), task_us=lambda rank, *_: 8000 if rank == 2 else 1000).run()
    assert run.server.most_ahead == 2


@SCHEDULES
@given(seeds, sizes)
def test_asp_never_waits(seed: int, workers: int) -> None:
    """A worker that ends a clock begins the next one at once, after a round trip."""
    run = Training(Rules(terms(workers)), plain(workers), seed=seed, task_us=uneven(seed), longest_us=300).run()
    for records in run.records:
        for record in records[1:]:  # before its first clock a worker waits until all are there
            assert sum(a.end_us - a.start_us for a in record.activities if a.kind == "wait") <= 600
    assert run.server.tasks_in >= 6 * workers * 4


def test_without_slack_all_workers_have_the_same_parameters() -> None:
    """SSP with bound 0 is synchronous: updates of clock c use parameters with all updates of clock c - 1."""
    run = Training(SspRules(terms(4, bound=0)), plain(4), task_us=lambda rank, *_: 1000 * (rank + 1)).run()
    assert [each.clock for each in run.taken] == sorted(each.clock for each in run.taken)


@SCHEDULES
@given(seeds, sizes)
def test_consgd_weighs_each_update_by_one_over_m(seed: int, workers: int) -> None:
    run = Training(ConSgdRules(terms(workers, bound=2)), plain(workers), seed=seed, task_us=uneven(seed)).run()
    moved = run.snapshots[-1].values - np.ones(5, np.float32)
    assert moved == pytest.approx(-0.1 / workers * sum(each.update for each in run.taken), rel=1e-4, abs=1e-5)


@SCHEDULES
@given(seeds, sizes, st.integers(0, 3))
def test_weights_of_a_clock_sum_to_one_under_dynsgd(seed: int, workers: int, bound: int) -> None:
    """At any time the parameters contain the mean of each clock's updates so far."""
    run = Training(DynSgdRules(terms(workers, bound=bound)), plain(workers), seed=seed, task_us=uneven(seed)).run()
    came: dict[int, list[np.ndarray]] = {}
    for each in run.taken:
        came.setdefault(each.clock, []).append(each.update)
        moved = each.values - np.ones(5, np.float32)
        assert moved == pytest.approx(-0.1 * sum(np.mean(u, axis=0) for u in came.values()), rel=1e-3, abs=1e-4)


def test_dynsgd_weighs_an_update_by_its_staleness_and_forgets_clocks_that_are_complete() -> None:
    store, merging = Store(np.zeros(1, np.float32)), VersionMeans(1.0, 4)
    unit = np.full(1, -12.0, np.float32)
    gained: list[float] = []
    for clock in (1, 1, 0, 1):  # the same update each time, but of a mean that is 0 first
        before = float(store.values[0])
        merging.merge(store, clock, (), unit if len(gained) < 3 else 0 * unit)
        gained.append(float(store.values[0]) - before)
    assert gained == [12.0, 0.0, 12.0, -4.0]  # 12; the mean stays 12; another clock's 12; mean 8 = 2/3 of 12
    assert set(merging.versions) == {0, 1}
    merging.merge(store, 1, (), unit)
    assert set(merging.versions) == {0}


@SCHEDULES
@given(seeds, st.integers(2, 5), st.integers(0, 2), st.integers(0, 3))
def test_flexrr_computes_every_sample_once(seed: int, workers: int, bound: int, helpers: int) -> None:
    run = Training(
        SspRules(terms(workers, bound=bound, micro_batches=8)), lambda rank: Reassignment(rank, workers, helpers),
        seed=seed, task_us=uneven(seed), longest_us=5000,
    ).run()  # fmt: skip
    run.whole_clocks()
    assert run.server.most_ahead <= bound
    for each in run.taken:
        for task in each.tasks:
            assert task.shard == each.rank or each.rank in helpers_of(task.shard, workers, helpers)


def test_flexrr_helps_slow_workers() -> None:
    def slow(rank: int, clock: int, rng: random.Random) -> int:
        return 8000 if rank == 2 else 1000

    times = []
    for make in (lambda rank: WorkerRules(rank, 4), lambda rank: Reassignment(rank, 4)):
        run = Training(SspRules(terms(4, bound=1, micro_batches=16)), make, task_us=slow).run()
        times.append(run.seconds)
    helped = [each for each in run.taken if any(task.shard == 2 != each.rank for task in each.tasks)]
    assert helped
    assert times[1] < 0.5 * times[0]


def test_flexrr_takes_back_tasks_that_no_helper_has_begun() -> None:
    """Helpers are so slow in their own clocks that the owner computes the tasks that it gave away."""

    def task_us(rank: int, clock: int, rng: random.Random) -> int:
        if rank == 0:
            return 1000 if clock % 2 else 3000
        return 1000 if clock % 2 == 0 else 9000

    run = Training(
        SspRules(terms(2, bound=2, micro_batches=10)), lambda rank: Reassignment(rank, 2), task_us=task_us
    ).run()
    answers = [message.returned for _, _, message in run.said if isinstance(message, CancelReply)]
    assert any(answers)
    run.whole_clocks()


def test_helper_groups_are_a_circle() -> None:
    assert helpers_of(3, 5, 2) == (4, 0)
    assert helped_by(0, 5, 2) == (3, 4)
    assert set(helpers_of(1, 4, 0)) == {0, 2, 3}
    assert helpers_of(0, 1, 0) == ()


@SCHEDULES
@given(seeds, st.integers(2, 5), st.sampled_from([None, 0, 1, 3]), st.sampled_from([None, GAIN]))
def test_falcon_transfers_only_blocked_tasks_and_loses_none(
    seed: int, workers: int, bound: int | None, curve: Curve | None
) -> None:
    """Args: bound: None: enforced."""
    some = terms(workers, bound=bound or 0, micro_batches=8, curve=curve)
    rules = EnforcedFalconRules(some) if bound is None else FalconRules(some)
    run = Training(
        rules, lambda rank: FalconWorker(rank, workers), seed=seed, task_us=uneven(seed), longest_us=3000
    ).run()
    run.whole_clocks()
    assert run.server.most_ahead <= (bound or 0)
    by = {task: each.rank for each in run.taken for task in each.tasks}
    moved = [(sender, to, task) for sender, to, m in run.said if isinstance(m, Transfer) for task in m.tasks]
    assert len({task for *_, task in moved}) == len(moved)  # a task changes hands once at most
    for sender, to, task in moved:
        if task in by:
            assert by[task] == to
        # who gave it away has not done it
        done = {(p.step, p.shard, p.micro_batch) for record in run.records[sender] for p in record.pieces}
        assert (task.clock, task.shard, task.micro_batch) not in done
    gave = [m for _, _, m in run.said if isinstance(m, Gave)]
    assert sum(len(m.tasks) for m in gave) == len(moved)
    assert rules.transferred <= len(moved)  # the last may have come when the job was over


def test_falcon_deals_in_proportion_to_speed() -> None:
    rules = EnforcedFalconRules(terms(4, micro_batches=16, clocks=12))
    run = Training(
        rules, lambda rank: FalconWorker(rank, 4), task_us=lambda rank, *_: 4000 if rank == 3 else 1000
    ).run()
    assert sorted(rules.task_counts()) in ([4, 20, 20, 20], [5, 19, 20, 20])
    ends = np.diff([s.at_us for s in run.snapshots])
    assert ends[-1] < 22_000  # 64 tasks at 3.25 a millisecond are 19.7 ms; alone the straggler takes 64
    assert rules.transferred > 0
    assert rules.transfer_us is not None


def test_falcon_projects_a_worker_that_has_stopped() -> None:
    """A worker that pauses in a clock is detected before its task ends."""
    rules = EnforcedFalconRules(terms(3, micro_batches=8, clocks=6))
    run = Training(
        rules, lambda rank: FalconWorker(rank, 3), pause_us=lambda rank, clock: 50_000 if (rank, clock) == (1, 3) else 0
    ).run()
    moved = [task for sender, _, m in run.said if isinstance(m, Transfer) and sender == 1 for task in m.tasks]
    assert [task for task in moved if task.clock == 3]


def test_enforced_synchronisation_applies_clocks_as_a_whole() -> None:
    run = Training(
        EnforcedFalconRules(terms(3, micro_batches=4)), lambda rank: FalconWorker(rank, 3),
        task_us=lambda rank, *_: 1000 * (1 + rank),
    ).run()  # fmt: skip
    assert len({each.values.tobytes() for each in run.taken}) == 6 + 1  # and before the first clock is complete


# --- several tasks at a time ----------------------------------------------------------------------------------------------


@SCHEDULES
@given(seeds, st.integers(2, 5), st.integers(1, MOST_TASKS), st.sampled_from(["ssp", "flexrr"]))
def test_with_several_tasks_at_a_time_every_sample_counts_once(
    seed: int, workers: int, parallel: int, name: str
) -> None:
    some = terms(workers, bound=1, micro_batches=8, parallel=parallel, curve=GAIN)
    make = plain(workers) if name == "ssp" else lambda rank: Reassignment(rank, workers)
    run = Training(
        SspRules(some), make, seed=seed, task_us=uneven(seed), longest_us=3000,
        pause_us=lambda rank, clock: 2000 if (rank + clock) % 3 == 0 else 0,
    ).run()  # fmt: skip
    run.whole_clocks()
    for records in run.records:
        for record in records:
            computing = [(a.start_us, 1) for a in record.activities if a.kind in ("compute", "help")]
            computing += [(a.end_us, -1) for a in record.activities if a.kind in ("compute", "help")]
            under_way = np.cumsum([change for _, change in sorted(computing)])
            assert under_way.max(initial=0) <= parallel


def test_a_clock_takes_as_long_as_its_gain_says() -> None:
    """Eight tasks of 1 ms take 8 ms one at a time, and 8 / gain(n) with n at a time."""
    times = {}
    for parallel in (1, 2, 4, 8):
        some = terms(1, micro_batches=8, clocks=1, parallel=parallel, curve=GAIN)
        run = Training(SspRules(some), plain(1), longest_us=0).run()
        times[parallel] = run.seconds
    assert times == pytest.approx({1: 0.008, 2: 0.008 / 1.5, 4: 0.004, 8: 0.0032}, abs=4e-6)


@SCHEDULES
@given(seeds, st.integers(2, 5))
def test_without_a_gain_falcon_computes_one_at_a_time(seed: int, workers: int) -> None:
    """Message by message, a curve without a gain and no curve are the same."""
    said = []
    for curve in (None, NO_GAIN):
        rules = EnforcedFalconRules(terms(workers, micro_batches=8, curve=curve))
        run = Training(rules, lambda rank: FalconWorker(rank, workers), seed=seed, task_us=uneven(seed)).run()
        assert list(rules.parallelism()) == [1] * workers
        said.append((run.said, run.seconds, [each.values.tobytes() for each in run.taken]))
    assert said[0] == said[1]


def test_falcon_gives_a_straggler_fewer_tasks_at_a_time() -> None:
    rules = EnforcedFalconRules(terms(4, micro_batches=8, clocks=8, curve=GAIN))
    run = Training(
        rules, lambda rank: FalconWorker(rank, 4), task_us=lambda rank, *_: 4000 if rank == 3 else 1000
    ).run()
    found = rules.parallelism()
    assert found[3] < min(found[:3])
    alone = Training(
        EnforcedFalconRules(terms(4, micro_batches=8, clocks=8)), lambda rank: FalconWorker(rank, 4),
        task_us=lambda rank, *_: 4000 if rank == 3 else 1000,
    ).run()  # fmt: skip
    last, last_alone = (np.diff([s.at_us for s in each.snapshots])[-1] for each in (run, alone))
    assert last < 0.7 * last_alone


def test_falcon_begins_fewer_tasks_where_any_worker_may_be_slow() -> None:
    """A task that is begun cannot be transferred: if stragglers change from clock to clock, it has fewer under way."""

    def in_turn(slowness: int) -> Callable[[int, int, random.Random], int]:
        return lambda rank, clock, _: 1000 * (slowness if clock % 4 == rank else 1)

    chosen = []
    for slowness in (1, 12):
        rules = EnforcedFalconRules(terms(4, micro_batches=8, clocks=10, curve=GAIN))
        Training(rules, lambda rank: FalconWorker(rank, 4), task_us=in_turn(slowness)).run()
        chosen.append(list(rules.parallelism()))
    assert min(chosen[0]) == MOST_TASKS
    assert max(chosen[1]) < MOST_TASKS


def test_devices_may_have_gains_of_their_own() -> None:
    some = Terms(world_size=2, micro_batches=8, learning_rate=0.1, clocks=6, curves=(GAIN, NO_GAIN))
    rules = EnforcedFalconRules(some)
    Training(rules, lambda rank: FalconWorker(rank, 2)).run()
    assert rules.parallelism()[0] > 1 == rules.parallelism()[1]
    assert rules.task_counts()[0] > rules.task_counts()[1]


@pytest.mark.parametrize(("now_us", "done_us"), [(0, 4000.0), (500, 4000.0), (1500, 4500.0)])
def test_falcon_counts_a_task_in_progress_once(now_us: int, done_us: float) -> None:
    """With its time so far where that exceeds the mean: the worker may have stopped."""
    projection = _Projection(terms(1))
    projection.left[:], projection.task_us[:] = 4, 1000.0
    assert projection.done_us(now_us).tolist() == [done_us]
