"""Impairs links at a switch's ports: delay, jitter, loss, duplication and reordering, also on kernels without netem.

The same seed gives the same decisions for the same sequence of packets.
"""

import heapq
import random
from dataclasses import dataclass, fields

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows, Lengths
from sa_atp.basics.errors import UserError
from sa_atp.net.clock import now_us
from sa_atp.net.sockets.ports import Frames, Port
from sa_atp.net.switch_process.datapath import state
from sa_atp.net.switch_process.datapath.code import plain_functions
from sa_atp.switches.embedded.call_frame import CallFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Impairment:
    """The impairment of one direction of a link. Fractions are 0 to 1."""

    delay_us: int = 0
    jitter_us: int = 0
    """The largest extra delay, uniformly drawn; it does not reorder packets."""
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Share of packets that are held back by up to 2 ms."""

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


class OneWayLink:
    """One direction of an impaired link: `put` sends frames, `take` receives those that have arrived.

    What becomes of a frame is decided by the compiled loop's functions (`datapath.wires`), here as plain Python.
    """

    def __init__(self, impairment: Impairment, rng: random.Random) -> None:
        i = impairment
        self.wire: AnyIntegers = np.zeros(state.WIRE_ITEMS, np.int64)
        """The link's settings and counts, a row of WIRES (see `state`); in a compiled loop, a row of that loop's memory."""
        self.wire[state.WIRE_USED] = 1
        self.wire[state.WIRE_DELAY_US], self.wire[state.WIRE_JITTER_US] = i.delay_us, i.jitter_us
        shares = [state.WIRE_LOSS, state.WIRE_DUPLICATE, state.WIRE_REORDER]
        self.wire[shares] = np.rint(np.array([i.loss, i.duplicate, i.reorder]) * state.SHARE)
        self.wire[state.WIRE_RANDOM] = rng.getrandbits(48)
        self._waiting: list[tuple[int, int, bytes]] = []  # (when, order, frame)
        self._order = 0

    @property
    def due_us(self) -> int | None:
        """When the next frame arrives; None: the link is empty."""
        return self._waiting[0][0] if self._waiting else None

    def put(self, frames: ByteRows, lengths: Lengths, now: int) -> None:
        """Sends frames, uint8[n, row], which are copied."""
        functions = plain_functions()
        frame = CallFrame(state.PLACES, compiled=False)
        frame.array(state.WIRES, self.wire[None])
        for data, length in zip(frames, lengths.tolist(), strict=True):
            due = functions["arrives_at"](frame.handle, 0, now)
            if due >= 0:
                for when in (due, functions["again_at"](frame.handle, 0, due)):
                    if when >= 0:
                        self._order += 1
                        heapq.heappush(self._waiting, (int(when), self._order, data[:length].tobytes()))

    def take(self, now: int) -> Frames | None:
        """Takes the frames that have arrived by now, in order; None if there are none."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(heapq.heappop(self._waiting)[2])
        if not found:
            return None
        widest = max(map(len, found))
        rows = np.frombuffer(b"".join(each.ljust(widest, b"\0") for each in found), np.uint8).reshape(-1, widest)
        return rows.copy(), np.array([len(each) for each in found])


class ImpairedPort:
    """A port whose link is impaired. A compiled loop does not impair packets that the control plane sends (packet-outs)."""

    def __init__(self, port: Port, *, arrivals: Impairment | None, departures: Impairment | None, seed: int) -> None:
        """Args: arrivals, departures: impairment of each direction; None: none."""
        self._port = port
        rng = random.Random(seed)
        self.arrivals = OneWayLink(arrivals, rng) if arrivals is not None else None
        self.departures = OneWayLink(departures, rng) if departures is not None else None

    @property
    def due_us(self) -> int | None:
        """When `receive` and `flush` should be called, whether or not the port is readable."""
        return min((due for link in self.links if (due := link.due_us) is not None), default=None)

    @property
    def port(self) -> Port:
        """The port itself."""
        return self._port

    @property
    def lost(self) -> int:
        """Packets that the link has lost so far."""
        return sum(int(link.wire[state.WIRE_LOST]) for link in self.links)

    @property
    def had_no_room(self) -> int:
        """Packets that were lost because too many were on their way."""
        return sum(int(link.wire[state.WIRE_FULL]) for link in self.links)

    @property
    def links(self) -> list[OneWayLink]:
        """Its impaired directions."""
        return [link for link in (self.arrivals, self.departures) if link is not None]

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
