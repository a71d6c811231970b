"""Transfers whose TCP segments queue on links first come first served: a model of short messages.

A flow (`network`) has its fair share of a link from its first byte on, as TCP gives to a long transfer. A message of a
hundred segments, on a connection whose window is already larger, is written at once and arrives at the rate of its sender's
link: of two messages, the earlier one is nearly done when the later one begins, and they stay apart. With fair shares they
would end together, and meet again in every step.
"""

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from sa_atp.lab.flow.fabric import MTU, TCP_FRAME_BYTES, Fabric, stream_bytes
from sa_atp.lab.simulator.network import Clock

SEGMENT_BYTES = MTU - (TCP_FRAME_BYTES - 14)  # payload of a full segment
MOST_PIECES = 256  # pieces of a message; longer messages are carried as groups of segments


class Queues:
    """Queues in front of a fabric's links, of unlimited length, served in order of arrival."""

    def __init__(self, fabric: Fabric) -> None:
        """Args: fabric: it has the links, rates and delays; its flows and these queues do not affect one another."""
        self._fabric = fabric
        self._queues: dict[int, _Queue] = {}

    def transfer(self, source: int, target: int, payload: float) -> "Future[None]":
        """Carries so many bytes from one host to another, as full TCP segments that are written at once.

        Args: source, target: a rank, or SERVER.
        Returns: a future that is done when the last byte has arrived.
        """
        arrived: Future[None] = Future()
        queues = [self._queue(link) for link in self._fabric.path(source, target)]
        pieces = min(MOST_PIECES, max(1, math.ceil(payload / SEGMENT_BYTES)))
        size = stream_bytes(payload) / pieces
        for left in reversed(range(pieces)):
            _cross(queues, size, arrived if left == 0 else None)
        return arrived

    def _queue(self, link: int) -> "_Queue":
        if link not in self._queues:
            self._queues[link] = _Queue(self._fabric, link)
        return self._queues[link]


def _cross(queues: "list[_Queue]", size: float, arrived: "Future[None] | None") -> None:
    """Sends a piece over a link, and then over the next ones."""
    if queues:
        queues[0].put(size, lambda: _cross(queues[1:], size, arrived))
    elif arrived is not None:
        arrived.set_result(None)


class _Queue:
    """The queue in front of one direction of a link."""

    def __init__(self, fabric: Fabric, link: int) -> None:
        self._clock: Clock = fabric.clock
        self._network = fabric.network
        self._link = link
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._is_sending = False
        self._free_us = 0.0

    def put(self, size: float, then: Callable[[], None]) -> None:
        """Appends so many bytes. Args: then: called when they have crossed the link."""
        self._waiting.append((size, then))
        self._go_on()

    def _go_on(self) -> None:
        """Starts to send the first piece if the link is idle. A new rate applies to pieces that start after it."""
        if self._is_sending or not self._waiting:
            return
        size, then = self._waiting.popleft()
        self._is_sending = True
        # fractions of a microsecond are kept, so that many pieces take as long as one of the same size
        begins_us = max(self._free_us, float(self._clock.now_us))
        self._free_us = begins_us + self._network.transmission_us(self._link, size)
        self._clock.at(int(self._free_us), lambda: self._sent(then))

    def _sent(self, then: Callable[[], None]) -> None:
        self._is_sending = False
        self._clock.at(self._clock.now_us + self._network.delay_us[self._link], then)
        self._go_on()
