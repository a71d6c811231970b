"""Sums of which each rank needs a part, over the compiled program in the simulated network. (protocol section 5.9)"""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.cluster import Cluster, Reduction, faulty_links, reference_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SERVER_IP
from sa_atp.net.loop.compiled import worker_kernels
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.protocol.numbers.scattered import cut_of
from sa_atp.protocol.packets.header import first_byte
from sa_atp.protocol.packets.message_fields import Results
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

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
                assert np.array_equal(
                    outs[rank][at], (reference * 2.0 ** -float(max(exponent, -127))).astype(np.float32)
                )


def values_of(rng: np.random.Generator, ranks: int, size: int) -> list[list[np.ndarray]]:
    scale = np.exp2(rng.integers(-20, 20)).astype(np.float32)
    return [[(rng.standard_normal(ranks * size) * scale).astype(np.float32)] for _ in range(ranks)]


def run(cluster: Cluster, workers: list[SimWorker], sizes: list[int], seed: int = 1) -> list[Scattered]:
    rng = np.random.default_rng(seed)
    sums = [Scattered(values_of(rng, len(workers), size)) for size in sizes]
    cluster.run_collectives(sums, workers)
    return sums


def test_each_rank_gets_its_part_and_no_other(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(4, results=Results.SCATTERED)
    run(cluster, workers, [40_000, 64, 1, 1000])
    assert all(worker.worker.stats.retransmitted == 0 for worker in workers)
    assert all(worker.worker.stats.malformed == 0 for worker in workers)


def test_what_travels(pipelines: list[Pipeline]) -> None:
    """Up goes the whole tensor, down a part of it, and 20 bytes for each fragment of the others'."""
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(4, results=Results.SCATTERED)
    run(cluster, workers, [40_000])
    tensor = 4 * 160_000
    for worker in workers:
        up, down = (link.stats.carried_bytes for link in cluster.world.links_of[worker.host.endpoint.address[0]])
        assert tensor < up < 1.3 * tensor
        bare = (42 + HEADER_BYTES) * 160_000 * 3 / 4 / LANES
        assert tensor / 4 < down < 1.3 * (tensor / 4 + bare)


@settings(max_examples=24)
@given(seed=st.integers(0, 1 << 20))
def test_loss_duplicates_restarts_and_few_slots(pipelines: list[Pipeline], seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = int(rng.choice((16, 16, 64, 1024)))
    two_levels = bool(rng.random() < 0.3)
    cluster = Cluster(
        pipelines if two_levels else pipelines[:1], seed=seed, links=faulty_links(seed),
        settings=ServerSettings(slots=slots, slots_per_job=slots), kernels=worker_kernels() if seed % 2 else None,
    )  # fmt: skip
    workers = cluster.joined_job(int(rng.integers(1, 6)), results=Results.SCATTERED)
    cluster.restart_switches(rng)
    run(cluster, workers, [int(rng.choice((1, 63, 64, 65, 200, 700, 1500))) for _ in range(4)], seed)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_sum_that_nobody_has_is_made_anew(pipelines: list[Pipeline], levels: int) -> None:
    """The rank that needs a sum and the parameter server miss it, and its slot is another fragment's by then: all others
    have passed it, and what they contributed is all that is left of it.
    """
    few = ServerSettings(slots=16, slots_per_job=16)
    cluster = Cluster(pipelines if levels == 2 else pipelines[:1], settings=few)
    workers = cluster.joined_job(3, results=Results.SCATTERED)
    cut = cut_of(3, 16)
    assert cut is not None
    lost: set[bytes] = set()
    until_us = cluster.clock.now_us + 30_000

    def losing(deliver: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def through(frame: bytes) -> None:
            is_result = frame[42:43] == bytes([first_byte(Kind.RESULT)]) and len(frame) > 42 + HEADER_BYTES
            its_own = is_result and cut.part_of(int.from_bytes(frame[50:54])) == 1
            if its_own and cluster.clock.now_us < until_us:
                lost.add(frame[50:54])
            else:
                deliver(frame)

        return through

    for ip in (workers[1].host.endpoint.address[0], SERVER_IP):
        down = cluster.world.links_of[ip][1]
        down.deliver = losing(down.deliver)
    run(cluster, workers, [300, 5, 200, 64, 64, 64])
    assert lost
    assert any(job.stats.finished_here for job in cluster.world.server.jobs.values())


def test_a_bare_result_of_what_one_needs_completes_nothing(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(2, results=Results.SCATTERED)
    down = cluster.world.links_of[workers[0].host.endpoint.address[0]][1]
    deliver = down.deliver
    cut: list[bytes] = []

    def bare(frame: bytes) -> None:
        is_full = frame[42:43] == bytes([first_byte(Kind.RESULT)]) and len(frame) > 42 + HEADER_BYTES
        if not is_full or cut[-3:] == [frame[50:54]] * 3:
            deliver(frame)
            return
        cut.append(frame[50:54])
        size = 8 + HEADER_BYTES
        deliver(frame[:16] + (20 + size).to_bytes(2) + frame[18:38] + size.to_bytes(2) + frame[40 : 42 + HEADER_BYTES])

    down.deliver = bare
    run(cluster, workers, [64])
    assert len(cut) >= 3


def test_ranks_that_want_different_results_are_told(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.start_job(2, results=Results.SCATTERED)
    other = cluster.new_worker("job", 1, 2)
    cluster.run(lambda: other.error is not None)
    assert "results is 'to all' for rank 1 and 'scattered' for" in str(other.error)
    assert workers[0].error is None


def test_too_few_slots_for_so_many_ranks(pipelines: list[Pipeline]) -> None:
    cluster = Cluster(pipelines[:1], settings=ServerSettings(slots=4, slots_per_job=4))
    workers = cluster.start_job(5, results=Results.SCATTERED)
    cluster.run(lambda: workers[0].error is not None)
    assert "5 ranks need 8 slots for that, and a job has 4" in str(workers[0].error)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_fails_on_every_rank(pipelines: list[Pipeline], value: float) -> None:
    cluster = Cluster(pipelines[:1])
    workers = cluster.joined_job(3, results=Results.SCATTERED)
    each = Scattered(values_of(np.random.default_rng(1), 3, 500))
    each.parts[1][0][700] = value
    for worker in workers:
        each.start(worker)
    cluster.run(lambda: each.over)
    errors = [each.sums[rank].future.exception() for rank in range(3)]
    assert all(isinstance(error, NonFiniteError) and list(error.ranks) == [1] for error in errors), errors
