"""The compiled loop of a worker whose stream flows: it paces and gathers like the plain loop, and lets other calls in."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from sa_atp.basics.arrays import Values
from sa_atp.net.clock import now_us
from sa_atp.net.loop.compiled import socket_kernels, worker_kernels
from sa_atp.net.loop.driver import Driver
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


class Echo(threading.Thread):
    """A switch for one worker: it returns packets as their sum, a few at a time and a little later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = UdpSocket(HERE)
        self.socket.use_kernels(socket_kernels())
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
    """A job's only worker, assembled as in Communicator."""

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
        socket.use_kernels(socket_kernels())
        self.session = Session(self.worker)
        self.driver = Driver(self.worker, socket, lambda: self.session.serve(now_us()))
        self.driver.steady = SteadyLoop(self.worker, socket, self.driver.woken_by, segments(size))


@pytest.fixture(autouse=True)
def nobody_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Echo answers no signs of life, and a worker that doubts its parameter server leaves streams to the rules."""
    monkeypatch.setattr(Worker, "doubts", lambda worker, now_us: False)


def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of turns of each run."""
    turns: list[int] = []
    run = SteadyLoop.run

    def counted(self: SteadyLoop, *given: object, owes: bool) -> list[Burst] | None:
        left = run(self, *given, owes=owes)  # type: ignore[arg-type]
        if left is not None:
            turns.append(self._record.array["turns"].item())
        return left

    monkeypatch.setattr(SteadyLoop, "run", counted)
    return turns


def test_a_stream_that_flows_is_summed_in_compiled_turns(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch)
    connection = Connection(echo)
    driver = connection.driver
    driver.start("steady")
    made = np.random.default_rng(1)
    deadline = time.monotonic() + 120
    try:
        # however many sums it takes: on a busy machine results come too late, now and then, to be a stream that flows
        for n in itertools.count():
            values = made.integers(-1000, 1001, 2000 * LANES - n % 7).astype(np.float32)
            found = summed(connection, values)
            assert found.tobytes() == values.tobytes()
            if sum(turns) >= 3 or time.monotonic() > deadline:
                break
    finally:
        driver.stop()
    assert sum(turns) >= 3
    assert connection.worker.stats.results == connection.worker.stats.fragments_sent


def test_calls_come_to_their_right_while_a_stream_flows(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_of(monkeypatch)
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
    """Waits for the sum of these values."""
    future: Future[Values] = Future()
    sum_ = connection.session.new_sum(values.size, future)
    now = now_us()

    def begin() -> None:
        connection.session.begin(sum_, ("key", values.size // LANES), now)
        connection.session.contribute(sum_, [values], 1, now, on_behalf=False)

    connection.driver.call(begin)
    return future.result(60)
