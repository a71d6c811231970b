"""`sa_atp.connect` over real sockets: the embedded switch and the parameter server as processes, ranks as threads."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest
from helpers.ranks import running_server

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.net.communicator import Communicator
from sa_atp.protocol.job.errors import NonFiniteError, TransportError, ValuesChangedError
from sa_atp.protocol.packets.help_messages import Assignment

RANKS = 3
_names = count()

Together = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("logs")) as address:
        yield address


@pytest.fixture
def together(server: str) -> Together:
    """Runs a function on all ranks of a new job at once, and returns what each returned or raised.

    A rank that is slow to hear that all have joined may learn that the others have failed already while it connects.
    """

    def run(work: Callable[[Communicator], Any], *, ranks: int = RANKS, **options: Any) -> list[Any]:
        job = f"job {next(_names)}"

        def one(rank: int) -> Any:
            try:
                with sa_atp.connect(server, job=job, rank=rank, world_size=ranks, **options) as comm:
                    return work(comm)
            except TransportError as error:
                return error

        with ThreadPoolExecutor(ranks) as pool:
            return [each.result(60) for each in [pool.submit(one, rank) for rank in range(ranks)]]

    return run


def test_arrays_of_any_length_and_shape_are_summed_in_place(together: Together) -> None:
    """By the switch, as counters say."""
    lengths = (1, 63, 64, 65, 1000, 16_385)

    def work(comm: Communicator) -> list[np.ndarray]:
        arrays = [np.arange(n, dtype=np.float32) + comm.membership.rank for n in lengths]
        for array in arrays:
            comm.all_reduce(array)
        half = np.full((3, 5, 7), 0.5 + comm.membership.rank, np.float16)
        comm.all_reduce(half)
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, np.full((3, 5, 7), 4.5, np.float16))
        stats = comm.stats()
        assert min(stats.results, stats.fragments_sent) > sum(lengths) // 64
        assert stats.malformed == stats.foreign == 0
        return arrays

    for arrays in together(work):
        for n, array in zip(lengths, arrays, strict=True):
            np.testing.assert_array_equal(array, 3 * np.arange(n, dtype=np.float32) + 3)


def test_bfloat16_tensors(together: Together) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test sets it up")

    def work(comm: Communicator) -> Any:
        tensor = torch.full((9, 9), 1.0 + comm.membership.rank, dtype=torch.bfloat16)
        comm.all_reduce(tensor)
        return tensor

    for tensor in together(work):
        assert tensor.dtype == torch.bfloat16
        assert (tensor == 6).all()


def test_sums_of_whole_numbers_are_exact(together: Together) -> None:
    numbers = np.random.default_rng(1).integers(-(2**30) // RANKS, 2**30 // RANKS, (RANKS, 40_001), np.int32)

    def work(comm: Communicator) -> list[list[int]]:
        member, found = comm.membership, []
        for turn in range(3):  # the first one may be alone on the way, and the others a stream that flows
            sum_ = comm.begin(40_001, key="numbers", whole=True)
            comm.contribute(sum_, [numbers[member.rank] // (turn + 1)], member.bits_of(member.rank))
            found.append(sum_.future.result(60).tolist())
        return found

    expected = [(numbers // (turn + 1)).sum(axis=0).tolist() for turn in range(3)]
    assert together(work) == [expected] * RANKS


def test_whole_numbers_that_are_too_large(together: Together) -> None:
    def work(comm: Communicator) -> None:
        member = comm.membership
        with pytest.raises(UserError, match="no scale"):
            comm.begin(10, whole=True, scale=2.0)
        sum_ = comm.begin(10, whole=True)
        with pytest.raises(UserError, match="contiguous int32 array"):
            comm.contribute(sum_, [np.ones(10, np.float32)], member.bits_of(member.rank))
        with pytest.raises(UserError, match=f"a whole number of {2**30} in a contribution"):
            comm.contribute(sum_, [np.full(10, -(2**30), np.int32)], member.bits_of(member.rank))
        comm.contribute(sum_, [np.full(10, 2**30 - 1, np.int32)], member.bits_of(member.rank))
        sum_.future.result(60)

    for error in together(work):
        assert isinstance(error, ValuesChangedError)


def test_thousands_of_sums_are_begun_together(together: Together) -> None:
    """As in a program that sums each parameter by itself."""

    def work(comm: Communicator) -> list[np.ndarray]:
        keys = [*[n % 3 for n in range(12)], *[None] * 1988]  # of the first ones each waits for one before it
        futures = [comm.all_reduce_async(np.full(10, n % 50, np.float32), key=keys[n]) for n in range(2000)]
        return [future.result(60) for future in futures]

    for sums in together(work, ranks=2):
        np.testing.assert_array_equal(sums, np.repeat(2.0 * (np.arange(2000) % 50), 10).reshape(2000, 10))


def test_errors_reach_every_rank_and_name_who_caused_them(together: Together) -> None:
    def nan(comm: Communicator) -> None:
        array = np.ones(100, np.float32)
        array[7] = np.nan if comm.membership.rank == 1 else 1.0
        comm.all_reduce(array)

    for error in together(nan):
        assert isinstance(error, NonFiniteError)
        assert error.ranks == (1,)


def test_arrays_that_cannot_be_summed_are_refused_at_once(together: Together) -> None:
    def work(comm: Communicator) -> None:
        for wrong in (np.ones(3), np.ones(3, np.int32), [1.0, 2.0]):
            with pytest.raises(UserError):
                comm.all_reduce(wrong)

    assert together(work, ranks=1) == [None]


def test_a_closed_connection_says_so(together: Together) -> None:
    def work(comm: Communicator) -> str:
        comm.close()
        with pytest.raises(TransportError, match="closed") as caught:
            comm.all_reduce(np.ones(3, np.float32))
        return str(caught.value)

    assert together(work, ranks=1) == ["the connection is closed"]


def test_a_rank_that_leaves_may_still_be_asked_for_work(together: Together) -> None:
    """It says what it holds, and goes on waiting for the others, who may need its results."""
    has_asked, has_looked = threading.Event(), threading.Event()

    def work(comm: Communicator) -> None:
        step = comm.helping.begin_step()
        if comm.membership.rank == 0:
            assert has_looked.wait(20)
            return
        with ThreadPoolExecutor(1) as pool:
            comm.helping.work(step).take()
            closing = pool.submit(comm.close)
            while not comm._closed:
                time.sleep(0.001)

            def revoke() -> None:
                comm.helping.on_assigned(Assignment(step=step, revokes=4))
                comm._driver.call(has_asked.set)

            comm._driver.call(revoke)
            assert has_asked.wait(20)
            assert comm.error is None
            assert not closing.done(), "rank 0 has not left"
            has_looked.set()
            closing.result(20)

    assert together(work, ranks=2, micro_batches=4, help="steal") == [None, None]


# --- what programs do besides -----------------------------------------------------------------------------------------


def test_a_callback_may_wait_for_another_sum(together: Together) -> None:
    def work(comm: Communicator) -> float:
        second: list[float] = []
        done = threading.Event()

        def callback(_: Any) -> None:
            other = np.ones(100, np.float32)
            comm.all_reduce_async(other).result(20)
            second.append(float(other[0]))
            done.set()

        for _ in range(3):
            comm.all_reduce_async(np.ones(100, np.float32)).add_done_callback(callback)
            assert done.wait(20)
            done.clear()
        return sum(second)

    assert together(work) == [9.0] * RANKS


def test_an_invalid_out_is_refused_before_anything_is_sent(together: Together) -> None:
    def work(comm: Communicator) -> float:
        for bad in (np.frombuffer(bytes(400), np.float32), np.broadcast_to(np.float16(1), (100,))):
            with pytest.raises(UserError, match="cannot be written to"):
                comm.all_reduce(bad)
        with pytest.raises(UserError, match="float32 array of 100 values that can be written to"):
            comm.begin(100, out=np.empty(99, np.float32))
        with pytest.raises(UserError, match="a key must be hashable, as a name or a number is, not a list"):
            comm.all_reduce(np.ones(100, np.float32), key=[1])
        good = np.ones(100, np.float32)
        comm.all_reduce(good)
        return float(good[0])

    assert together(work) == [3.0] * RANKS


def test_a_sum_cannot_be_cancelled(together: Together) -> None:
    def work(comm: Communicator) -> float:
        array = np.ones(100, np.float32)
        future = comm.all_reduce_async(array)
        assert not future.cancel()
        assert not comm.job_stats().cancel()
        future.result(20)
        return float(array[0])

    assert together(work) == [3.0] * RANKS


def test_a_program_with_many_files_open(together: Together) -> None:
    """select() takes descriptors below 1024 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this machine gives a process no 1,200 descriptors: ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:

        def work(comm: Communicator) -> float:
            array = np.ones(30_000, np.float32)
            for _ in range(20):
                array[:] = 1
                comm.all_reduce(array)
            return float(array[0])

        assert together(work) == [3.0] * RANKS
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forked_process_is_told_to_connect_again(server: str) -> None:
    code = (
        "import os, sys, numpy, sa_atp, warnings; warnings.simplefilter('ignore')\n"
        "comm = sa_atp.connect(sys.argv[1], job='forks', rank=0, world_size=1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        comm.all_reduce(numpy.ones(10, numpy.float32))\n"
        "    except sa_atp.TransportError as error:\n"
        "        print(error, flush=True)\n"
        "    comm.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "array = numpy.ones(10, numpy.float32); comm.all_reduce(array); print(array[0]); comm.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, server], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (
        "the connection belongs to the process that this one was forked from: connect again\n1.0\n", ""
    )  # fmt: skip


def test_a_failed_join_leaves_nothing_open(server: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TransportError, match="these ranks have not joined: 1"):
            sa_atp.connect(server, job=f"alone {next(_names)}", rank=0, world_size=2, timeout_s=1.0)
    assert len(os.listdir("/proc/self/fd")) <= before


STOPPED = """
import sys
import numpy as np
import sa_atp

with sa_atp.connect(sys.argv[1], job=sys.argv[2], rank=1, world_size=2, server_timeout_s=1.5) as comm:
    array = np.ones(1000, np.float32)
    comm.all_reduce(array)
    print("summed", flush=True)
    comm.all_reduce(array)
print(array[0])
"""


def test_a_process_that_was_stopped_goes_on(server: str) -> None:
    job = f"job {next(_names)}"
    command = [sys.executable, "-c", STOPPED, server, job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stopped:
        try:
            with sa_atp.connect(server, job=job, rank=0, world_size=2) as comm:
                array = np.ones(1000, np.float32)
                comm.all_reduce(array)
                assert stopped.stdout is not None
                assert stopped.stdout.readline() == "summed\n"
                stopped.send_signal(signal.SIGSTOP)
                time.sleep(3.0)
                stopped.send_signal(signal.SIGCONT)
                comm.all_reduce(array)
            assert stopped.stdout.read() == "4.0\n"
        finally:
            stopped.kill()
