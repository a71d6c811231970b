"""The loop around a connection: whatever arrives, timers and calls come to their right."""

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from sa_atp.net.driver import Driver
from sa_atp.net.udp import UdpSocket
from sa_atp.wire.datagrams import Burst

HERE = ("127.0.0.1", 0)
SINGLES = 200  # more than a look at the socket takes


class Chatter:
    """Answers every datagram, to itself: its socket is never empty. A timer is due every millisecond."""

    def __init__(self, socket: UdpSocket) -> None:
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

    @property
    def has_more(self) -> bool:
        return True

    def may_gather(self) -> int:
        return 0


@pytest.fixture
def driver() -> Iterator[Driver]:
    socket = UdpSocket(HERE)
    driver = Driver(Chatter(socket), socket)
    driver.start("chatter")
    yield driver
    driver.stop()


def test_a_peer_that_never_stops_sending_keeps_nothing_else_from_happening(driver: Driver) -> None:
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
