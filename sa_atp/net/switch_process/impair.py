"""Impairs links at a switch's ports: delay, jitter, loss, duplication and reordering, also on kernels without netem.

The same seed gives the same decisions for the same sequence of packets.
"""

import heapq
import random
from dataclasses import dataclass, fields

import numpy as np

from sa_atp.basics.arrays import ByteRows, Lengths
from sa_atp.basics.errors import UserError
from sa_atp.net.clock import now_us
from sa_atp.net.sockets.ports import Frames, Port

REORDER_BY_US = 2_000  # how long a packet may be held back, so that later ones overtake it


@dataclass(frozen=True, kw_only=True, slots=True)
class Impairment:
    """The impairment of one direction of a link. Fractions are 0 to 1."""

    delay_us: int = 0
    jitter_us: int = 0
    """The largest extra delay, uniformly drawn; it does not reorder packets."""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Share of packets that are held back by up to REORDER_BY_US."""

    @classmethod
    def parse(cls, text: str) -> "Impairment":
        """Parses text like "delay_us=1000,loss=0.01". Raises: UserError."""
        kinds = {f.name: int if f.name.endswith("_us") else float for f in fields(cls)}
        found: dict[str, float] = {}
        for item in text.split(","):
            name, equals, value = item.partition("=")
            try:
                if name not in kinds or not equals:
                    raise ValueError
                number = kinds[name](value)
                if not 0 <= number <= (10_000_000 if kinds[name] is int else 1):
                    raise ValueError
            except ValueError:
                raise UserError(
                    f"impairment {item!r}: expected KEY=VALUE with delay_us or jitter_us (0 to 10000000), "
                    "loss, duplicate or reorder (0 to 1)"
                ) from None
            found[name] = number
        return cls(**found)  # type: ignore[arg-type]


@dataclass(slots=True)
class OneWayLinkStats:
    carried: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0


class OneWayLink:
    """One direction of an impaired link: `put` sends packets, `take` receives those that have arrived."""

    def __init__(self, impairment: Impairment, rng: random.Random) -> None:
        self._impairment = impairment
        self._rng = np.random.default_rng(rng.getrandbits(64))
        self._waiting: list[tuple[int, int, ByteRows, Lengths]] = []  # (when, order, frames, lengths)
        self._order = 0
        self._last_us = 0  # arrival of the last packet that was not held back
        self.stats = OneWayLinkStats()

    @property
    def due_us(self) -> int | None:
        """When the next packet arrives; None: the link is empty."""
        return self._waiting[0][0] if self._waiting else None

    def put(self, frames: ByteRows, lengths: Lengths, now: int) -> None:
        """Sends frames, uint8[n, row], which are copied."""
        i, rng = self._impairment, self._rng
        if i.loss:
            kept = rng.random(len(frames)) >= i.loss
            self.stats.lost += int(np.count_nonzero(~kept))
            frames, lengths = frames[kept], lengths[kept]
        count = len(frames)
        if not count:
            return
        self.stats.carried += count
        arrivals = np.full(count, now + i.delay_us)
        if i.jitter_us:
            arrivals += rng.integers(0, i.jitter_us + 1, count)
            arrivals = np.maximum.accumulate(np.maximum(arrivals, self._last_us))
            self._last_us = int(arrivals[-1])
        copies = np.zeros(count, bool) if not i.duplicate else rng.random(count) < i.duplicate
        late = np.zeros(count, bool) if not i.reorder else rng.random(count) < i.reorder
        self.stats.duplicated += int(np.count_nonzero(copies))
        self.stats.reordered += int(np.count_nonzero(late))
        again = np.flatnonzero(copies)
        again_at = arrivals[again] + rng.integers(1, 2 * REORDER_BY_US, len(again))
        arrivals[late] += rng.integers(1, REORDER_BY_US, int(np.count_nonzero(late)))
        for when in np.unique(arrivals).tolist():
            rows = np.flatnonzero(arrivals == when)
            self._push(when, frames[rows], lengths[rows])
        for row, when in zip(again.tolist(), again_at.tolist(), strict=True):
            self._push(when, frames[row : row + 1].copy(), lengths[row : row + 1].copy())

    def _push(self, when: int, frames: ByteRows, lengths: Lengths) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (when, self._order, frames, lengths))

    def take(self, now: int) -> Frames | None:
        """Takes the frames that have arrived by now, in order; None if there are none."""
        found: list[tuple[ByteRows, Lengths]] = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, frames, lengths = heapq.heappop(self._waiting)
            found.append((frames, lengths))
        if not found:
            return None
        widest = max(frames.shape[1] for frames, _ in found)
        padded = [np.pad(frames, ((0, 0), (0, widest - frames.shape[1]))) for frames, _ in found]
        return np.concatenate(padded), np.concatenate([lengths for _, lengths in found])


class ImpairedPort:
    """A port with an impaired link."""

    def __init__(self, port: Port, *, arrivals: Impairment | None, departures: Impairment | None, seed: int) -> None:
        """Args: arrivals, departures: impairment of each direction; None: none."""
        self._port = port
        rng = random.Random(seed)
        self.arrivals = OneWayLink(arrivals, rng) if arrivals is not None else None
        self.departures = OneWayLink(departures, rng) if departures is not None else None

    @property
    def due_us(self) -> int | None:
        """When `receive` and `flush` should be called, whether or not the port is readable."""
        times = [line.due_us for line in (self.arrivals, self.departures) if line is not None]
        return min((t for t in times if t is not None), default=None)

    @property
    def port(self) -> Port:
        """The port itself."""
        return self._port

    @property
    def lost(self) -> int:
        """Packets that the link has lost so far."""
        return sum(line.stats.lost for line in (self.arrivals, self.departures) if line is not None)

    def fileno(self) -> int:
        return self._port.fileno()

    def receive(self) -> Frames | None:
        frames = self._port.receive()
        if self.arrivals is None:
            return frames
        now = now_us()
        if frames is not None:
            self.arrivals.put(*frames, now)
        return self.arrivals.take(now)

    def send(self, frames: ByteRows, lengths: Lengths) -> None:
        if self.departures is None:
            self._port.send(frames, lengths)
            return
        self.departures.put(frames, lengths, now_us())
        self.flush()

    def flush(self) -> None:
        """Sends the frames that have crossed the link by now."""
        if self.departures is not None:
            found = self.departures.take(now_us())
            if found is not None:
                self._port.send(*found)

    def waiting(self) -> int:
        return self._port.waiting()

    def close(self) -> None:
        self._port.close()

    def describe(self) -> str:
        return f"{self._port.describe()}, impaired"
