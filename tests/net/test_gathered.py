"""All-gather over real sockets, and over shared memory: embedded switch and parameter server as processes."""

from typing import Any

import numpy as np
import pytest
from helpers.ranks import on_ranks

from sa_atp.basics.errors import UserError
from sa_atp.net.communicator import Communicator

RANKS = 3


def array_of(rank: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    drawn = np.random.default_rng(rank).integers(0, 256, (*shape, np.dtype(kind).itemsize), np.uint8)
    return drawn.view(kind).reshape(shape)


CASES = [
    ("float32", (1,)), ("float16", (3, 5)), ("float64", (20_000,)), ("int64", (7,)), ("uint8", (5,)), ("complex64", (2, 2)),
    ("S3", (4,)), ("float32", (0, 4)), ("float32", ()), ("int16", (123, 321)),
]  # fmt: skip


def test_each_rank_gets_the_arrays_of_all(server: str) -> None:
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
        np.testing.assert_array_equal(comm.all_gather(strided), [strided] * RANKS)
        assert comm.stats().malformed == 0
        return found

    for found in on_ranks(server, work, "arrays", RANKS):
        for case, parts in zip(CASES, found, strict=True):
            expected = np.stack([array_of(rank, *case) for rank in range(RANKS)])
            assert (parts.dtype, parts.shape) == (expected.dtype, expected.shape)
            assert parts.tobytes() == expected.tobytes()


def test_tensors(server: str) -> None:
    torch = pytest.importorskip("torch")

    def work(comm: Communicator) -> Any:
        return comm.all_gather(torch.full((5, 3), comm.membership.rank + 0.5, dtype=torch.bfloat16).t())

    for found in on_ranks(server, work, "tensors", RANKS):
        assert (found.dtype, tuple(found.shape)) == (torch.bfloat16, (RANKS, 3, 5))
        assert found.float().mean(dim=(1, 2)).tolist() == [0.5, 1.5, 2.5]


def test_calls_that_do_not_fit(server: str) -> None:
    def plain(comm: Communicator) -> None:
        for wrong, said in (([1.0], "a list cannot be gathered"), (np.array([None]), "an array of object cannot")):
            with pytest.raises(UserError, match=said):
                comm.all_gather(wrong)

    def refused(comm: Communicator) -> None:
        with pytest.raises(UserError, match="all_gather is for jobs without help and seats"):
            comm.all_gather(np.ones(8, np.float32))

    on_ranks(server, plain, "plain", RANKS)
    on_ranks(server, refused, "scattered", RANKS, results="scattered")
    on_ranks(server, refused, "help", RANKS, help="steal", micro_batches=2)
