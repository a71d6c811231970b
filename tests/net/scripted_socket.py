"""A socket of the package whose system calls are answered by a script (scripted_calls.py)."""

import random
from collections import Counter

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows
from sa_atp.net.sockets.compiled_bursts import PackedReceive, SegmentedSend
from sa_atp.protocol.packets.datagrams import Address, Burst

from . import scripted_calls as c
from .guarded import Guarded
from .wrong_messages import Messages

KEPT_BYTES, LOG_ROWS = 4 << 20, 4096  # of what is sent in a turn; what is more is refused
FOUND_ROWS = 20


class Socket:
    """The memory of a socket's compiled code, and the packets that have been sent."""

    def __init__(self, built: c.Built, rng: random.Random, seen: Counter[str]) -> None:
        self._built, self._rng, self.seen = built, rng, seen
        self._script = built.script
        self.messages = Messages(built.script, rng, seen)
        self._kept, self._log = np.zeros(KEPT_BYTES, np.uint8), np.zeros((LOG_ROWS, 2), np.int64)
        self.packed, self.segmented = PackedReceive(built.sockets), SegmentedSend(built.sockets)
        packed, segmented = self.packed, self.segmented
        room = Guarded(65_536 * rng.randrange(1, 6) + 4 * rng.randrange(1000), np.uint8)
        found = Guarded((rng.choice((2, FOUND_ROWS, 64)), 4), np.int64)
        words = [Guarded(count, np.uint64) for count in (7, 2, 2, 8, 7, 2, 3)]
        self._guarded = [room, found, *words]
        packed._room, packed._found = room.array, found.array
        packed._header, packed._vector, packed._name, packed._control = (each.array for each in words[:4])
        segmented._header, segmented._vector, segmented._control = (each.array for each in words[4:])
        at = int(room.array.ctypes.data)
        self._script[[c.IN_FIRST, c.IN_END]] = at, at + room.array.nbytes
        self._script[[c.KEPT_AT, c.KEPT_END, c.LOG_AT, c.LOG_END]] = (
            self._kept.ctypes.data, KEPT_BYTES, self._log.ctypes.data, LOG_ROWS,
        )  # fmt: skip
        self._script[[c.KEPT, c.LOGGED]] = 0

    def may_read(self, data: AnyIntegers, question: AnyIntegers | None = None) -> None:
        """How much may be sent now."""
        for first, array in ((c.OUT_FIRST, data), (c.ASK_FIRST, data if question is None else question)):
            at = int(array.ctypes.data)
            self._script[first : first + 2] = at, at + array.nbytes

    def send(self, address: Address, data: ByteRows, segments: int) -> None:
        data = np.ascontiguousarray(data)
        self.may_read(data)
        self._script[c.SENDS] = self._rng.choice((0, 0, 0, 2))
        sent = self.segmented.send(3, address, data, segments)
        self.seen["sent: by calls from Python"] += len(data)
        if sent < len(data):  # UdpSocket tries again
            self.seen["sent: by calls from Python, after one was refused"] += 1
            self._script[c.SENDS] = 0
            self.segmented.send(3, address, np.ascontiguousarray(data[sent:]), segments)

    def sent(self) -> list[ByteRows]:
        """The packets sent since the last call, in groups of one size."""
        found, at = [], 0
        for segment, count in self._log[: self._script[c.LOGGED]].tolist():
            if count % segment == 0:
                found.append(self._kept[at : at + count].reshape(-1, segment).copy())
            at += count
        self._script[[c.KEPT, c.LOGGED]] = 0
        return found

    def received(self) -> list[Burst]:
        """Receives, like `UdpSocket.receive`."""
        room, _, header, vector, name, control, found = self.packed.lent()
        before = int(self._script[c.NEXT])
        count = self.packed._receive(3, room, header, vector, name, control, found)
        is_drained = count < 0
        count = -1 - count if is_drained else count
        self._built.look()
        self.seen["look: nothing more"] += is_drained
        self.seen["look: as many rows as there are"] += count == len(found)
        self.seen["look: messages side by side"] += int(self._script[c.NEXT]) - before > count > 0
        self.seen["look: room is full"] += not is_drained and count < len(found)
        return self.packed.bursts(0, count)

    @property
    def is_over(self) -> bool:
        return bool(self._script[c.NEXT] >= self._script[c.COUNT])

    def check(self) -> None:
        self._built.look()
        for each in self._guarded:
            each.check()
