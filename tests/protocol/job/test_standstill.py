"""Who did not run finds its own timer late, and blames nobody for what it could not hear. (protocol section 11)"""

import re
from collections.abc import Callable

import pytest
from helpers.cluster import SECOND_US, Cluster, Reduction, ones

from sa_atp.lab.simulator.nodes import SimHost
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.job.errors import ParameterServerLostError, WorkerLostError
from sa_atp.protocol.job.membership import Joining, JoinRequest
from sa_atp.protocol.job.standstill import LATE_US, stood_still_us
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.server_events import ServerSettings

FOREVER_US = 1 << 40


def begin(workers: list[SimWorker], ranks: list[int]) -> Reduction:
    """A sum to which some ranks have contributed."""
    reduction = ones(200, len(workers))
    for worker in workers:
        (reduction.start if worker.membership.rank in ranks else reduction.begin)(worker)
    return reduction


def stand_still(cluster: Cluster, host: SimHost, seconds: float) -> None:
    cluster.world.pause_host(host, int(seconds * SECOND_US))
    cluster.run_for(seconds + 0.001)


def test_a_timer_is_late_or_it_is_not() -> None:
    assert stood_still_us(None, FOREVER_US) == 0
    assert stood_still_us(5, 5 + LATE_US - 1) == 0
    assert stood_still_us(5, 5 + LATE_US) == LATE_US


def test_a_rank_that_stood_still_does_not_blame_the_server(make: Callable[..., Cluster]) -> None:
    """The others wait for it, and the sum is done when it goes on."""
    cluster = make(settings=ServerSettings(dead_after_us=60 * SECOND_US))
    workers = cluster.joined_job(2)
    reduction = begin(workers, [0])
    stand_still(cluster, workers[1].host, 13.0)
    reduction.contribute(workers[1])
    cluster.finish_collectives([reduction], 5.0)


def test_a_rank_lost_during_its_standstill_learns_why(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    begin(workers, [0, 1])
    stand_still(cluster, workers[1].host, 13.0)
    cluster.run_until_failed([workers[1]], 5.0)
    assert str(workers[0].error) == "lost rank 1: not heard of for 10.0 s"
    assert isinstance(workers[1].error, WorkerLostError)
    said = re.fullmatch(
        r"lost rank 1: not heard of for 10\.0 s; this process did not run for (\d+\.\d) s", str(workers[1].error)
    )
    assert said is not None
    assert float(said[1]) == pytest.approx(13.0, abs=0.3)


def test_a_server_that_is_gone_as_well_is_found_lost_a_bound_later(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    cluster.world.server_host.paused = True
    stand_still(cluster, workers[1].host, 13.0)
    cluster.run_for(9.0)
    assert [worker.error for worker in workers[1:]] == [None]
    cluster.run_until_failed([workers[1]], 3.0)
    assert isinstance(workers[1].error, ParameterServerLostError)
    assert "; this process did not run for 1" in str(workers[1].error)


def test_a_server_that_stood_still_does_not_blame_ranks(make: Callable[..., Cluster]) -> None:
    cluster = make(limits=WorkerLimits(server_timeout_us=60 * SECOND_US))
    workers = cluster.joined_job(3)
    cluster.world.hosts["10.0.0.3"].paused = True  # this one is gone for good
    stand_still(cluster, cluster.world.server_host, 13.0)
    cluster.run_for(5.0)
    assert [worker.error for worker in workers] == [None] * 3
    cluster.run_until_failed([workers[0]], 7.0)
    assert str(workers[0].error) == "lost rank 2: not heard of for 10.0 s"


def test_a_server_that_stood_still_while_ranks_join_keeps_their_places(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (worker,) = cluster.start_job(2)[:1]
    cluster.world.hosts["10.0.0.2"].paused = True
    cluster.run_for(0.5)
    (job,) = cluster.world.server.jobs.values()
    before = job.members[0]
    stand_still(cluster, cluster.world.server_host, 8.0)
    assert job.members == {0: before}, "it is not dropped, and asks anew"
    assert job.state is State.GATHERING
    assert worker.error is None


def test_the_time_out_of_a_sum_does_not_count_a_standstill(make: Callable[..., Cluster]) -> None:
    """Both ranks stood still, as on a suspended host: neither has had its 3 s."""
    cluster = make(
        settings=ServerSettings(dead_after_us=60 * SECOND_US),
        limits=WorkerLimits(operation_timeout_us=3 * SECOND_US),
    )
    workers = cluster.joined_job(2)
    reduction = begin(workers, [0])
    cluster.run_for(1.0)
    for worker in workers:
        cluster.world.pause_host(worker.host, 8 * SECOND_US)
    cluster.run_for(9.0)
    assert [worker.error for worker in workers] == [None, None]
    reduction.contribute(workers[1])
    cluster.finish_collectives([reduction], 2.0)


def test_a_joining_rank_gets_its_whole_time_after_a_standstill() -> None:
    joining = Joining(
        JoinRequest(job="job", rank=0, world_size=2), ("10.0.0.9", 1), incarnation=7, now_us=0, timeout_us=5 * SECOND_US
    )
    joining.transmit(0)
    for now_us in (20 * SECOND_US, 20 * SECOND_US + 1):
        joining.handle_timer(now_us)
        joining.transmit(now_us)
    assert not joining.finished
    for now_us in range(20 * SECOND_US, 26 * SECOND_US, 200_000):
        joining.handle_timer(now_us)
        joining.transmit(now_us)
    assert isinstance(joining.error, ParameterServerLostError)
