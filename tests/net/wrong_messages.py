"""Messages like from the kernel, nearly right: current packets with few errors, in any order and shape."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows
from sa_atp.protocol.packets.header import first_byte, headers
from sa_atp.protocol.packets.spec import Kind

from . import scripted_calls as c
from .guarded import Guarded

RIGHT, WRONG, STALE = "as they should be", "with wrong content or shape", "repeated or too early"
MESSAGES = 48  # of a turn, at most
MOST_BYTES = 65_535
TRUNCATED = (0x20, 0x08, 0x28)  # MSG_TRUNC, MSG_CTRUNC
STRANGER = 0x0707070A_3930_0002
ERRORS = (c.AGAIN, c.AGAIN, c.INTERRUPTED, c.REFUSED)
CHANGES = (
    "shifted", "edge", "edge", "edge", "exponent", "tag", "flags", "job", "epoch", "kind", "bitmap", "lanes", "swapped",
    "repeated", "header",
)  # fmt: skip
SHAPES = ("cut", "tail", "segment", "control", "flags", "sender", "noise", "long", "empty", "error")


@dataclass
class Messages:
    """The next messages, in the script's memory."""

    script: AnyIntegers
    rng: random.Random
    seen: Counter[str]
    kept: list[Any] = field(default_factory=list)
    count: int = 0
    what: str = RIGHT
    """The next messages, for `seen`."""

    def __post_init__(self) -> None:
        self._table = Guarded((MESSAGES, c.MESSAGE_ITEMS), np.int64)
        self._noise = np.frombuffer(self.rng.randbytes(1 << 16), np.uint8)

    def clear(self) -> None:
        self.count = 0
        self.kept.clear()
        self.script[[c.NEXT, c.COUNT, c.TABLE]] = 0, 0, self._table.array.ctypes.data

    @property
    def is_full(self) -> bool:
        return self.count >= MESSAGES

    def add(
        self, data: AnyIntegers, segment: int, sender: int, control: int = 24, length: int = 20, kind: int = c.COALESCED,
        flags: int = 0, counts: bool = True,
    ) -> None:  # fmt: skip
        """Adds a message. Args: segment, control, length, kind, flags: as reported by the kernel."""
        if self.is_full:
            return
        bytes_ = np.ascontiguousarray(data).reshape(-1)[:MOST_BYTES]
        self.kept.append(bytes_)
        self._row(bytes_.ctypes.data, len(bytes_), sender, control, length, kind, segment, flags)
        # of a message that is nothing but repeated, or whose datagrams are none of this protocol, only one counts
        count = -(-len(bytes_) // segment) if counts and 16 <= segment <= len(bytes_) else 1
        self.seen["datagrams"] += count
        self.seen[f"datagrams, {self.what}"] += count

    def error(self, number: int) -> None:
        """Adds a call that fails. Args: number: an errno."""
        if not self.is_full:
            self._row(0, -number, 0, 0, 0, 0, 0, 0)

    def _row(self, *items: int) -> None:
        self._table.array[self.count] = items
        self.count += 1
        self.script[c.COUNT] = self.count

    def packets(self, packets: ByteRows, sender: int) -> int:
        """Adds packets of one size, in any number of messages. Returns: how many there was room for."""
        size, first = packets.shape[1], 0
        while first < len(packets) and not self.is_full:
            count = min(self.rng.choice((1, 3, 16, 64, 64)), MOST_BYTES // size, len(packets) - first)
            is_single = count == 1 and self.rng.random() < 0.7
            self.add(packets[first : first + count], size, sender, 0 if is_single else 24)
            first += count
        return first

    def wrong_shape(self, packets: ByteRows, sender: int) -> None:
        """Adds packets in a message with one to three errors in the kernel's report, or wrong senders."""
        rng, size = self.rng, packets.shape[1]
        data: AnyIntegers = packets.reshape(-1)
        segment, control, length, kind, flags = size, 24, 20, c.COALESCED, 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            shape = rng.choice(SHAPES)
            self.seen[f"drawn: shape, {shape}"] += 1
            if shape == "cut":
                data = data[: rng.randrange(len(data) + 1)]
            elif shape == "tail":
                data = data[: max(0, len(data) - rng.choice((1, 2, 3, 4, size - 1, size // 2)))]
            elif shape == "segment":
                segment = rng.choice(
                    (0, 1, 3, 4, size - 1, size + 1, size - 4, size + 4, 2 * size, len(data), len(data) + 1, 65_535,
                     2**31, 2**32 - 1)
                )  # fmt: skip
            elif shape == "control":
                control, length = rng.randrange(25), rng.choice((0, 12, 19, 20, 21, 24, 2**40, 2**63 - 1))
                kind = rng.choice((c.COALESCED, 103 << 32 | 17, 0, 17, 104))
            elif shape == "flags":
                flags = rng.choice(TRUNCATED)
            elif shape == "sender":
                sender = rng.choice((STRANGER, sender ^ 1 << rng.randrange(16, 63), 0))
            elif shape == "noise":
                data = self._noise[: rng.choice((1, 3, 65_535, rng.randrange(65_536), size, 4 * size))]
            elif shape == "long":
                data = np.resize(data, MOST_BYTES if rng.random() < 0.5 else MOST_BYTES // size * size)
            elif shape == "empty":
                data = data[:0]
            else:
                self.error(rng.choice(ERRORS))
        self.add(data, segment, sender, control, length, kind, flags, len(data) <= packets.size and segment == size)


def changed(packets: ByteRows, edges: list[int], rng: random.Random, seen: Counter[str]) -> ByteRows:
    """Packets with one to three errors. Args: edges: sequence numbers at which something begins or ends."""
    if rng.random() < 0.4:  # few, so that they fit where little is missing, and otherwise right
        seen["drawn: content, one further"] += 1
        made = packets[-rng.choice((1, 2, 3)) :].copy()
        headers(made)["seq"] += np.uint32(rng.choice((1, 1, 1, 2**32 - 1)))
        return made
    made = packets.copy()
    head, rows = headers(made), len(made)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change, row = rng.choice(CHANGES), rng.randrange(rows)
        seen[f"drawn: content, {change}"] += 1
        if change == "shifted":
            head["seq"] += np.uint32(rng.choice((1, 2, 2**32 - 1, 2**32 - 2, 2**31, 2**31 - 1, rng.getrandbits(32))))
        elif change == "edge":
            first = rng.choice(edges) + rng.choice((0, 0, 1, -1, -row, -rows, 1 - rows))
            head["seq"] = (first + np.arange(rows)) % 2**32
        elif change == "exponent":
            head["exponent"][row:] = rng.choice((-128, -127, -126, 0, 126, 127, int(head["exponent"][0]) + 1 & 63))
        elif change in ("tag", "flags", "job", "epoch"):
            head[change][row:] ^= np.uint8(1 << rng.randrange(8))
        elif change == "kind":
            head["first"][row:] = rng.choice((*map(first_byte, Kind), 0, 255))
        elif change == "bitmap":
            made[row, 12 + rng.randrange(min(8, made.shape[1] - 12))] ^= 1 << rng.randrange(8)
        elif change == "lanes" and made.shape[1] > 256:
            made[row:, -128:].view(">i4")[:] = rng.choice((-(2**31), 2**31 - 1, 0, 1 << 24))
        elif change == "swapped":
            made[[row, -1]] = made[[-1, row]]
        elif change == "repeated":
            made[row:] = made[row]
        elif change == "header":
            made[row, rng.randrange(min(20, made.shape[1]))] = rng.randrange(256)
    return made
