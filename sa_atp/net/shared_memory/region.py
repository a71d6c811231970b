"""A range of addresses in which other memory can be put side by side, so that compiled code has it as one array."""

import ctypes
import mmap
import os

import numpy as np

from sa_atp.basics.arrays import Octets

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FIXED, _NORESERVE = 0x10, 0x4000  # MAP_FIXED, MAP_NORESERVE
_FAILED = ctypes.c_void_p(-1).value


class Region:
    """Private memory, all zero, parts of which can be replaced. It is reserved only: what nobody touches takes no room."""

    def __init__(self, size: int) -> None:
        self._size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._at = self._map(None, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self.bytes: Octets = np.ctypeslib.as_array((ctypes.c_uint8 * self._size).from_address(self._at))
        """uint8[size]; valid until `close`."""

    def put(self, offset: int, size: int, descriptor: int) -> None:
        """Replaces a part by shared memory. Args: offset, size: whole pages. Raises: OSError."""
        self._map(self._at + offset, size, mmap.MAP_SHARED | _FIXED, descriptor)

    def clear(self, offset: int, size: int) -> None:
        """Makes a part private and zero again. Raises: OSError."""
        self._map(self._at + offset, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1)

    def close(self) -> None:
        _LIBC.munmap(self._at, self._size)

    @staticmethod
    def _map(at: int | None, size: int, flags: int, descriptor: int) -> int:
        found = _LIBC.mmap(at, size, mmap.PROT_READ | mmap.PROT_WRITE, flags | _NORESERVE, descriptor, 0)
        if found == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return int(found)
