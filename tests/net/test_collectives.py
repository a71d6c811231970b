"""Reduce-scatter and all-gather over real sockets, and over shared memory: switch and parameter server as processes."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ranks import on_ranks

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.cluster import WORKERS_PORT, LocalCluster
from sa_atp.lab.runs.processes import Group
from sa_atp.net.communicator import Communicator

RANKS, GATHERING = 4, 3


def test_each_rank_gets_its_part(server: str) -> None:
    lengths = (4, 4 * 63, 4 * 64, 4 * 65, 4 * 20_000)

    def work(comm: Communicator) -> list[np.ndarray]:
        rank = comm.membership.rank
        arrays = [np.arange(n, dtype=np.float32) + rank for n in lengths]
        futures = [comm.reduce_scatter_async(array) for array in arrays]
        parts = [comm.reduce_scatter(array, scale=0.5) for array in arrays]
        for part, future in zip(parts, futures, strict=True):
            np.testing.assert_array_equal(part, future.result(30) * 0.5)
        assert comm.stats().malformed == 0
        return parts

    for rank, parts in enumerate(on_ranks(server, work, "parts", RANKS, results="scattered")):
        for n, part in zip(lengths, parts, strict=True):
            size = n // RANKS
            np.testing.assert_array_equal(part, 2 * np.arange(n, dtype=np.float32)[rank * size : (rank + 1) * size] + 3)


def test_calls_that_do_not_fit_the_job(server: str) -> None:
    def scattered(comm: Communicator) -> None:
        with pytest.raises(UserError, match="results of this job are scattered"):
            comm.all_reduce(np.ones(8, np.float32))
        with pytest.raises(UserError, match="9 values are not 4 equal parts"):
            comm.reduce_scatter(np.ones(9, np.float32))
        assert comm.reduce_scatter(np.ones(0, np.float32)).size == 0

    def to_all(comm: Communicator) -> None:
        with pytest.raises(UserError, match='joined with results="scattered"'):
            comm.reduce_scatter(np.ones(8, np.float32))

    on_ranks(server, scattered, "scattered", RANKS, results="scattered")
    on_ranks(server, to_all, "to all", RANKS)
    with pytest.raises(UserError, match="expected one of to all, scattered"):
        sa_atp.connect(server, job="none", rank=0, world_size=1, results="gathered")
    with pytest.raises(UserError, match="do not go together"):
        sa_atp.connect(server, job="none", rank=0, world_size=1, results="scattered", help="steal")


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "UDP"])
def test_a_switch_that_is_killed_and_started_again_beside_a_job(tmp_path: Path, shares: bool) -> None:
    """The parameter server configures the new one, and what the old one had summed is sent again."""
    size, done, last = 100_000, [0] * RANKS, [1_000_000]
    base = (np.arange(RANKS * size) % 977).astype(np.float32)

    def work(comm: Communicator) -> bool:
        rank = comm.membership.rank
        mine = slice(rank * size, (rank + 1) * size)
        while done[rank] < last[0]:
            part = comm.reduce_scatter(base * (rank + 1) + done[rank])
            np.testing.assert_array_equal(part, base[mine] * sum(range(1, RANKS + 1)) + RANKS * done[rank])
            done[rank] += 1
        return comm.shares_memory

    def until(steps: int, running: "Future[list[bool]]") -> None:
        while min(done) < steps and not running.done():
            time.sleep(0.01)

    with Group() as group, ThreadPoolExecutor(1) as pool:
        cluster = LocalCluster(group, tmp_path, lanes=64, slots=256, shares=shares)
        host, port = cluster.ready()
        running = pool.submit(on_ranks, f"udp://{host}:{port}", work, "restarted", RANKS, results="scattered")
        until(3, running)
        cluster.switch._process.kill()
        cluster.switch._process.wait()
        place = ["--udp", "{}={}:{}".format(WORKERS_PORT, *cluster.switch_address), "--grpc", cluster.grpc]
        options = ["--lanes", "64", "--contributions", "64", *place, *([] if shares else ["--no-shm"])]
        group.start("switch", ["sa_atp", "switch", *options], tmp_path / "again.log", forked=()).answer(60)
        until(max(done) + 3, running)
        last[0] = max(done) + 2
        assert running.result(120) == [shares] * RANKS


# --- all-gather -------------------------------------------------------------------------------------------------------


def array_of(rank: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    drawn = np.random.default_rng(rank).integers(0, 256, (*shape, np.dtype(kind).itemsize), np.uint8)
    return drawn.view(kind).reshape(shape)


CASES = [
    ("float32", (1,)), ("float16", (3, 5)), ("float64", (20_000,)), ("int64", (7,)), ("uint8", (5,)), ("complex64", (2, 2)),
    ("S3", (4,)), ("float32", (0, 4)), ("float32", ()), ("int16", (123, 321)),
]  # fmt: skip


def test_each_rank_gathers_the_arrays_of_all(server: str) -> None:
    def work(comm: Communicator) -> list[np.ndarray]:
        rank = comm.membership.rank
        arrays = [array_of(rank, *case) for case in CASES]
        futures = [comm.all_gather_async(array) for array in arrays]
        summed = np.full(1000, rank, np.float32)
        comm.all_reduce(summed)
        assert (summed == 3).all()
        found = [comm.all_gather(array) for array in arrays]
        for one, future in zip(found, futures, strict=True):
            assert one.tobytes() == future.result(30).tobytes()
        strided = np.arange(4000, dtype=np.int32)[::2]
        strided.flags.writeable = False
        np.testing.assert_array_equal(comm.all_gather(strided), [strided] * GATHERING)
        assert comm.stats().malformed == 0
        return found

    for found in on_ranks(server, work, "arrays", GATHERING):
        for case, parts in zip(CASES, found, strict=True):
            expected = np.stack([array_of(rank, *case) for rank in range(GATHERING)])
            assert (parts.dtype, parts.shape) == (expected.dtype, expected.shape)
            assert parts.tobytes() == expected.tobytes()


def test_tensors_are_gathered(server: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test sets it up")

    def work(comm: Communicator) -> Any:
        return comm.all_gather(torch.full((5, 3), comm.membership.rank + 0.5, dtype=torch.bfloat16).t())

    for found in on_ranks(server, work, "tensors", GATHERING):
        assert (found.dtype, tuple(found.shape)) == (torch.bfloat16, (GATHERING, 3, 5))
        assert found.float().mean(dim=(1, 2)).tolist() == [0.5, 1.5, 2.5]


def test_what_cannot_be_gathered(server: str) -> None:
    def plain(comm: Communicator) -> None:
        for wrong, said in (([1.0], "a list cannot be gathered"), (np.array([None]), "an array of object cannot")):
            with pytest.raises(UserError, match=said):
                comm.all_gather(wrong)

    def refused(comm: Communicator) -> None:
        with pytest.raises(UserError, match="all_gather is for jobs without help and seats"):
            comm.all_gather(np.ones(8, np.float32))

    on_ranks(server, plain, "plain", GATHERING)
    on_ranks(server, refused, "scattered", GATHERING, results="scattered")
    on_ranks(server, refused, "help", GATHERING, help="steal", micro_batches=2)
