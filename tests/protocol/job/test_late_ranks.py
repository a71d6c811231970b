"""Ranks that missed what others have get it, in bounded time, whatever the others do. (protocol sections 5.7, 7.6)"""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

import pytest
from helpers.cluster import SECOND_US, Cluster, Reduction, ones

from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import worker_ip
from sa_atp.protocol.job.errors import WorkerLostError
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.server_events import ServerSettings

ONE_SLOT = ServerSettings(slots=1, slots_per_job=1)


# --- results that were missed -----------------------------------------------------------------------------------------


# seeds with which a rank was stuck for 60 s, or (one level) for longer than 20 s. How long it takes is chance, with two
# levels more than these 20 s for one seed in four.
@pytest.mark.parametrize(("levels", "seed"), [(2, 3), (2, 38), (2, 41), (2, 76), (1, 6), (1, 18), (1, 41)])
def test_a_missed_result_is_asked_for_until_it_comes(make: Callable[..., Cluster], levels: int, seed: int) -> None:
    """Every third packet is lost, and there is one slot, so that the late rank's copies claim it anew: only the
    parameter server, over up to twelve hops, can help.
    """
    cluster = make(levels=levels, seed=seed, loss=0.3, settings=ONE_SLOT)
    workers = cluster.joined_job(2)
    cluster.run_collectives([ones(200, 2)], workers, 20.0)


def sum_without_the_last(cluster: Cluster, fragments: int, is_lost: Callable[[int], bool]) -> tuple[int, int]:
    """Others do all that the last of three ranks had to do.

    Args: is_lost: whether a packet with lanes that comes down to it is lost, by its number from 1 on.
    Returns: how long it takes until all have the sum, in microseconds; how many results the last one has fetched.
    """
    workers = cluster.joined_job(3, help_grade=HelpGrade.STEAL)
    came = count(1)
    down = cluster.world.links_of[worker_ip(2)][1]
    deliver = down.deliver

    def lose_some(frame: bytes) -> None:
        if len(frame) <= 200 or not is_lost(next(came)):
            deliver(frame)

    down.deliver = lose_some
    reduction = ones(64 * fragments, 3)
    for worker in workers:
        reduction.begin(worker)
    began_us = cluster.clock.now_us
    for worker in workers[:2]:
        reduction.contribute(worker)
    reduction.contribute(workers[0], rank=2)
    cluster.finish_collectives([reduction], 2.0)
    assert next(came) > fragments
    return cluster.clock.now_us - began_us, workers[2].worker.stats.results_fetched


@pytest.mark.parametrize("levels", [1, 2])
def test_a_rank_without_contributions_does_not_wait_long_for_missed_results(
    make: Callable[..., Cluster], levels: int
) -> None:
    """Nothing of its own is in flight, so no answer tells it what is lost; it is in everybody's way if it takes the sum
    much later than the others.
    """
    took_us, fetched = sum_without_the_last(make(levels=levels), 40, lambda n: n == 5)
    assert took_us < 50_000
    assert 0 < fetched <= 4, "what it has need not come again"


def test_scattered_losses_are_asked_for_together(make: Callable[..., Cluster]) -> None:
    fragments = 2000
    took_us, fetched = sum_without_the_last(make(delay_us=1_000), fragments, lambda n: n <= fragments and n % 10 == 0)
    assert took_us < 120_000, "one round trip for each lost result would be 800 ms"
    assert fetched < 2 * fragments // 10


def test_sums_are_forgotten_though_the_parameter_server_is_far_away(make: Callable[..., Cluster]) -> None:
    """A round trip takes longer than the time between two signs of life."""
    cluster = make(delay_us=60_000)
    workers = cluster.joined_job(2)
    for _ in range(5):
        cluster.run_collectives([ones(200, 2)], workers, 5.0)
    assert all(worker.worker._fetching._kept for worker in workers)  # others may have missed a result
    cluster.run_for(2.0)
    assert not any(worker.worker._fetching._kept for worker in workers)


# --- leaving
# --------------------------------------------------------------------------------------------------------------


def close(worker: SimWorker) -> "Future[None]":
    """As Communicator.close: ends the connection when the server has let it go, or its time is up."""
    gone = worker.leave()
    gone.add_done_callback(lambda _: setattr(worker.host, "paused", True))
    return gone


# seeds with which a rank was stuck, because those who had what it missed were gone
@pytest.mark.parametrize("seed", [4, 30, 34, 59, 86, 91, 114, 142])
def test_a_closing_rank_stays_for_ranks_that_missed_a_result(make: Callable[..., Cluster], seed: int) -> None:
    """Every rank closes when it has its last sum."""
    cluster = make(levels=2, seed=seed, loss=0.1)
    workers = cluster.joined_job(4)
    reductions = [ones(700, 4) for _ in range(3)]
    closed: list[Future[None]] = []

    def go_on(worker: SimWorker, at: int = 0) -> None:
        if at == len(reductions):
            closed.append(close(worker))
            return
        future = reductions[at].start(worker).future
        future.add_done_callback(lambda _: cluster.clock.at(cluster.clock.now_us + 1, lambda: go_on(worker, at + 1)))

    for worker in workers:
        go_on(worker)
    cluster.run(lambda: len(closed) == 4 and all(future.done() for future in closed), 10.0)
    for reduction in reductions:
        reduction.check()


def ahead_of_rank_1(cluster: Cluster, workers: list[SimWorker]) -> Reduction:
    """Rank 0 has a sum that rank 1 has not begun, because another rank has contributed on its behalf."""
    reduction = ones(200, 2)
    reduction.start(workers[0])
    reduction.contribute(workers[0], rank=1)
    cluster.run(lambda: 0 in reduction.outcomes, 1.0)
    return reduction


def test_a_closing_rank_goes_when_all_ranks_have_its_sums(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    reduction = ahead_of_rank_1(cluster, workers)
    cluster.world.server.jobs[workers[0].membership.job].sums.clear()  # it has missed all of it
    gone = close(workers[0])
    cluster.run_for(5.0)
    assert not gone.done()
    reduction.begin(workers[1])
    cluster.run(lambda: reduction.over and gone.done(), 1.0)
    reduction.check()


def test_a_closing_rank_waits_for_a_rank_behind_for_a_bounded_time(make: Callable[..., Cluster]) -> None:
    cluster = make(limits=WorkerLimits(operation_timeout_us=3 * SECOND_US))
    workers = cluster.joined_job(2)
    ahead_of_rank_1(cluster, workers)
    gone = close(workers[0])
    cluster.run(gone.done, 3.1)
    assert workers[1].error is None


def test_closing_all_at_once_takes_a_round_trip(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(3)
    cluster.run_collectives([ones(200, 3)], workers, 1.0)
    gone = [close(worker) for worker in workers]
    cluster.run(lambda: all(future.done() for future in gone), 0.001)
    assert cluster.world.server.jobs[workers[0].membership.job].state is State.ENDED


def test_closing_does_not_wait_for_a_silent_parameter_server(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    cluster.world.server_host.paused = True
    cluster.run(close(workers[0]).done, 2.1)


def test_closing_ends_when_the_job_fails(make: Callable[..., Cluster]) -> None:
    """The rank that is behind has died."""
    cluster = make(settings=ServerSettings(dead_after_us=2 * SECOND_US))
    workers = cluster.joined_job(2)
    ahead_of_rank_1(cluster, workers)
    workers[1].host.paused = True
    gone = close(workers[0])
    cluster.run(gone.done, 3.0)
    assert isinstance(gone.exception(), WorkerLostError)
