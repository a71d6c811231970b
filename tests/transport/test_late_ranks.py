"""Ranks that missed what others have get it, in bounded time, whatever the others do. (protocol sections 5.7, 7.6)"""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction

from sa_atp.sim.network import LinkSettings
from sa_atp.sim.worker import SimWorker
from sa_atp.softswitch.pipeline import Pipeline
from sa_atp.transport.server import ServerSettings

ONE_SLOT = ServerSettings(slots=1, slots_per_job=1)


@pytest.fixture
def make(pipelines: list[Pipeline]) -> Callable[..., Cluster]:
    def made(levels: int, seed: int, loss: float, settings: ServerSettings | None = None) -> Cluster:
        switches = pipelines[:1] if levels == 1 else pipelines
        return Cluster(switches, seed=seed, links=LinkSettings(loss=loss), settings=settings)

    return made


def joined(cluster: Cluster, size: int) -> list[SimWorker]:
    workers = cluster.start_job(size)
    cluster.run_until_joined(workers)
    return workers


def ones(values: int, ranks: int) -> Reduction:
    return Reduction([[np.full(values, 1.0 + rank, np.float32)] for rank in range(ranks)])


# seeds with which a rank was stuck for 60 s, or (one level) for longer than 20 s
@pytest.mark.parametrize(("levels", "seed"), [(2, 3), (2, 23), (2, 38), (2, 41), (2, 76), (1, 6), (1, 18), (1, 41)])
def test_a_missed_result_is_asked_for_until_it_comes(make: Callable[..., Cluster], levels: int, seed: int) -> None:
    """Every third packet is lost, and there is one slot, so that the late rank's copies claim it anew: only the parameter
    server, over up to twelve hops, can help.
    """
    cluster = make(levels, seed, 0.3, ONE_SLOT)
    workers = joined(cluster, 2)
    reduction = ones(200, 2)
    for worker in workers:
        reduction.start(worker)
    cluster.run(lambda: reduction.over, 20.0)
    reduction.check()
