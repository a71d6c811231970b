"""Whose place a rank is: of one that is there, of one that starts again, and of one that has not heard of it yet.

(protocol section 7.1)
"""

from collections.abc import Callable, Sequence

import pytest
from helpers.cluster import Cluster, ones, wake

from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.job.errors import JobRestartedError, MismatchError, RefusedError
from sa_atp.protocol.job.membership import GONE_US, OCCUPIED_US, REPEAT_US

NOTICED_S = 0.5
GONE_S, OCCUPIED_S = GONE_US / 1e6, OCCUPIED_US / 1e6
ELSEWHERE = 3  # the network of hosts on which a rank is started once more


def once_more(cluster: Cluster, rank: int, size: int, network: int = ELSEWHERE) -> SimWorker:
    """The same rank on another host."""
    cluster.world.add_worker(rank, network)
    return cluster.new_worker("job", rank, size, network)


def add_up(cluster: Cluster, workers: Sequence[SimWorker]) -> None:
    cluster.run_collectives([ones(300, len(workers))], cluster.rejoined(list(workers)), 5.0)


def assert_refused(worker: SimWorker) -> None:
    assert isinstance(worker.error, RefusedError)
    assert str(worker.error) == "job 'job': rank 1 is there already, from 10.0.0.2:40001; every rank is started once"


# --- started twice
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_rank_that_is_there_keeps_its_place(make: Callable[..., Cluster], loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    again = once_more(cluster, 1, 3)
    cluster.run_until_failed([again], OCCUPIED_S + NOTICED_S)
    assert_refused(again)
    assert [worker.error for worker in workers] == [None, None, None]
    add_up(cluster, workers)


def test_the_first_to_ask_has_the_place_before_the_job_runs(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.start_job(3)
    workers[2].host.paused = True  # is not there yet
    cluster.run_for(0.1)
    more = [once_more(cluster, 1, 3, network) for network in (3, 4)]
    cluster.run_until_failed(more, OCCUPIED_S + NOTICED_S)
    for worker in more:
        assert_refused(worker)
    wake(workers[2])
    add_up(cluster, workers)


def test_a_rank_whose_time_is_up_first_is_told_the_same(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make()
    cluster.joined_job(3)
    monkeypatch.setattr("sa_atp.lab.simulator.sim_worker.JOIN_TIMEOUT_US", 1_000_000)
    again = once_more(cluster, 1, 3)
    cluster.run_until_failed([again], 1.0 + NOTICED_S)
    assert_refused(again)


# --- started again
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize("dead_s", [0.0, 1.0, 3.0])
def test_a_rank_that_is_gone_gives_its_place_to_the_one_that_starts_again(
    make: Callable[..., Cluster], dead_s: float, loss: float
) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(3)
    workers[1].host.paused = True
    cluster.run_for(dead_s)
    again = once_more(cluster, 1, 3)
    others = [workers[0], workers[2]]
    cluster.run_until_failed(others, max(GONE_S - dead_s, 0) + 2 * NOTICED_S)
    assert all(isinstance(worker.error, JobRestartedError) for worker in others)
    members = [cluster.new_worker("job", 0, 3), again, cluster.new_worker("job", 2, 3)]
    add_up(cluster, members)


def test_a_rank_that_dies_while_another_asks_for_its_place_gives_it(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    again = once_more(cluster, 1, 2)
    cluster.run_for(OCCUPIED_S - GONE_S - 2 * REPEAT_US / 1e6)
    workers[1].host.paused = True
    cluster.run_until_failed([workers[0]], GONE_S + NOTICED_S)
    members = [cluster.new_worker("job", 0, 2), again]
    add_up(cluster, members)


def test_a_rank_that_died_while_it_joined_gives_its_place(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.start_job(3)
    workers[2].host.paused = True
    cluster.run_for(0.1)
    workers[1].host.paused = True
    again = once_more(cluster, 1, 3)
    cluster.run_for(GONE_S + NOTICED_S)
    wake(workers[2])
    members = [workers[0], again, workers[2]]
    add_up(cluster, members)


# --- not welcomed yet
# -----------------------------------------------------------------------------------------------------


def before_its_welcome(cluster: Cluster) -> list[SimWorker]:
    """Three ranks of a running job, of which rank 2 has not had its welcome. The others sum different things."""
    workers = cluster.start_job(3)
    cluster.run_until_admitting()
    workers[2].host.paused = True
    cluster.run_until_joined(workers[:2])
    for worker, values in zip(workers, (100, 200), strict=False):
        worker.begin(values)
    cluster.run_until_failed(workers[:2], 1.0)
    return workers


def test_a_mismatch_is_told_to_a_rank_that_waits_for_its_welcome(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = before_its_welcome(cluster)
    wake(workers[2])
    cluster.run_until_failed([workers[2]], NOTICED_S)
    assert isinstance(workers[2].error, MismatchError)
    assert str(workers[2].error) == str(workers[0].error)


def test_a_mismatch_is_told_although_others_have_begun_anew(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = before_its_welcome(cluster)
    again = cluster.new_worker("job", 0, 3)
    cluster.run_for(0.1)
    wake(workers[2])
    cluster.run_until_failed([workers[2]], NOTICED_S)
    assert isinstance(workers[2].error, MismatchError)
    members = [again, cluster.new_worker("job", 1, 3), cluster.new_worker("job", 2, 3)]
    add_up(cluster, members)
