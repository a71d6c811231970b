"""Calls of programs, right and wrong: many threads at once, and invalid arguments."""

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.ranks import running_server

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.net.communicator import Communicator
from sa_atp.net.loop.driver import Driver
from sa_atp.net.loop.steady_loop import SteadyLoop
from sa_atp.net.session import Sum
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.packets.control import Alive, Leave
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.help_messages import WorkReport
from sa_atp.protocol.packets.status_messages import AskStats

THREADS = 8
CALLS = 300  # of each thread
_names = count()

Connect = Callable[..., list[Communicator]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("logs")) as address:
        yield address


@pytest.fixture
def connect(server: str) -> Iterator[Connect]:
    """All ranks of a new job."""
    opened = contextlib.ExitStack()

    def connected(ranks: int, **options: Any) -> list[Communicator]:
        job = f"calls {next(_names)}"
        with ThreadPoolExecutor(ranks) as pool:
            joining = [
                pool.submit(sa_atp.connect, server, job=job, rank=rank, world_size=ranks, **options)
                for rank in range(ranks)
            ]
        for each in joining:
            if each.exception() is None:
                opened.callback(each.result().close)
        return [each.result() for each in joining]

    with opened:
        yield connected


# --- many threads -----------------------------------------------------------------------------------------------------


class Caller:
    """A thread that calls every public method again and again, and records errors."""

    def __init__(self, comm: Communicator, seed: int, *, closes: bool) -> None:
        self.comm = comm
        self.problem: BaseException | None = None
        self.seen: set[str] = set()
        self.waiting: list[Future[Any]] = []
        self._rng = random.Random(seed)
        self._closes = closes
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        calls = [self.sum, self.slow_sum, self.ask, self.look, self.state]
        try:
            for n in range(CALLS):
                self._rng.choice(calls)()
                if self._closes and n == CALLS // 2:
                    self.comm.close()
        except TransportError as error:
            if not self._closes or str(error) not in ("the connection is closed", "the connection was closed"):
                self.problem = error
        except BaseException as problem:
            self.problem = problem

    def sum(self) -> None:
        done = self.comm.all_reduce_async(
            np.ones(self._rng.choice((1, 10, 500)), np.float32), key=self._rng.choice((None, 1))
        )
        self.waiting.append(done)
        if self._rng.random() < 0.05:
            done.result(30)
        if self._rng.random() < 0.05:
            self.comm.all_reduce(np.ones(3, np.float32))

    def slow_sum(self) -> None:
        sum_ = self.comm.begin(100)
        self.comm.probe(sum_)
        self.comm.contribute(sum_, [np.ones(100, np.float32)], self.comm.membership.bits_of(0))
        self.waiting.append(sum_.future)

    def ask(self) -> None:
        helping = self.comm.helping
        work = helping.work(helping.begin_step())
        while work.take() is not None:
            work.finish_micro_batch()
        work.report_done()
        helping.offer(work, 0, busy_us=0, progress=None)
        self.waiting.append(self.comm.job_stats())

    def look(self) -> None:
        assert "rank 0: window" in self.comm.describe()
        assert self.comm.stats().malformed == 0

    def state(self) -> None:
        assert not self.comm.is_of_another_process
        assert self.comm.error is None or self._closes
        assert self.comm.membership.rank == 0


@pytest.mark.parametrize("closes", [False, True])
def test_every_method_may_be_called_from_any_thread(connect: Connect, closes: bool) -> None:
    (comm,) = connect(1)
    callers = [Caller(comm, seed, closes=closes) for seed in range(THREADS)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for caller in callers:
            caller.thread.start()
        for caller in callers:
            caller.thread.join(120)
    finally:
        sys.setswitchinterval(before)
    assert [caller.problem for caller in callers] == [None] * THREADS
    for caller in callers:
        for future in caller.waiting:
            error = future.exception(30)  # nothing is left waiting
            assert error is None or (closes and isinstance(error, TransportError)), error
    assert comm.error is None or closes


def test_a_connection_that_is_over_can_be_looked_at(connect: Connect) -> None:
    (comm,) = connect(1)
    before = comm.stats()
    comm.all_reduce(np.ones(10, np.float32))
    comm.close()
    assert "rank 0: window" in comm.describe()
    assert (before.results, comm.stats().results) == (0, 2), "counters are a copy"


def test_looking_at_a_connection_whose_thread_is_stuck_has_an_end(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    (comm,) = connect(1)
    go_on = threading.Event()

    def be_stuck() -> None:
        go_on.wait(60)

    comm._driver.call(be_stuck)
    monkeypatch.setattr("sa_atp.net.communicator.LOOK_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(TransportError, match=r"the connection's thread has not answered for 0\.1 s"):
            comm.describe()
    finally:
        go_on.set()
    comm.all_reduce(np.ones(10, np.float32))


def test_calls_are_answered_while_a_stream_flows(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection's loop is compiled then, and comes out for whoever calls or waits."""
    runs, run, enough = 0, SteadyLoop.run, threading.Event()

    def counted(loop: SteadyLoop, *given: Any, owes: bool) -> list[Burst] | None:
        nonlocal runs
        left = run(loop, *given, owes=owes)
        runs += left is not None
        return left

    monkeypatch.setattr(SteadyLoop, "run", counted)
    (comm,) = connect(1)

    def sum_up() -> None:
        while not enough.is_set():
            comm.all_reduce_async(np.ones(200_000, np.float32), key="stream").result(60)

    summing = threading.Thread(target=sum_up)
    summing.start()
    end = time.monotonic() + 60
    try:
        while runs < 10 and time.monotonic() < end:
            assert "rank 0: window" in comm.describe()
            comm.all_reduce(np.ones(3, np.float32))
    finally:
        enough.set()
        summing.join(60)
    assert runs >= 10


# --- arguments that make no sense -------------------------------------------------------------------------------------


def ones(count: int, values: int = 10) -> list[np.ndarray]:
    return [np.ones(values, np.float32) for _ in range(count)]


WRONG = {
    "no bits": (ones(1), 0, False, "bits = 0x0: expected one or more of the job's 8 contributions, 0xff in all"),
    "negative bits": (ones(1), -1, True, "bits = -0x1: expected one or more"),
    "more bits than there are": (ones(1), 0x100, True, "bits = 0x100: expected one or more"),
    "no integer": (ones(1), 1.0, False, "bits = 1.0: expected a whole number"),
    "others' bits": (ones(4), 0xF0, False, "rank 0's own contributions are 0xf, others' need on_behalf=True"),
    "one of others'": (ones(2), 0x18, False, "rank 0's own contributions are 0xf"),
    "no arrays": ([], 0xF, False, "0 arrays for the 4 contributions of bits = 0xf: expected 4, or 1"),
    "fewer arrays than bits": (ones(3), 0xF, False, "3 arrays for the 4 contributions of bits = 0xf"),
    "more arrays than bits": (ones(2), 0x1, False, "2 arrays for the 1 contribution of bits = 0x1: expected 1"),
    "another length": (ones(4, 9), 0xF, False, "contiguous float32 array of 10 values"),
    "another type": ([np.ones(10)], 0xF, False, "contiguous float32 array of 10 values"),
    "a list": ([[1.0] * 10], 0xF, False, "contiguous float32 array of 10 values"),
    "gaps": ([np.ones(20, np.float32)[::2]], 0xF, False, "contiguous float32 array of 10 values"),
}  # fmt: skip


def test_invalid_contributions_are_refused_at_once(connect: Connect) -> None:
    """They neither end the connection's thread, nor make ranks wait."""
    comms = connect(2, micro_batches=4)
    sums: list[Sum] = [comm.begin(10) for comm in comms]
    for parts, bits, on_behalf, message in WRONG.values():
        with pytest.raises(UserError) as caught:
            comms[0].contribute(sums[0], parts, bits, on_behalf=on_behalf)  # type: ignore[arg-type]
        assert message in str(caught.value)
    with pytest.raises(UserError, match="through the connection that began it only"):
        comms[0].contribute(sums[1], ones(1), 0xF)
    comms[0].contribute(sums[0], ones(4), np.int64(0xF))  # type: ignore[arg-type]
    comms[1].contribute(sums[1], ones(1), 0xF0)
    for sum_ in sums:
        np.testing.assert_array_equal(sum_.future.result(30), np.full(10, 5.0))


def test_invalid_sums_are_refused_at_once(connect: Connect) -> None:
    (comm,) = connect(1)
    for values, message in (
        (0, "at least one value"),
        (10.0, "values = 10.0: expected a whole number"),
        ("10", "expected a whole number"),
        (2**36, f"an array of {2**36} values is too long for one sum: expected at most {2**35}"),
    ):
        with pytest.raises(UserError, match=message):
            comm.begin(values)  # type: ignore[arg-type]
    comm.all_reduce(np.ones(10, np.float32))


def test_arrays_without_values_are_their_own_sums(connect: Connect) -> None:
    """They return at once, without waiting for other ranks."""
    first, second = connect(2)
    empty = np.zeros((3, 0), np.float16)
    first.all_reduce(empty, key="empty")
    assert first.all_reduce_async(empty).result(1) is empty
    sums = [comm.all_reduce_async(np.ones(5, np.float32)) for comm in (first, second)]
    for future in sums:
        np.testing.assert_array_equal(future.result(30), np.full(5, 2.0))


def test_arrays_that_cannot_hold_a_sum_are_refused_at_once(connect: Connect) -> None:
    (comm,) = connect(1)
    shared = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (3, 4), (0, 0))
    with pytest.raises(UserError, match=r"shape \(3, 4\) whose values share memory cannot be replaced by its sum"):
        comm.all_reduce(shared)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test sets it up")
    for tensor, message in (
        (torch.ones(1).expand(5), "whose values share memory"),
        (torch.ones(5).to_sparse(), "a sparse_coo float32 tensor on cpu cannot be summed: expected a dense one"),
        (torch.ones(5, device="meta"), "a float32 tensor on meta cannot be summed"),
        (torch.ones(5, dtype=torch.complex64), "a complex64 tensor on cpu cannot be summed"),
    ):
        with pytest.raises(UserError, match=message):
            comm.all_reduce(tensor)
    negative = torch._neg_view(torch.arange(5.0))
    parameter = torch.nn.Parameter(torch.ones(5))
    for tensor in (negative, parameter):
        comm.all_reduce(tensor, scale=2.0)
    assert negative.tolist() == [-0.0, -2.0, -4.0, -6.0, -8.0]
    assert parameter.tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"timeout_s": "1"}, "timeout_s = '1': expected a positive number of seconds"),
        ({"operation_timeout_s": None}, "operation_timeout_s = None: expected a positive number of seconds"),
        ({"server_timeout_s": float("nan")}, "server_timeout_s = nan: expected a positive number of seconds"),
        ({"agree": "scale"}, "agree = 'scale': expected names and values"),
    ],
    ids=str,
)
def test_settings_that_are_wrong_are_named_before_anybody_is_asked(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        sa_atp.connect("udp://127.0.0.1:9", job="calls", rank=0, world_size=1, **wrong)


def test_ranks_that_state_different_things_do_not_join(server: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(
                sa_atp.connect,
                server,
                job="calls, stated",
                rank=rank,
                world_size=2,
                timeout_s=1.0,
                agree={"scale": rank},
            )
            for rank in range(2)
        ]
    said = sorted(str(each.exception()) for each in joining)
    assert "scale is " in said[0]
    assert "these ranks have not joined" in said[0]
    assert "the parameter server refuses: job 'calls, stated': scale is" in said[1]


def test_an_abort_ends_sums_at_once(connect: Connect) -> None:
    first, second = connect(2)
    waiting = first.all_reduce_async(np.ones(5, np.float32))
    first.abort()
    with pytest.raises(TransportError, match="the connection was closed"):
        waiting.result(10)
    with pytest.raises(TransportError, match="rank 0"):  # which has left
        second.all_reduce(np.ones(5, np.float32))
    first.abort()


def test_invalid_questions_are_refused_at_once(connect: Connect) -> None:
    (comm,) = connect(1)
    for question in (Alive(oldest=0), Leave(oldest=0), "stats"):
        with pytest.raises(UserError, match=r"cannot ask .*: expected one of WorkReport, TakeSeat, AskStats"):
            comm.ask(question, lambda reply: reply)  # type: ignore[arg-type]
    for step in (-1, 1.5, "1", np.int64(1), None):
        with pytest.raises(UserError, match="WorkReport: "):
            comm.ask(WorkReport(step=step, begun=0, held=0), lambda reply: reply)  # type: ignore[arg-type]
    assert comm.ask(AskStats(), lambda reply: type(reply).__name__).result(10) == "JobStats"
    assert comm.ask(WorkReport(step=1, begun=0, held=1), lambda reply: type(reply).__name__).result(10) == "Assignment"


# --- interrupts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Makes a signal handler call a function in this thread while it waits for a sum, in half a second or later."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(action: Callable[[], None]) -> None:
        def handle(_: int, frame: FrameType | None) -> None:
            if frame is not None and frame.f_code is Driver.turn_until.__code__:
                action()
            else:  # in the middle of a turn, or the wait has not begun: that is another case
                signal.setitimer(signal.ITIMER_REAL, 0.003)

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.5)

    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Interrupt(BaseException):
    """Raised by a signal handler, like KeyboardInterrupt."""


def test_an_interrupt_during_a_sum_leaves_the_connection_usable(
    connect: Connect, alarm: Callable[[Callable[[], None]], None]
) -> None:
    first, second = connect(2)
    array, other = np.ones(10, np.float32), np.ones(10, np.float32)

    def interrupt() -> None:
        raise Interrupt

    alarm(interrupt)
    with pytest.raises(Interrupt):
        first.all_reduce(array)
    second.all_reduce(other)
    first.all_reduce_async(np.ones(1, np.float32))
    second.all_reduce(np.ones(1, np.float32))
    assert first.stats().results
    assert array.tolist() == other.tolist() == [2.0] * 10


def test_a_handler_may_close_the_connection_but_not_wait_for_it(
    connect: Connect, alarm: Callable[[Callable[[], None]], None]
) -> None:
    first, _ = connect(2)
    seen: list[str] = []

    def handle() -> None:
        with pytest.raises(TransportError, match="handler"):
            first.all_reduce(np.ones(1, np.float32))
        seen.append(first.describe())
        first.close()

    alarm(handle)
    with pytest.raises(TransportError, match="the connection was closed"):
        first.all_reduce(np.ones(10, np.float32))
    assert "rank 0" in seen[0]
