"""Sums of which each rank needs a part, over the compiled program in the simulated network. (protocol section 5.9)"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.packets.header import HEADER_BYTES
from sa_atp.protocol.packets.message_fields import Results
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline
from tests.helpers.cluster import Cluster, Reduction, reference_sum

LANES = 64


class Scattered(Reduction):
    """A reduce-scatter over all ranks of a job."""

    def check(self) -> None:
        """Each rank has its part of the sum of the quantised values, bit for bit."""
        contributions = [part for shard in self.parts for part in shard]
        outs = {rank: sum_.future.result(timeout=0) for rank, sum_ in self.sums.items()}
        assert sorted(outs) == list(range(len(self.parts)))
        size = self.values // len(self.parts)
        for rank, (integers, exponents) in self.outcomes.items():
            part = slice(rank * size, (rank + 1) * size)
            for exponent in np.unique(exponents):
                at = np.flatnonzero(exponents == exponent)
                reference, _ = reference_sum([c[part][at] for c in contributions], np.full(1 + size // 16384, exponent))
                assert np.array_equal(integers[at], reference), f"rank {rank}"
                assert np.array_equal(outs[rank][at], (reference * 2.0 ** -float(max(exponent, -127))).astype(np.float32))


def values_of(rng: np.random.Generator, ranks: int, size: int) -> list[list[np.ndarray]]:
    scale = np.exp2(rng.integers(-20, 20)).astype(np.float32)
    return [[(rng.standard_normal(ranks * size) * scale).astype(np.float32)] for _ in range(ranks)]


def job_of(cluster: Cluster, ranks: int) -> list[SimWorker]:
    workers = cluster.start_job(ranks, results=Results.SCATTERED)
    cluster.run_until_joined(workers)
    return workers


def run(cluster: Cluster, workers: list[SimWorker], sizes: list[int], seed: int = 1) -> list[Scattered]:
    rng = np.random.default_rng(seed)
    sums = [Scattered(values_of(rng, len(workers), size)) for size in sizes]
    for each in sums:
        for worker in workers:
            each.start(worker)
    cluster.run(lambda: all(each.over for each in sums))
    for each in sums:
        each.check()
    cluster.check_books()
    return sums


def test_each_rank_gets_its_part_and_no_other(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = job_of(cluster, 4)
    run(cluster, workers, [40_000, 64, 1, 1000])
    assert all(worker.worker.stats.retransmitted == 0 for worker in workers)
    assert all(worker.worker.stats.malformed == 0 for worker in workers)
