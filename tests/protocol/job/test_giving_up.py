"""What only a worker can notice, NaN and a time-out, is told to every rank, in the same words. (protocol section 7.4)"""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.cluster import SECOND_US, Cluster, ones

from sa_atp.lab.simulator.network import Link
from sa_atp.protocol.job.errors import NonFiniteError, OperationTimeoutError, WorkerLostError
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.packets.frames import datagram
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.server.server_events import ServerSettings

NOTICED_S = 1.0  # signs of life are 0.2 s apart, and may be lost
REPORTED_S = 5.0  # a worker that gives up waits so long for the parameter server to tell everybody
SHORT = WorkerLimits(operation_timeout_us=3 * SECOND_US)


def keep_results_from(link: Link) -> None:
    """Drops all results on a link from now on."""
    deliver = link.deliver

    def without_results(frame: bytes) -> None:
        found = datagram(frame)
        if found is None or found[2][0] != first_byte(Kind.RESULT):
            deliver(frame)

    link.deliver = without_results


@pytest.mark.parametrize(("loss", "seed"), [(0.1, 26), (0.1, 125), (0.1, 136), (0.2, 15), (0.2, 24), (0.2, 45)])
def test_nan_is_told_to_a_rank_that_missed_it(make: Callable[..., Cluster], loss: float, seed: int) -> None:
    """With these seeds the others know before the parameter server does, and one rank has to be told."""
    cluster = make(levels=2, loss=loss, seed=seed)
    workers = cluster.joined_job(4)
    reductions = [ones(300, 4) for _ in range(3)]
    reductions[2].parts[1][0][170] = np.nan
    for reduction in reductions:
        for worker in workers:
            reduction.start(worker)
    for error in cluster.run_until_failed(workers, 3.0):
        assert isinstance(error, NonFiniteError)
        assert str(error) == "operation 2: rank 1 contributed NaN or infinity between values 0 and 299"


@pytest.mark.parametrize("seed", [7, 14, 15, 17])
def test_all_ranks_name_the_same_place(make: Callable[..., Cluster], seed: int) -> None:
    """Several chunks have infinity in them, and ranks see their scales in another order."""
    cluster = make(loss=0.1, seed=seed)
    workers = cluster.joined_job(3)
    reduction = ones(10 * CHUNK_VALUES, 3)
    for chunk in range(0, 10, 3):  # each in another fragment
        reduction.parts[chunk % 3][0][chunk * CHUNK_VALUES] = np.inf
    for worker in workers:
        reduction.start(worker)
    errors = cluster.run_until_failed(workers, 3.0)
    assert all(isinstance(error, NonFiniteError) for error in errors)
    assert len({str(error) for error in errors}) == 1


def test_nan_ends_a_rank_whose_parameter_server_is_silent(make: Callable[..., Cluster]) -> None:
    cluster = make(limits=WorkerLimits(server_timeout_us=60 * SECOND_US))
    workers = cluster.joined_job(2)
    reduction = ones(300, 2)
    reduction.parts[1][0][0] = np.nan
    cluster.world.server_host.paused = True
    for worker in workers:
        reduction.start(worker)
    for error in cluster.run_until_failed(workers, REPORTED_S + NOTICED_S):
        assert isinstance(error, NonFiniteError)
        assert error.ranks == (1,)


def test_a_time_out_is_told_to_every_rank(make: Callable[..., Cluster]) -> None:
    """Also to the ranks at fault, which would find the others lost."""
    cluster = make(limits=SHORT)
    workers = cluster.joined_job(4)
    reduction = ones(200, 4)
    for rank in (0, 2):
        reduction.start(workers[rank])
    messages = {str(error) for error in cluster.run_until_failed(workers, 3.0 + NOTICED_S)}
    assert messages == {"operation 0 made no progress for 3.0 s, waiting for contributions of ranks 1, 3"}


def test_a_rank_that_has_the_sum_is_not_blamed_by_one_that_lacks_it(make: Callable[..., Cluster]) -> None:
    """No result reaches rank 2. The switch, when probed, holds only that rank's late copy of a fragment."""
    cluster = make(limits=SHORT, settings=ServerSettings(slots=1, slots_per_job=1))
    workers = cluster.joined_job(3)
    keep_results_from(cluster.world.root.switch.ports[3])
    reduction = ones(200, 3)
    for worker in workers:
        reduction.start(worker)
    for error in cluster.run_until_failed(workers, 3.0 + NOTICED_S):
        assert isinstance(error, OperationTimeoutError)
        assert error.ranks == ()
        assert "though every rank has contributed: packets are lost on the way" in str(error)


@pytest.mark.parametrize(("limits", "seconds"), [(None, 12.0), (SHORT, 4.0)], ids=["signs of life", "time-out"])
def test_a_silent_rank_that_alone_has_a_sum_is_lost_to_the_rank_that_waits(
    make: Callable[..., Cluster], limits: WorkerLimits | None, seconds: float
) -> None:
    """No result reaches rank 2 or the parameter server, and those who have it ask to leave and are cut off.

    Rank 2 hears of it as soon as they count as lost, and does not wait for its own time-out.
    """
    cluster = make(limits=limits, settings=ServerSettings(dead_after_us=min(10, int(seconds) - 2) * SECOND_US))
    workers = cluster.joined_job(3)
    world = cluster.world
    reduction = ones(200, 3)
    for worker in workers:
        reduction.start(worker)
    cluster.run(
        lambda: workers[2].worker.stats.fragments_sent == 5, 1.0
    )  # one is for the scales, whose result it needs
    keep_results_from(world.root.switch.ports[3])
    keep_results_from(world.root.switch.ports[world.ports.server])
    cluster.run(lambda: len(reduction.outcomes) == 2, 1.0)
    for worker in workers[:2]:
        worker.leave()
    cluster.run_for(0.1)
    for worker in workers[:2]:
        worker.host.paused = True
    cluster.run_until_failed([workers[2]], seconds)
    lost = workers[2].error
    assert isinstance(lost, WorkerLostError)
    assert lost.ranks == (0, 1)
    assert "not heard of since asking to leave" in str(lost)
