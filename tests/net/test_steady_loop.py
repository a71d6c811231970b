"""The compiled loop of a worker whose stream flows: paced and gathered as the plain loop does, and it lets others in."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import Values
from sa_atp.net.clock import now_us
from sa_atp.net.loop import receive_coalescing, send_pacer
from sa_atp.net.loop import steady_loop_kernels as k
from sa_atp.net.loop.compiled import socket_kernels, worker_kernels
from sa_atp.net.loop.driver import Driver
from sa_atp.net.loop.receive_coalescing import ReceiveCoalescing
from sa_atp.net.loop.send_pacer import SendPacer
from sa_atp.net.loop.steady_loop import SteadyLoop
from sa_atp.net.session import Session
from sa_atp.net.sockets.udp import UdpSocket, segments
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import first_byte, headers, size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.rank.worker import Worker

HERE = ("127.0.0.1", 0)
LANES = 256


@given(
    st.lists(
        st.tuples(st.integers(0, 300_000), st.integers(0, 30_000), st.integers(0, 200_000), st.integers(0, 500)),
        max_size=60,
    )
)
def test_what_waits_in_this_host_is_as_much_as_the_plain_pacer_says(
    looks: list[tuple[int, int, int, int]],
) -> None:
    """Each look: what is held, how much later, what is written then, and how much of that has left at once."""
    pacer, numbers, reals = SendPacer(), np.zeros(k.L_ITEMS, np.int64), np.zeros(k.F_ITEMS)
    now = 1_000_000
    for held, later, count, gone in looks:
        now += later
        budget = pacer.budget_bytes(held, now)
        assert k.budget_bytes(numbers, reals, held, now) == (-1 if budget is None else budget)
        if count:
            after = max(0, held + count - 1000 * gone)
            pacer.wrote(count, after, now)
            k.wrote(numbers, reals, count, after, now)
        resume = pacer.resume_us()
        assert k.resume_us(numbers, reals) == (-1 if resume is None else resume)
        counted, pace = pacer.counted()
        assert (*counted, pace) == (*numbers[k.L_HELD : k.L_COUNTED].tolist(), reals[k.F_PACE])


@given(
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 2000), st.integers(0, 2000)), max_size=40),
    st.integers(1, 1000),
)
def test_datagrams_gather_for_as_long_as_the_plain_loop_says(looks: list[tuple[int, int, int]], worth_it: int) -> None:
    """Each look: how much later, how many packets, and how many may gather."""
    now = 1_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive_coalescing, "now_us", lambda: now)
        plain = ReceiveCoalescing(8_000, 96, worth_it)
        numbers, reals = np.zeros(k.L_ITEMS, np.int64), np.zeros(k.F_ITEMS)
        numbers[k.L_COUNTED : k.L_SEGMENTS], reals[k.F_RECENT] = plain.counted()
        for later, packets, most in looks:
            now += later
            wanted_us = 1e6 * plain.pause_s(packets, most)
            assert k.pause_us(numbers, reals, packets, most, now) == pytest.approx(wanted_us, abs=1.01)
            assert reals[k.F_RECENT] == pytest.approx(plain.counted()[1])


def test_what_kernels_have_as_constants_is_what_the_plain_loop_has() -> None:
    for name in ("AHEAD_US", "LEAST_BYTES", "MEASURED_US", "LATER_US", "SMOOTHING", "GROWTH"):
        assert getattr(k, name) == getattr(send_pacer, name), name
    assert (k.MEMORY_US, k.SOON) == (receive_coalescing.MEMORY_US, receive_coalescing.SOON)


class Echo(threading.Thread):
    """A switch for one worker: what comes goes back as its sum, a few at a time and a little later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = UdpSocket(HERE)
        self.socket.use(socket_kernels())
        self.over = False

    def run(self) -> None:
        while not self.over:
            time.sleep(0.001)
            for burst in self.socket.receive():
                if burst.data.shape[1] != size_of(Kind.DATA, LANES):
                    continue  # signs of life and questions have no answer here
                results = burst.data.copy()
                headers(results)["first"] = first_byte(Kind.RESULT)
                for first in range(0, len(results), 20):
                    self.socket.send([Burst(burst.address, results[first : first + 20])])
        self.socket.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    echo.start()
    yield echo
    echo.over = True
    echo.join()


class Connection:
    """A worker that is all of its job, as Communicator puts it together."""

    def __init__(self, switch: Echo) -> None:
        address = switch.socket.address
        of = Membership(
            job=3, epoch=4, rank=0, world_size=1, micro_batches=1, lanes=LANES, slot_base=0, slot_count=1024,
            first_seq=2**32 - 300, data_address=address, server_address=address, alive_every_us=200_000,
        )  # fmt: skip
        limits = WorkerLimits(server_timeout_us=600_000_000)  # nobody answers here
        self.worker = Worker(of, now_us(), first_request=1, limits=limits, kernels=worker_kernels())
        size = size_of(Kind.DATA, LANES)
        self.worker.write_over(4 * segments(size))
        socket = UdpSocket(HERE)
        socket.use(socket_kernels())
        self.session = Session(self.worker)
        self.driver = Driver(self.worker, socket, lambda: self.session.serve(now_us()))
        self.driver.steady = SteadyLoop(self.worker, socket, self.driver.woken_by, segments(size))


def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects how many turns each run has had."""
    turns: list[int] = []
    run = SteadyLoop.run

    def counted(self: SteadyLoop, *given: object, owes: bool) -> list[Burst] | None:
        left = run(self, *given, owes=owes)  # type: ignore[arg-type]
        if left is not None:
            turns.append(int(self._numbers[k.L_TURNS]))
        return left

    monkeypatch.setattr(SteadyLoop, "run", counted)
    return turns


def test_a_stream_that_flows_is_summed_in_compiled_turns(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch)
    connection = Connection(echo)
    driver = connection.driver
    driver.start("steady")
    made = np.random.default_rng(1)
    try:
        for n in range(200):
            values = made.integers(-1000, 1001, 2000 * LANES - n % 7).astype(np.float32)
            found = summed(connection, values)
            assert found.tobytes() == values.tobytes()
            if sum(turns) >= 3:
                break
    finally:
        driver.stop()
    assert sum(turns) >= 3
    assert connection.worker.stats.results == connection.worker.stats.fragments_sent


def test_calls_come_to_their_right_while_a_stream_flows(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch)
    # nobody answers signs of life here, and whoever looks out for what hosts refuse leaves streams to the rules
    monkeypatch.setattr(Worker, "doubts", lambda worker, now_us: False)
    connection = Connection(echo)
    connection.driver.start("steady")
    values = np.ones(2000 * LANES, np.float32)
    enough = threading.Event()

    def sum_up() -> None:
        while not enough.is_set():
            summed(connection, values)

    summing = threading.Thread(target=sum_up)
    summing.start()
    deadline = time.monotonic() + 60
    try:
        while len(turns) < 10 and time.monotonic() < deadline:
            called = threading.Event()
            connection.driver.call(called.set)
            assert called.wait(10)
            time.sleep(0.005)
        while not connection.driver.borrow():  # the loop comes out for whoever wants it
            assert time.monotonic() < deadline
        connection.driver.give_back()
    finally:
        enough.set()
        summing.join(60)
        connection.driver.stop()
    assert len(turns) >= 10


def summed(connection: Connection, values: Values) -> Values:
    """The sum of these, after as long as it takes."""
    future: Future[Values] = Future()
    sum_ = connection.session.new_sum(values.size, future)
    now = now_us()

    def begin() -> None:
        connection.session.begin(sum_, ("key", values.size // LANES), now)
        connection.session.contribute(sum_, [values], 1, now, on_behalf=False)

    connection.driver.call(begin)
    return future.result(60)
