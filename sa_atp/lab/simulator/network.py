"""A clock of events in virtual time, and links with a rate, a delay, a queue and faults."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sa_atp.lab.simulator.damage import damage_frame
from sa_atp.protocol.packets.frames import is_urgent

BITS_PER_MBIT = 1_000_000
WIRE_OVERHEAD_BYTES = 24  # preamble, frame check sequence and gap around every Ethernet frame


class Clock:
    """Runs callbacks in order of time; equal times run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self.scheduled = 0
        """Number of callbacks scheduled so far, those that have run included."""

    @property
    def waiting(self) -> int:
        """Number of callbacks that have not run yet."""
        return len(self._heap)

    def at(self, when_us: int, action: Callable[[], None]) -> None:
        self.scheduled += 1
        heapq.heappush(self._heap, (max(when_us, self.now_us), self.scheduled, action))

    def run(self, until: Callable[[], bool], limit_us: int) -> bool:
        """Runs until the condition holds. Returns: False if the limit is reached or no event is left before it holds."""
        while self._heap and not until():
            if self._heap[0][0] > limit_us:
                return False
            self.now_us, _, action = heapq.heappop(self._heap)
            action()
        return until()


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """Settings of one direction of a link; faults are shares of packets."""

    rate_mbps: float = 10_000.0
    delay_us: int = 20
    queue_packets: int = 1000
    """Capacity of the queue; further packets are dropped."""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Share of packets that are delayed by up to `reorder_by_us`, so that later ones overtake them."""
    reorder_by_us: int = 200
    jitter_us: int = 0
    """Uniform extra delay, without reordering."""
    corrupt: float = 0.0
    """Share of packets that arrive with detectable damage (`damage.damage_frame`)."""


@dataclass(slots=True)
class LinkStats:
    carried: int = 0
    carried_bytes: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0


Watch = Callable[[str, bytes], None]


@dataclass(slots=True)
class Link:
    """Carries frames one way and hands them to `deliver`. Urgent ones (DSCP CS5) do not wait behind others."""

    clock: Clock
    settings: LinkSettings
    rng: random.Random
    deliver: Callable[[bytes], None]
    stats: LinkStats = field(default_factory=LinkStats)
    up: bool = True
    """False: new frames are lost; frames in flight arrive."""
    watch: Watch | None = None
    """Called with each frame and its fate: "sent", "lost", "overflowed" or "damaged"."""
    queued: int = 0
    """Packets in the queue or being sent."""
    queued_bytes: int = 0
    _wire_free_us: float = 0.0
    _last_arrival_us: int = 0
    _urgent: deque[bytes] = field(default_factory=deque)
    _others: deque[bytes] = field(default_factory=deque)

    def send(self, frame: bytes) -> None:
        s = self.settings
        if self.queued >= s.queue_packets:
            self._tell("overflowed", frame)
            return
        is_free = self.queued == 0
        self.queued += 1
        self.queued_bytes += len(frame)
        (self._urgent if is_urgent(frame) else self._others).append(frame)
        if is_free:
            self._next()

    def _next(self) -> None:
        """Starts to send the next frame."""
        frame = (self._urgent or self._others).popleft()
        seconds = (len(frame) + WIRE_OVERHEAD_BYTES) * 8 / (self.settings.rate_mbps * BITS_PER_MBIT)
        self._wire_free_us = max(self._wire_free_us, float(self.clock.now_us)) + seconds * 1e6
        self.clock.at(int(self._wire_free_us), lambda: self._sent(frame))

    def _sent(self, frame: bytes) -> None:
        """The last bit has left: draws the frame's faults, and schedules its arrival."""
        s, rng = self.settings, self.rng
        self.queued -= 1
        self.queued_bytes -= len(frame)
        if self.queued:
            self._next()
        if not self.up or (s.loss and rng.random() < s.loss):
            self._lose(frame)
            return
        if s.corrupt and rng.random() < s.corrupt:
            self.stats.corrupted += 1
            changed = damage_frame(frame, rng)
            if changed is None:
                self._lose(frame)
                return
            self._tell("damaged", frame)
            frame = changed
        else:
            self._tell("sent", frame)
        self.stats.carried += 1
        self.stats.carried_bytes += len(frame)
        arrival = self.clock.now_us + s.delay_us
        if s.jitter_us:
            arrival = max(arrival + rng.randrange(s.jitter_us + 1), self._last_arrival_us)
            self._last_arrival_us = arrival
        if s.duplicate and rng.random() < s.duplicate:
            self.stats.duplicated += 1
            self.clock.at(arrival + rng.randrange(1, 2 * s.reorder_by_us), lambda: self.deliver(frame))
        if s.reorder and rng.random() < s.reorder:
            self.stats.reordered += 1
            arrival += rng.randrange(1, s.reorder_by_us)
        self.clock.at(arrival, lambda: self.deliver(frame))

    def _lose(self, frame: bytes) -> None:
        self.stats.lost += 1
        self._tell("lost", frame)

    def _tell(self, fate: str, frame: bytes) -> None:
        if self.watch is not None:
            self.watch(fate, frame)
