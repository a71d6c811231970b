"""All-gather, over the compiled program in the simulated network. (protocol section 5.10)"""

import numpy as np
import pytest
from helpers.cluster import Cluster, Collective, Reduction, faulty_links
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.basics.arrays import Octets
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.net.session import Sum
from sa_atp.protocol.job.errors import MismatchError, OperationTimeoutError
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

LANES = 64


def all_gather(worker: SimWorker, part: Octets) -> Sum:
    gathered = worker.begin_gather(part.size)
    worker.contribute_part(gathered, part)
    return gathered


class Gather:
    """One all-gather over all ranks of a job."""

    def __init__(self, rng: np.random.Generator, ranks: int, size: int) -> None:
        self.parts: list[Octets] = [rng.integers(0, 256, size, np.uint8) for _ in range(ranks)]
        for part in self.parts:  # the numbers that sums cannot have
            part[: size // 4 * 4].view(np.int32)[: rng.integers(3)] = -(2**31)
        self.found: dict[int, Sum] = {}

    def start(self, worker: SimWorker) -> None:
        self.found[worker.membership.rank] = all_gather(worker, self.parts[worker.membership.rank])

    @property
    def over(self) -> bool:
        return len(self.found) == len(self.parts) and all(sum_.is_over for sum_ in self.found.values())

    def check(self) -> None:
        for sum_ in self.found.values():
            assert np.array_equal(sum_.future.result(timeout=0), np.stack(self.parts))


def run(cluster: Cluster, workers: list[SimWorker], sizes: list[int], seed: int = 1) -> None:
    rng = np.random.default_rng(seed)
    gathers = [Gather(rng, len(workers), size) for size in sizes]
    cluster.run_collectives(gathers, workers)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("fast", [False, True])
def test_each_rank_gets_all_parts(pipelines: list[Pipeline], levels: int, fast: bool) -> None:
    cluster = Cluster(pipelines if levels == 2 else pipelines[:1], kernels=worker_kernels() if fast else None)
    workers = cluster.joined_job(4)
    run(cluster, workers, [40_000, 256, 1, 3, 255, 257, 100_000])
    for stats in (worker.worker.stats for worker in workers):
        assert (stats.retransmitted, stats.malformed, stats.results_fetched, stats.poisoned) == (0, 0, 0, 0)


def test_what_travels(pipelines: list[Pipeline]) -> None:
    """Up goes a rank's part, down the whole."""
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(4)
    part = 160_000
    run(cluster, workers, [part])
    for worker in workers:
        up, down = (link.stats.carried_bytes for link in cluster.world.links_of[worker.host.endpoint.address[0]])
        assert part < up < 1.3 * part
        assert 4 * part < down < 4 * 1.3 * part


@settings(max_examples=24)
@given(seed=st.integers(0, 1 << 20))
def test_loss_duplicates_restarts_and_few_slots(pipelines: list[Pipeline], seed: int) -> None:
    """Among sums, with ranks that begin late."""
    rng = np.random.default_rng(seed)
    slots = int(rng.choice((4, 16, 64, 1024)))
    cluster = Cluster(
        pipelines if rng.random() < 0.3 else pipelines[:1], seed=seed, links=faulty_links(seed),
        settings=ServerSettings(slots=slots, slots_per_job=slots), kernels=worker_kernels() if seed % 2 else None,
    )  # fmt: skip
    workers = cluster.joined_job(int(rng.integers(1, 6)))
    cluster.restart_switches(rng)
    each: list[Collective] = []
    for _ in range(5):
        if rng.random() < 0.3:
            size = int(rng.choice((1, 700)))
            values = [[rng.standard_normal(size).astype(np.float32)] for _ in workers]
            each.append(Reduction(values, key=None if rng.random() < 0.5 else "key"))
        else:
            each.append(Gather(rng, len(workers), int(rng.choice((1, 63, 256, 1000, 5000, 20_000)))))
    for worker in workers:

        def start(worker: SimWorker = worker) -> None:
            for one in each:
                one.start(worker)

        cluster.clock.at(cluster.clock.now_us + int(rng.choice((1, 1000, 30_000))), start)
    cluster.finish_collectives(each)


def test_results_that_are_lost_come_again_from_the_switch(pipelines: list[Pipeline]) -> None:
    """A rank that has nothing to send of a fragment gets its result all the same, without the parameter server."""
    cluster = Cluster(pipelines[:1], settings=ServerSettings(slots=1024, slots_per_job=1024))
    workers = cluster.joined_job(3)
    down = cluster.world.links_of[workers[0].host.endpoint.address[0]][1]
    deliver, lost = down.deliver, set()

    def losing(frame: bytes) -> None:
        seq = frame[50:54]
        is_result = len(frame) > 42 + HEADER_BYTES and frame[42:43] == bytes([first_byte(Kind.RESULT)])
        if is_result and seq[-1] % 16 == 0 and seq not in lost:
            lost.add(seq)
        else:
            deliver(frame)

    down.deliver = losing
    run(cluster, workers, [300 * 4 * LANES])
    stats = workers[0].worker.stats
    assert len(lost) > 30
    assert stats.results_fetched < len(lost) / 4
    assert stats.resends > len(lost) / 2


def test_a_rank_that_does_not_come_is_named(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1], limits=WorkerLimits(operation_timeout_us=1_000_000))
    workers = cluster.joined_job(3)
    gather = Gather(np.random.default_rng(1), 3, 5000)
    for worker in workers[:2]:
        gather.start(worker)
    cluster.run(lambda: all(sum_.is_over for sum_ in gather.found.values()))
    for sum_ in gather.found.values():
        error = sum_.future.exception()
        assert isinstance(error, OperationTimeoutError), error
        assert "waiting for contributions of rank 2" in str(error)
    assert workers[0].worker.stats.fragments_sent == 1  # no values, which rank 2 could not have kept


@pytest.mark.parametrize("sizes", [(400, 404), (400, 80_000), (400, 402)])
def test_ranks_with_other_sizes_are_told(pipelines: list[Pipeline], sizes: tuple[int, int]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(2)
    found = [all_gather(worker, np.ones(size, np.uint8)) for worker, size in zip(workers, sizes, strict=True)]
    cluster.run(lambda: all(sum_.is_over for sum_ in found), 3)
    for sum_ in found:
        assert isinstance(sum_.future.exception(), MismatchError)


def test_a_gather_beside_a_sum_is_told(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(2)
    gathered, summed = all_gather(workers[0], np.ones(4000, np.uint8)), workers[1].begin(2048, None, whole=True)
    workers[1].contribute(summed, [np.ones(2048, np.int32)], workers[1].membership.bits_of(1))
    cluster.run(lambda: gathered.is_over and summed.is_over, 3)
    for sum_ in (gathered, summed):
        assert isinstance(sum_.future.exception(), MismatchError)


def test_wide_bitmaps_and_several_contributions_of_a_rank(many_bits: list[Pipeline]) -> None:
    cluster = Cluster(
        many_bits[:1], kernels=worker_kernels(), settings=ServerSettings(lanes=256, contribution_bits=512)
    )
    workers = cluster.joined_job(3, micro_batches=30)
    run(cluster, workers, [5000, 1])
