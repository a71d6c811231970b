"""sendmmsg(2) and recvmmsg(2) through ctypes: many datagrams or frames in one system call.

The vectors live in NumPy arrays that are made once and only patched, so a batch costs no Python work per datagram.
"""

import ctypes
import errno
import os
import socket
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from sa_atp.wire.datagrams import Address

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
    """Room for up to `capacity` datagrams or frames in one call."""

    def __init__(self, capacity: int = 256) -> None:
        self.capacity = capacity
        self._iov = np.zeros(capacity, IOVEC)
        self._messages = np.zeros(capacity, MMSGHDR)
        self._messages["iov"] = self._iov.ctypes.data + np.arange(capacity) * IOVEC.itemsize
        self._messages["iov_count"] = 1
        self._name = np.zeros(16, np.uint8)

    def send(self, fd: int, data: np.ndarray, lengths: np.ndarray | int, address: Address | None = None) -> int:
        """Sends the first `lengths` bytes of each row of uint8[n, row], n <= capacity.

        Args: address: where to; None: the socket is bound to an interface.
        Returns: how many the kernel took. Raises: BlockingIOError if none, OSError.
        """
        if address is None:
            self._messages["name"], self._messages["name_length"] = 0, 0
        else:
            self._name[:] = np.frombuffer(_socket_address(address), np.uint8)
            self._messages["name"], self._messages["name_length"] = self._name.ctypes.data, 16
        return self._call(_LIBC.sendmmsg, fd, data, lengths, 0)

    def receive(self, fd: int, data: np.ndarray) -> tuple[int, np.ndarray]:
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

    def _call(
        self, function: Any, fd: int, data: np.ndarray, lengths: np.ndarray | int, flags: int, *more: None
    ) -> int:
        count = min(len(data), self.capacity)
        self._iov["base"][:count] = data.ctypes.data + np.arange(count) * data.strides[0]
        self._iov["length"][:count] = lengths if isinstance(lengths, int) else lengths[:count]
        done = function(fd, ctypes.c_void_p(self._messages.ctypes.data), count, flags, *more)
        if done < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.ENOBUFS):
                raise BlockingIOError(code, os.strerror(code))
            raise OSError(code, os.strerror(code))
        return int(done)


@lru_cache(maxsize=1024)
def _socket_address(address: Address) -> bytes:
    """struct sockaddr_in."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", address[1], socket.inet_aton(address[0]))
