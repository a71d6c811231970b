"""Receives and sends bursts by compiled code: one call of Python's makes many system calls.

Consecutive datagrams of one size and sender, coalesced or not, become one burst, without a copy.
"""

from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, ByteRows, Octets, Words
from sa_atp.net.sockets.mmsg import address_of, socket_address
from sa_atp.protocol.packets.datagrams import Address, Burst

ROOM_BYTES = 1216 << 10  # of one receive: a window of 1024 results, and the largest message
MESSAGES = 256  # of one receive
ALL = (1 << 64) - 1
NAMES_KEPT = 256  # cached addresses, as struct sockaddr_in


class PackedReceive:
    def __init__(self, kernels: Any) -> None:
        self._receive = kernels.receive
        self._room = np.zeros(ROOM_BYTES, np.uint8)
        self._header, self._vector = np.zeros(7, np.uint64), np.zeros(2, np.uint64)
        self._name, self._control = np.zeros(2, np.uint64), np.zeros(8, np.uint64)
        self._found = np.zeros((MESSAGES, 4), np.int64)

    def receive(self, fd: int) -> tuple[list[Burst], bool]:
        """Receives up to a bound. Returns: bursts, valid until the next call, and whether that was all."""
        count = self._receive(fd, self._room, self._header, self._vector, self._name, self._control, self._found)
        is_drained = count < 0
        if is_drained:
            count = -1 - count
        return self.bursts(0, count), is_drained

    def bursts(self, first: int, end: int, taken: int = 0) -> list[Burst]:
        """See `bursts_in`, of rows first to end - 1."""
        return bursts_in(self._room, self._found[first:end], taken)

    def lent(self) -> tuple[Octets, Words, Words, Words, Words, Words, AnyIntegers]:
        """The arguments of socket_kernels.receive, for compiled code that calls it; the room also as 32-bit words."""
        return (
            self._room, self._room.view(np.uint32), self._header, self._vector, self._name, self._control, self._found,
        )  # fmt: skip


def bursts_in(room: Octets, found: AnyIntegers, taken: int = 0) -> list[Burst]:
    """The bursts in rows of `found`, see socket_kernels. Args: taken: datagrams of the first that have been handled."""
    bursts: list[Burst] = []
    for start, bytes_, size, sender in found.tolist():
        address = address_of(sender & ALL)
        whole, rest = divmod(bytes_, size)
        split = start + whole * size
        start += taken * size
        if start < split:
            bursts.append(Burst(address, room[start:split].reshape(-1, size)))
        if rest:
            bursts.append(Burst(address, room[split : split + rest].reshape(1, rest)))
        taken = 0
    return bursts


class SegmentedSend:
    def __init__(self, kernels: Any) -> None:
        self._send = kernels.send
        self._header, self._vector, self._control = (np.zeros(words, np.uint64) for words in (7, 2, 3))
        self._names: dict[Address, Words] = {}

    def send(self, fd: int, address: Address, data: ByteRows, segments: int) -> int:
        """Sends datagrams until the kernel refuses one. Args: segments: of one call. Returns: how many it took."""
        return int(self._send(fd, data, 0, segments, *self.lent(address)))

    def lent(self, address: Address) -> tuple[Words, Words, Words, Words]:
        """The arguments of socket_kernels.send beside the datagrams."""
        name = self._names.get(address)
        if name is None:
            if len(self._names) >= NAMES_KEPT:
                self._names.clear()
            name = self._names[address] = np.frombuffer(socket_address(address), np.uint64).copy()
        return self._header, self._vector, name, self._control
