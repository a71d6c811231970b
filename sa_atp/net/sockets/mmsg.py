"""sendmmsg(2) and recvmmsg(2) through ctypes: many datagrams or frames in one system call.

The vectors are NumPy arrays that are made once and then changed in place, so a batch costs no Python work per datagram.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sa_atp.basics.arrays import ByteRows, Counts, Lengths, Words
from sa_atp.protocol.packets.datagrams import Address

_LIBC = ctypes.CDLL(None, use_errno=True)
_POINTER = np.dtype(np.uintp)

# struct msghdr and struct mmsghdr of Linux on 64-bit machines, with their padding
IOVEC = np.dtype([("base", _POINTER), ("length", _POINTER)])
MMSGHDR = np.dtype(
    {
        "names": ["name", "name_length", "iov", "iov_count", "control", "control_length", "flags", "sent"],
        "formats": [_POINTER, np.uint32, _POINTER, _POINTER, _POINTER, _POINTER, np.int32, np.uint32],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)


SOL_UDP = 17
UDP_GRO = 104

# struct cmsghdr with an int, as UDP_GRO gives it, padded
CONTROL = np.dtype(
    [("length", np.uint64), ("level", np.int32), ("kind", np.int32), ("value", np.int32), ("pad", np.int32)]
)
CONTROL_BYTES = CONTROL.itemsize


@dataclass(frozen=True, slots=True)
class ReceivedDatagrams:
    """The result of `receive_datagrams`: for each row its bytes, the size of each datagram in it, and its sender."""

    lengths: Lengths
    segments: Lengths
    senders: Words
    """See `address_of`."""

    def __len__(self) -> int:
        return len(self.lengths)


class MessageVector:
    """Room for up to `capacity` datagrams or frames in one call."""

    def __init__(self, capacity: int = 256) -> None:
        self.capacity = capacity
        self._iov = np.zeros(capacity, IOVEC)
        self._messages = np.zeros(capacity, MMSGHDR)
        self._messages["iov"] = self._iov.ctypes.data + np.arange(capacity) * IOVEC.itemsize
        self._messages["iov_count"] = 1
        self._name = np.zeros(16, np.uint8)
        self._names: ByteRows | None = None  # made by the first call that needs them
        self._controls = np.zeros((0, CONTROL_BYTES), np.uint8)

    def send(self, fd: int, data: ByteRows, lengths: Lengths | int, address: Address | None = None) -> int:
        """Sends the first `lengths` bytes of each row of uint8[n, row], n <= capacity.

        Args: address: where to; None: the socket is bound to an interface.
        Returns: how many the kernel took. Raises: BlockingIOError if none, OSError.
        """
        if address is None:
            self._messages["name"], self._messages["name_length"] = 0, 0
        else:
            self._name[:] = np.frombuffer(socket_address(address), np.uint8)
            self._messages["name"], self._messages["name_length"] = self._name.ctypes.data, 16
        return self._call(_LIBC.sendmmsg, fd, data, lengths, 0)

    def receive(self, fd: int, data: ByteRows) -> tuple[int, Lengths]:
        """Fills rows of uint8[capacity, row].

        Returns: how many, and the length of each; -1 for one that was longer than a row, and is lost.
        Raises: BlockingIOError if there is nothing, OSError.
        """
        self._messages["name"], self._messages["name_length"] = 0, 0
        self._messages["flags"] = 0
        count = self._call(_LIBC.recvmmsg, fd, data, data.shape[1], socket.MSG_DONTWAIT, None)
        lengths = self._messages["sent"][:count].astype(np.int64)
        lengths[self._messages["flags"][:count] & socket.MSG_TRUNC != 0] = -1
        return count, lengths

    def receive_datagrams(self, fd: int, data: ByteRows) -> "ReceivedDatagrams":
        """Fills rows of uint8[capacity, row] with datagrams.

        A row may hold several datagrams of one sender, if the kernel has coalesced them (UDP_GRO).

        Raises: BlockingIOError if there is nothing, OSError.
        """
        if self._names is None:
            self._names = np.zeros((self.capacity, 16), np.uint8)
            self._controls = np.zeros((self.capacity, CONTROL_BYTES), np.uint8)
            self._name_places = self._names.ctypes.data + np.arange(self.capacity) * 16
            self._control_places = self._controls.ctypes.data + np.arange(self.capacity) * CONTROL_BYTES
        names, controls = self._names, self._controls
        self._messages["name"], self._messages["name_length"] = self._name_places, 16
        self._messages["control"], self._messages["control_length"] = self._control_places, CONTROL_BYTES
        self._messages["flags"] = 0
        count = self._call(_LIBC.recvmmsg, fd, data, data.shape[1], socket.MSG_DONTWAIT, None)
        lengths = self._messages["sent"][:count].astype(np.int64)
        segments = lengths.copy()
        control = controls[:count].view(CONTROL)[:, 0]
        coalesced = (
            (self._messages["control_length"][:count] >= CONTROL.itemsize)
            & (control["level"] == SOL_UDP)
            & (control["kind"] == UDP_GRO)
        )
        segments[coalesced] = control["value"][coalesced]
        # family, port and address: equal for equal senders
        return ReceivedDatagrams(lengths, segments, names[:count, :8].copy().view(np.uint64)[:, 0])

    def _call(self, function: Any, fd: int, data: ByteRows, lengths: Lengths | int, flags: int, *more: None) -> int:
        count = min(len(data), self.capacity)
        self._iov["base"][:count] = data.ctypes.data + np.arange(count) * data.strides[0]
        self._iov["length"][:count] = lengths if isinstance(lengths, int) else lengths[:count]
        return _done(function(fd, ctypes.c_void_p(self._messages.ctypes.data), count, flags, *more))


class GatherVector:
    """Sends packets whose parts are scattered in memory, through a socket that is bound to an interface."""

    def __init__(self, capacity: int = 256) -> None:
        """Args: capacity: packets for one call."""
        self._messages = np.zeros(capacity, MMSGHDR)

    def send(self, fd: int, bases: Words, sizes: Words, counts: Counts) -> int:
        """Sends packets, in order.

        Args: bases, sizes: address and size of each part; counts: parts of each packet.
        Returns: how many packets the kernel took; the first that it refuses ends the call, unless it is the very first.
        Raises: BlockingIOError, OSError.
        """
        iov = np.empty(len(bases), IOVEC)
        iov["base"], iov["length"] = bases, sizes
        packets = min(len(counts), len(self._messages))
        starts = np.cumsum(counts) - counts
        self._messages["iov"][:packets] = iov.ctypes.data + starts[:packets] * IOVEC.itemsize
        self._messages["iov_count"][:packets] = counts[:packets]
        return _done(_LIBC.sendmmsg(fd, ctypes.c_void_p(self._messages.ctypes.data), packets, 0))


def _done(result: int) -> int:
    """The result of a call. Raises: BlockingIOError, OSError."""
    if result < 0:
        code = ctypes.get_errno()
        if code in (errno.EAGAIN, errno.ENOBUFS):
            raise BlockingIOError(code, os.strerror(code))
        raise OSError(code, os.strerror(code))
    return int(result)


@lru_cache(maxsize=1024)
def address_of(sender: int) -> Address:
    """The address of a sender in ReceivedDatagrams, which is the first half of its struct sockaddr_in."""
    _, port, ip = struct.unpack("!HH4s", sender.to_bytes(8, sys.byteorder))
    return socket.inet_ntoa(ip), port


@lru_cache(maxsize=1024)
def socket_address(address: Address) -> bytes:
    """An address as struct sockaddr_in."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", address[1], socket.inet_aton(address[0]))
