"""What hosts say of ports that nobody has ends what has ended, and nothing that is heard of. (protocol section 7.4)"""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from helpers.answers import SWITCH, member_of
from helpers.cluster import SECOND_US, SERVER, Cluster, ones, wake
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.job.errors import OperationTimeoutError, ParameterServerLostError, WorkerLostError
from sa_atp.protocol.packets.control import Alive, Failure, Progress, ReportTimeout, decode_request, encode
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import headers
from sa_atp.protocol.rank.worker import Worker
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

SOON_S = 1.0
LONG_S = 60.0


@pytest.fixture
def make(make: Callable[..., Cluster]) -> Callable[..., Cluster]:
    return partial(make, settings=ServerSettings(dead_after_us=int(LONG_S * SECOND_US)))


def server_hears_of(cluster: Cluster, *workers: SimWorker) -> None:
    """Hosts report ranks' ports closed."""
    addresses = {worker.host.endpoint.address for worker in workers}
    cluster.world.server.ports_closed(addresses, cluster.clock.now_us)
    cluster.world.server_host.serve()


def end(cluster: Cluster, *workers: SimWorker) -> None:
    """Ends ranks' processes, and lets the server probe their hosts."""
    for worker in workers:
        worker.host.paused = True
    cluster.run(lambda: cluster.world.server.doubts(cluster.clock.now_us), SOON_S)
    cluster.run_for(0.2)  # the last of them has missed its signs as well
    server_hears_of(cluster, *workers)


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_ranks_whose_processes_have_ended_are_lost_at_once(make: Callable[..., Cluster], loss: float) -> None:
    cluster = make(loss=loss)
    workers = cluster.joined_job(4)
    ones(500, 4).start(workers[0])
    end(cluster, workers[1], workers[3])
    cluster.run(lambda: all(workers[rank].error is not None for rank in (0, 2)), SOON_S)
    for rank in (0, 2):
        error = workers[rank].error
        assert isinstance(error, WorkerLostError)
        assert str(error) == "lost ranks 1, 3: process ended, or connection closed"


@given(
    seed=st.integers(0, 1 << 32),
    times=st.lists(st.integers(0, 400_000), max_size=20),
    loss=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=15)
def test_no_refusal_ends_a_job_in_which_everybody_is_heard_of(
    pipelines: list[Pipeline], seed: int, times: list[int], loss: float
) -> None:
    """Refusals may be forged, or be for an earlier owner of the port, at any time, at any party."""
    cluster = Cluster(pipelines[:1], seed=seed, links=LinkSettings(loss=loss))
    workers = cluster.joined_job(3)
    rng = random.Random(seed)

    def refuse() -> None:
        addresses = {worker.host.endpoint.address for worker in rng.sample(workers, 2)}
        cluster.world.server.ports_closed(addresses, cluster.clock.now_us)
        rng.choice(workers).worker.ports_closed({SERVER}, cluster.clock.now_us)

    start_us = cluster.clock.now_us
    for after_us in times:
        cluster.clock.at(start_us + after_us, refuse)
    for number in range(4):
        cluster.run_collectives([ones(300 + number, 3)], workers, 10.0)
        cluster.run_for(0.1)
    assert all(worker.error is None for worker in workers)


def test_a_rank_that_is_silent_for_a_moment_is_not_lost_without_a_refusal(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(3)
    reduction = ones(500, 3)
    reduction.start(workers[0])
    workers[1].host.paused = True
    cluster.run_for(5.0)
    server_hears_of(cluster, workers[0], workers[2])  # who are heard of
    wake(workers[1])
    for worker in workers[1:]:
        reduction.start(worker)
    cluster.finish_collectives([reduction], 2.0)


def test_a_rank_that_has_left_may_close_its_port(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    left = workers[1].leave()
    cluster.run(left.done, SOON_S)
    workers[1].host.paused = True
    cluster.run_for(2.0)
    server_hears_of(cluster, workers[1])
    assert [job.state for job in cluster.world.server.jobs.values()] == [State.RUNNING]
    assert workers[0].error is None


def test_the_place_of_a_rank_that_ended_before_the_job_runs_is_free_at_once(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.start_job(2)
    workers[0].host.paused = True  # it is not started yet
    cluster.run(lambda: bool(cluster.world.server.jobs), SOON_S)
    (job,) = cluster.world.server.jobs.values()
    assert job.missing == [0]
    end(cluster, workers[1])
    assert job.missing == [0, 1]


def test_a_parameter_server_whose_process_has_ended_is_named_at_once(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(2)
    cluster.world.server_host.paused = True
    cluster.run_for(0.1)
    workers[0].worker.ports_closed({SERVER}, cluster.clock.now_us)
    assert workers[0].error is None
    cluster.run(lambda: workers[0].worker.doubts(cluster.clock.now_us), SOON_S)
    workers[0].worker.ports_closed({("10.0.255.1", 9)}, cluster.clock.now_us)
    assert workers[0].error is None
    workers[0].worker.ports_closed({SERVER}, cluster.clock.now_us)
    (error,) = cluster.run_until_failed(workers[:1], SOON_S)
    assert isinstance(error, ParameterServerLostError)
    assert str(error) == "the parameter server at 10.0.255.1:21313 is gone: its process has ended"


# --- a switch with an address of its own
# --------------------------------------------------------------------------------


def lonely() -> Worker:
    """A worker with a sum under way whose questions get no answers."""
    worker = Worker(member_of(alive_every_us=200_000), 0, first_request=1)
    worker.collectives.contribute(worker.collectives.begin(10, None, 0), [np.ones(10, np.float32)], 1, 0)
    return worker


def live(worker: Worker, until_us: int, *, refuses_until_us: int) -> tuple[int | None, list[ReportTimeout]]:
    """Lets time pass, with a parameter server that answers signs of life, and a host that refuses all for a switch.

    Returns: when the worker has given up, and what it said.
    """
    reports: list[ReportTimeout] = []
    refuses_next_us = 0
    for now_us in range(0, until_us, 10_000):
        due_us = worker.next_timer_us()
        if due_us is not None and due_us <= now_us:
            worker.handle_timer(now_us)
        for burst in worker.transmit(now_us):
            if burst.address == SWITCH:
                if refuses_next_us <= now_us < refuses_until_us and worker.doubts(now_us):
                    worker.ports_closed({SWITCH}, now_us)
                    refuses_next_us = now_us + 1_100_000  # a host does not say so more often, to all who ask together
                continue
            for row, header in zip(burst.data, headers(burst.data), strict=True):
                asked, number = decode_request(row.tobytes()), int(header["seq"])
                if isinstance(asked, ReportTimeout):
                    return now_us, [*reports, asked]
                if isinstance(asked, Alive):
                    said = encode(Progress(passed=0), request=number, job=1, epoch=1, reply=True)
                    worker.receive([Burst.of(worker.membership.server_address, said)], now_us)
    return None, reports


def test_a_switch_that_stays_away_is_named() -> None:
    at_us, reports = live(lonely(), 30 * SECOND_US, refuses_until_us=30 * SECOND_US)
    assert at_us is not None
    assert 10 * SECOND_US < at_us < 12 * SECOND_US
    assert reports[0].switch == "127.0.0.1:1000"


def test_a_switch_that_comes_back_costs_time_only() -> None:
    """It has lost all of its slots, and does not answer yet; no rank gives up before the bound."""
    assert live(lonely(), 30 * SECOND_US, refuses_until_us=9 * SECOND_US)[0] is None


def test_all_ranks_hear_which_switch_is_gone(make: Callable[..., Cluster]) -> None:
    cluster = make()
    workers = cluster.joined_job(3)
    ones(10, 3).start(workers[0])
    gone = OperationTimeoutError(0, 10.5, None, switch="127.0.0.1:40000")
    workers[0].worker.server.give_up(gone, cluster.clock.now_us)
    workers[0].host.serve()
    cluster.run(lambda: all(worker.error is not None for worker in workers), SOON_S)
    for worker in workers:
        assert isinstance(worker.error, OperationTimeoutError)
        assert str(worker.error) == (
            "operation 0 made no progress for 10.5 s, because the switch at 127.0.0.1:40000 is gone: its process has ended"
        )
    (job,) = cluster.world.server.jobs.values()
    assert isinstance(job.failure, Failure)
    assert job.failure.ranks == []
