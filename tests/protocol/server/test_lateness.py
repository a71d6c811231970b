"""Who was slow: found from what ranks tell of the same sums, in numbers and in simulated jobs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median_low

import msgspec
import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.cli.parts import stragglers
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.packets.control import MAX_BYTES, encode
from sa_atp.protocol.packets.fitting import fitted
from sa_atp.protocol.packets.lateness_messages import (
    LEAST_SUMS,
    LONGEST_TOTAL_US,
    LONGEST_WAIT_US,
    JobLateness,
    RankLateness,
    Wait,
)
from sa_atp.protocol.server.lateness import MOST_WAITING, Lateness, _Others
from sa_atp.switches.embedded.pipeline import Pipeline

TIMES = st.integers(0, LONGEST_WAIT_US)
TRIP_US = 50


STEP_US = 100_000


def compared(*sums: Sequence[tuple[int, int]], step_us: int = STEP_US) -> JobLateness:
    """Args: sums: of each rank how long it waited, and how long of that its contribution took to leave.
    step_us: between two sums.
    """
    found = Lateness(len(sums[0]))
    found.begin(0)
    for operation, told in enumerate(sums):
        for rank, (waited_us, sent_us) in enumerate(told):
            found.take(rank, [Wait(operation, waited_us, sent_us, TRIP_US)], operation * step_us)
    return found.told()


def test_who_contributes_late_was_computing() -> None:
    found = compared([(50_100, 0), (50_200, 100), (300, 200), (50_100, 0)])
    assert (found.sums, found.ranks[0]) == (1, RankLateness(2, 1, 1, 50_000, 49_800, 200, 300))
    assert found.verdict == "nobody was slow for long enough to tell"
    again = compared(*[[(50_100, 0), (50_200, 100), (300, 200), (50_100, 0)]] * LEAST_SUMS)
    assert again.verdict == "rank 2 was late in 21 of 21 sums, by 50 ms on average, computing"


def test_whose_contribution_leaves_slowly_was_sending() -> None:
    found = compared([(20_000, 1000), (20_000, 1000), (20_000, 19_000)])
    assert found.ranks[0] == RankLateness(2, 1, 1, 18_000, 0, 18_000, 20_000)
    assert found.ranks[0].activity == "sending"


def test_two_of_four_may_be_slow() -> None:
    found = compared(*[[(50_000, 0), (60, 0), (10_060, 0), (50_000, 0)]] * LEAST_SUMS)
    assert [(each.rank, each.late, each.last) for each in found.slow] == [(1, 21, 21), (2, 21, 0)]
    assert "rank 1 was" in found.verdict
    assert "rank 2 was" in found.verdict


def test_one_for_whom_others_have_contributed_was_computing() -> None:
    found = compared([(30_000, 0), (0, 0), (30_000, 0)])
    assert (found.ranks[0].rank, found.ranks[0].computing_us) == (1, 30_000 - TRIP_US)


def test_differences_below_a_round_trip_say_nothing() -> None:
    found = compared(*[[(100, 0), (100 + TRIP_US, 0), (90, 0)], [(100, 0), (60, 0), (100, 0)]] * LEAST_SUMS)
    assert not found.slow
    assert found.verdict == "nobody was slow: no rank held up the others for 10% of the time that they waited"
    assert Lateness(3).told().verdict == "nothing is known of who was slow"


def test_what_costs_the_job_less_than_a_hundredth_is_not_told() -> None:
    sums = [[(500, 0), (60, 0), (500, 0)]] * LEAST_SUMS
    for step_us, said in (
        (STEP_US, "nobody was slow for long enough to tell"),
        (1000, "rank 1 was late in 21 of 21 sums"),
    ):
        found = compared(*sums, step_us=step_us)
        assert found.lasted_us == (LEAST_SUMS - 1) * step_us
        assert found.verdict.startswith(said)


@pytest.mark.parametrize(("jobs", "slow"), [(3, False), (6, True)])
def test_short_jobs_are_told_as_one(jobs: int, slow: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = msgspec.to_builtins(compared(*[[(50_000, 0), (60, 0)]] * 4))
    other = msgspec.to_builtins(compared(*[[(50_000, 0), (60, 0), (50_000, 0)]] * LEAST_SUMS))
    told = [json.dumps({"job": f"job {number}", "stragglers": found}) for number in range(jobs)]
    stragglers.tell([*told, json.dumps({"job": "long", "stragglers": other}), json.dumps({"job": "none"})])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "job long, 21 sums: rank 1 was late in 21 of 21 sums, by 49.9 ms on average, computing"
    verdict = "rank 1 was late in 24 of 24 sums, by 49.9 ms on average, computing"
    assert lines[5] == (
        f"{jobs} short jobs of 2 ranks, {4 * jobs} sums: {verdict if slow else 'nobody was slow for long enough to tell'}"
    )
    assert [line.split()[:3] for line in lines[7:]] == ([["0", "0", "0"], ["1", "24", "24"]] if slow else [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), TIMES, TIMES, TIMES), max_size=60))
def test_whatever_ranks_tell(told: list[tuple[int, int, int, int, int]]) -> None:
    found = Lateness(4)
    for rank, operation, waited_us, sent_us, round_trip_us in told:
        found.take(rank, [Wait(operation, waited_us, sent_us, round_trip_us)], 0)
    result = found.told()
    everybody = [{(r, o) for r, o, *_ in told if r == rank} for rank in range(4)]
    assert result.sums >= len(set.intersection(*({o for _, o in each} for each in everybody)))
    for each in result.ranks:
        assert each.last <= each.late <= result.sums
        assert each.computing_us + each.sending_us == each.late_us
        assert each.late_us <= sum(waited_us for rank, _, waited_us, *_ in told if rank != each.rank)
    assert sum(each.last for each in result.ranks) <= result.sums
    assert result.verdict


@given(st.lists(TIMES, min_size=2, max_size=9))
def test_half_of_the_others_or_more_reach_it(times_us: list[int]) -> None:
    for rank, own_us in enumerate(times_us):
        others_us = times_us[:rank] + times_us[rank + 1 :]
        assert _Others(times_us).median_us(own_us) == median_low(others_us)


@given(st.permutations(range(4)), TIMES)
def test_it_does_not_matter_who_tells_first(order: list[int], waited_us: int) -> None:
    def of(ranks: Sequence[int]) -> JobLateness:
        found = Lateness(4)
        for rank in ranks:
            found.take(rank, [Wait(0, waited_us * (rank > 0), 0, 0)], 0)
        return found.told()

    assert of(order) == of(range(4))


def test_what_is_remembered_is_bounded() -> None:
    found = Lateness(2)
    for operation in range(10 * MOST_WAITING):
        found.take(0, [Wait(operation, 1, 0, 0)], 0)
    assert len(found._told) == MOST_WAITING
    newest = 10 * MOST_WAITING - 1
    found.take(1, [Wait(newest - MOST_WAITING, 1, 0, 0), Wait(newest, 1, 0, 0)], 0)
    assert found.told().sums == 1


def test_an_answer_tells_of_as_many_as_fit() -> None:
    most = RankLateness(63, 1 << 40, 1 << 40, *[LONGEST_TOTAL_US] * 4)
    found = fitted(JobLateness(sums=1 << 40, ranks=[most] * 64), MAX_BYTES)
    assert isinstance(found, JobLateness)
    assert 8 <= len(found.ranks) < 64
    assert len(encode(found, request=1, reply=True)) <= MAX_BYTES


# --- simulated jobs -------------------------------------------------------------------------------------------------------


def run(pipeline: Pipeline, *, late_us: int = 0, slow: float = 1.0, fragments: int, steps: int) -> JobLateness:
    """Four ranks sum; rank 2 contributes later, or has a slower link up."""
    cluster = Cluster([pipeline], links=LinkSettings(rate_mbps=1000.0))
    workers = cluster.joined_job(4)
    up, _ = cluster.world.links_of["10.0.0.3"]
    up.settings = replace(up.settings, rate_mbps=1000.0 / slow)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        reduction = Reduction([[rng.normal(size=fragments * 64).astype(np.float32)] for _ in workers], key="gradient")
        for worker in workers:
            begins_us = cluster.clock.now_us + (late_us if worker.membership.rank == 2 else 0)
            cluster.clock.at(begins_us, partial(_start, reduction, worker))
        cluster.finish_collectives([reduction])
    left = [worker.leave() for worker in workers]  # which tells the rest
    cluster.run(lambda: all(each.done() for each in left))
    (job,) = cluster.world.server.jobs.values()
    return job.lateness.told()


def _start(reduction: Reduction, worker: SimWorker) -> None:
    reduction.start(worker)


@pytest.mark.parametrize("fragments", [4, 200])
def test_a_rank_that_contributes_late(pipeline: Pipeline, fragments: int) -> None:
    found = run(pipeline, late_us=30_000, fragments=fragments, steps=4)
    worst, *others = found.ranks
    assert (found.sums, worst.rank, worst.late, worst.last) == (4, 2, 4, 4)
    assert worst.computing_us == pytest.approx(4 * 30_000, rel=0.02)
    assert worst.sending_us < 0.05 * worst.computing_us
    assert [each.late for each in others] == [0, 0, 0]
    assert worst.activity == "computing"
    assert found.lasted_us >= 3 * 30_000


def test_a_rank_whose_link_is_slow(pipeline: Pipeline) -> None:
    found = run(pipeline, slow=10, fragments=300, steps=3)
    worst, *others = found.ranks
    assert (found.sums, worst.rank, worst.late, worst.last) == (3, 2, 3, 3)
    wire_us = 300 * (318 + 24) * 8 / 1000  # of a contribution, on a link of the others
    # what queues on the way may have left for the sender: so it is less than the link costs
    assert 0.25 * 9 * wire_us < worst.late_us / 3 < 9 * wire_us
    assert worst.sending_us > 0.95 * worst.late_us
    assert [each.late for each in others] == [0, 0, 0]
