"""The streams of one sum: contributions being sent, as rows of an array, so that an operation on all of them is cheap."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.protocol.rank.pace.timing import MIN_TIMEOUT_US

States = NDArray[np.int8]
NOWHERE = -1  # in place of a stream's number or a flow's place
LONG_AGO_US = -(1 << 40)  # never

# `state` of a stream
NEW = 0  # no update has seen it
FREE = 1  # it is a flow of its own
WAITING = 2  # it is at the end of its window, and the sum does not move
IN_STEP = 3
DONE = 4

ROW = np.dtype(
    [
        ("rank", np.int64),
        ("past_leaf", np.bool_),
        ("names_bits", np.bool_),  # False: a contribution sent again, without which the sum cannot complete
        ("end", np.float64),  # its end; the rest of the tensor is sent by another stream
        ("state", np.int8),
        ("sent", np.float64),  # its position at the last update, bytes
        ("until", np.float64),  # where its flow ends
        ("place", np.int64),  # place of its flow; NOWHERE: it has none
        ("moves_since_us", np.int64),  # when its flow began
        ("sending_from_us", np.int64),  # the latest interval in which it moved
        ("sending_until_us", np.int64),
    ]
)


def numbers_of(bits: int) -> Ints:
    """int64[ones]: numbers of the bits that are set in a bitmap."""
    octets = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little"))


@dataclass(frozen=True, slots=True, eq=False)
class FlowStream:
    """One stream of a sum: a contribution that a worker sends."""

    streams: "Streams"
    number: int
    rank: int
    bits: int
    """Bitmap of its contributions; 0: it sends a contribution again (`Streams.names_bits`)."""
    begun_us: int

    @property
    def sending(self) -> list[tuple[int, int]]:
        """Intervals (from, until) in which it moved, in microseconds; short gaps do not count."""
        return [] if self.number == NOWHERE else self.streams.sending(self.number)


def _column(name: str) -> Any:
    """A property: a view of one field of all streams."""
    return property(lambda streams: streams._rows[name][: len(streams.each)])


class Streams:
    """The streams of one sum, in the order in which they were added."""

    def __init__(self, fan_in: int, size: float) -> None:
        """Args: fan_in: bitmap of a complete sum. size: of the tensor, bytes."""
        self.each: list[FlowStream] = []
        self.of_rank: dict[int, list[int]] = {}
        """Numbers of each worker's streams, by rank."""
        self.covered = 0
        """Bitmap of the contributions of all streams."""
        self._contributions = fan_in.bit_length()
        self._size = size
        self._rows = np.zeros(16, ROW)
        self._sent_before: dict[int, list[tuple[int, int]]] = {}  # by stream: all intervals but the latest
        self._overlap = False  # two streams have a contribution in common
        self._named: list[Ints] = []  # by stream: its contributions
        self._pairs: tuple[Ints, Ints] | None = None  # cached: contributions, and the streams that have them

    def add(self, rank: int, bits: int, *, past_leaf: bool, now_us: int, end: float = math.inf) -> FlowStream:
        """Adds a stream. Args: end: where it ends, if not at the end of the tensor."""
        number = len(self.each)
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(number, ROW)])
        stream = FlowStream(self, number, rank, bits, now_us)
        self._overlap |= bool(bits & self.covered)
        self.covered |= bits
        self._named.append(numbers_of(bits))
        self._pairs = None
        row = self._rows[number]
        row["rank"], row["past_leaf"], row["names_bits"] = rank, past_leaf, bits != 0
        row["end"], row["place"], row["sending_until_us"] = min(end, self._size), NOWHERE, LONG_AGO_US
        self.each.append(stream)
        self.of_rank.setdefault(rank, []).append(number)
        return stream

    # views: writes to them change the rows

    rank: Ints = _column("rank")
    past_leaf: Flags = _column("past_leaf")
    names_bits: Flags = _column("names_bits")
    end: Floats = _column("end")
    state: States = _column("state")
    sent: Floats = _column("sent")
    until: Floats = _column("until")
    place: Ints = _column("place")
    moves_since_us: Ints = _column("moves_since_us")

    # --- contributions --------------------------------------------------------------------------------------------------

    def all_have(self, sent: Floats) -> float:
        """The largest position up to which all contributions are sent. Args: sent: position of each stream, bytes."""
        if not self._overlap:
            return float(sent[self.names_bits].min())
        numbers, streams = self._contributors()
        farthest = np.zeros(self._contributions)
        np.maximum.at(farthest, numbers, sent[streams])
        return float(farthest.min())

    def bits_of(self, chosen: Flags) -> int:
        """Bitmap of the contributions of some streams. Args: chosen: bool[streams]."""
        numbers, streams = self._contributors()
        held = np.zeros(self._contributions, bool)
        held[numbers[chosen[streams]]] = True
        return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")

    def _contributors(self) -> tuple[Ints, Ints]:
        if self._pairs is None:
            counts = list(map(len, self._named))
            self._pairs = np.concatenate(self._named), np.repeat(np.arange(len(counts)), counts)
        return self._pairs

    # --- intervals of movement ----------------------------------------------------------------------------------------

    def note_moved(self, numbers: Ints, since_us: "Ints | int", until_us: int) -> None:
        """Records that streams moved. Args: since_us: when each began to move."""
        started, ended = self._rows["sending_from_us"], self._rows["sending_until_us"]
        since = np.broadcast_to(since_us, numbers.shape)
        anew = since - ended[numbers] > MIN_TIMEOUT_US
        for number, from_us in zip(numbers[anew].tolist(), since[anew].tolist(), strict=True):
            if ended[number] != LONG_AGO_US:
                self._sent_before.setdefault(number, []).append((int(started[number]), int(ended[number])))
            started[number] = from_us
        ended[numbers] = until_us

    def sending(self, number: int) -> list[tuple[int, int]]:
        """See `Stream.sending`."""
        row = self._rows[number]
        if row["sending_until_us"] == LONG_AGO_US:
            return []
        return [*self._sent_before.get(number, ()), (int(row["sending_from_us"]), int(row["sending_until_us"]))]
