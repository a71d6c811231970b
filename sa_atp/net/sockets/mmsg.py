"""sendmmsg(2) and recvmmsg(2) through ctypes: many frames in one system call, for ports whose loop is not compiled.

The vectors are NumPy arrays that are made once and then changed in place, so a batch costs no Python work per frame:
two thirds of the CPU time of a call per frame. UDP sockets send and receive a burst by one call, and need no vectors.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
from functools import lru_cache

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


class MessageVector:
    """Takes up to `capacity` frames in one call."""

    def __init__(self, capacity: int) -> None:
        self._iov = np.zeros(capacity, IOVEC)
        self._messages = np.zeros(capacity, MMSGHDR)
        self._messages["iov"] = self._iov.ctypes.data + np.arange(capacity) * IOVEC.itemsize
        self._messages["iov_count"] = 1

    def receive(self, fd: int, data: ByteRows) -> Lengths:
        """Fills rows of uint8[capacity, row].

        Returns: the length of each that came; -1 for one that was longer than a row, and is lost.
        Raises: BlockingIOError if there is nothing, OSError.
        """
        most = min(len(data), len(self._messages))
        self._iov["base"][:most] = data.ctypes.data + np.arange(most) * data.strides[0]
        self._iov["length"] = data.shape[1]
        self._messages["flags"] = 0
        at = ctypes.c_void_p(self._messages.ctypes.data)
        count = _done(_LIBC.recvmmsg(fd, at, most, socket.MSG_DONTWAIT, None))
        lengths = self._messages["sent"][:count].astype(np.int64)
        lengths[self._messages["flags"][:count] & socket.MSG_TRUNC != 0] = -1
        return lengths


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
    """The address of a sender, from the first half of its struct sockaddr_in."""
    _, port, ip = struct.unpack("!HH4s", sender.to_bytes(8, sys.byteorder))
    return socket.inet_ntoa(ip), port


@lru_cache(maxsize=1024)
def socket_address(address: Address) -> bytes:
    """An address as struct sockaddr_in."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", address[1], socket.inet_aton(address[0]))


def sender_of(address: Address) -> int:
    """An address as `address_of` takes it, signed: as socket_kernels.receive names it."""
    (number,) = struct.unpack("=q", socket_address(address)[:8])
    return int(number)
