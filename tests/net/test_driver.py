"""The loop around a connection: arriving packets do not starve timers and calls."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import pytest

from sa_atp.net.clock import now_us
from sa_atp.net.loop import driver as driver_module
from sa_atp.net.loop.driver import Driver
from sa_atp.net.sockets.udp import UdpSocket
from sa_atp.protocol.packets.datagrams import Address, Burst

HERE = ("127.0.0.1", 0)
SINGLES = 200  # more than a look at the socket takes


class Quiet:
    """A connection that sends nothing, and records the threads that call it."""

    has_more = False

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        self.threads.add(threading.get_ident())

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        self.threads.add(threading.get_ident())
        return []

    def next_timer_us(self) -> int | None:
        return None

    def handle_timer(self, now_us: int) -> None: ...

    def may_gather(self) -> int:
        return 0

    def doubts(self, now_us: int) -> bool:
        return False

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None: ...


class Chatter(Quiet):
    """A connection that answers every datagram to itself, so its socket is never empty. Its timer is due every ms."""

    has_more = True

    def __init__(self, socket: UdpSocket) -> None:
        super().__init__()
        self.address = socket.address
        self.timers = 0
        self._due_us = 0
        self._to_send = SINGLES

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        self._to_send += sum(len(burst) for burst in bursts)

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        count, self._to_send = self._to_send, 0
        return [Burst.of(self.address, bytes(20)) for _ in range(count)]

    def next_timer_us(self) -> int | None:
        return self._due_us

    def handle_timer(self, now_us: int) -> None:
        self.timers += 1
        self._due_us = now_us + 1000


@pytest.fixture
def driver() -> Iterator[Driver]:
    socket = UdpSocket(HERE)
    driver = Driver(Chatter(socket), socket)
    driver.start("chatter")
    yield driver
    driver.stop()


def test_a_peer_that_never_stops_sending_starves_nothing(driver: Driver) -> None:
    chatter = driver.connection
    assert isinstance(chatter, Chatter)
    while chatter.timers < 3:  # it chatters by now
        time.sleep(0.01)
    for _ in range(3):
        before, called = chatter.timers, threading.Event()
        driver.call(called.set)
        assert called.wait(10)
        deadline = time.monotonic() + 10
        while chatter.timers == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def quiet() -> Iterator[Driver]:
    driver = Driver(Quiet(), UdpSocket(HERE))
    driver.start("quiet")
    yield driver
    driver.stop()


def ask(driver: Driver) -> int:
    """The thread that runs a call."""
    seen: list[int] = []
    made = threading.Event()

    def note() -> None:
        seen.append(threading.get_ident())
        made.set()

    driver.call(note)
    assert made.wait(10)
    return seen[0]


def test_a_borrower_runs_the_loop_until_it_returns_it(quiet: Driver, open_socket: Callable[[], UdpSocket]) -> None:
    own = ask(quiet)
    assert own != threading.get_ident()
    connection = quiet.connection
    assert isinstance(connection, Quiet)
    while not quiet.borrow():  # its own thread may still be at the end of the turn
        time.sleep(0.001)
    connection.threads.clear()
    others: list[int] = []
    asker = threading.Thread(target=lambda: others.append(ask(quiet)))
    asker.start()
    open_socket().send([Burst.of(quiet.socket.address, b"something")])
    quiet.turn_until(lambda: bool(others))
    asker.join()
    quiet.give_back()
    assert others == [threading.get_ident()]
    assert connection.threads == {threading.get_ident()}
    assert ask(quiet) == own


class Timed(Quiet):
    """A connection whose timer is due at a time that the test chooses."""

    def __init__(self, due_us: int) -> None:
        super().__init__()
        self.due_us = due_us
        self.fired = threading.Event()

    def next_timer_us(self) -> int | None:
        return self.due_us

    def handle_timer(self, now_us: int) -> None:
        self.fired.set()
        self.due_us = now_us + 20_000_000


def test_a_timer_that_was_set_while_the_loop_was_borrowed_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own thread sleeps until another time meanwhile."""
    monkeypatch.setattr(driver_module, "LONGEST_WAIT_S", 30.0)
    timed = Timed(now_us() + 20_000_000)
    driver = Driver(timed, UdpSocket(HERE))
    driver.start("timed")
    time.sleep(0.3)  # it sleeps
    while not driver.borrow():
        time.sleep(0.001)
    timed.due_us = now_us() + 300_000
    driver.turn_until(lambda: True)
    driver.give_back()
    assert timed.fired.wait(10)
    driver.stop()


def test_the_loop_is_lent_to_one_at_a_time_and_not_when_it_is_over(quiet: Driver) -> None:
    ask(quiet)
    while not quiet.borrow():
        time.sleep(0.001)
    found: list[bool] = [quiet.borrow()]
    other = threading.Thread(target=lambda: found.append(quiet.borrow()))
    other.start()
    other.join()
    quiet.give_back()
    assert found == [False, False]
    quiet.stop()
    assert not quiet.borrow()


def test_an_exception_while_the_loop_is_lent_ends_it(quiet: Driver) -> None:
    ask(quiet)
    while not quiet.borrow():
        time.sleep(0.001)
    ended = threading.Event()
    quiet.ended = ended.set

    def fail() -> None:
        raise KeyboardInterrupt

    try:
        quiet.call(fail)
        with pytest.raises(KeyboardInterrupt):
            quiet.turn_until(lambda: False)
    finally:
        quiet.give_back()
    assert ended.wait(10)
