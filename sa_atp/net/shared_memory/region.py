"""A range of addresses in which other memory can be put side by side, so that compiled code has it as one array."""

import ctypes
import fcntl
import mmap
import os

import numpy as np

from sa_atp.basics.arrays import Octets

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_FIXED, _NORESERVE = 0x10, 0x4000  # MAP_FIXED, MAP_NORESERVE
_FAILED = ctypes.c_void_p(-1).value
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1033, 1, 2, 4, 16


def shared_memory(name: str, size: int) -> int:
    """Makes memory that processes can share. Returns: its descriptor. Raises: OSError."""
    made = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(made, size)
    except OSError:
        os.close(made)
        raise
    return made


def seal(memory: int, *, writable: bool) -> None:
    """Fixes the size of shared memory. Args: writable: False: nobody who has not mapped it yet can ever write it.

    Raises: OSError.
    """
    seals = _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL | (0 if writable else _SEAL_FUTURE_WRITE)
    fcntl.fcntl(memory, _ADD_SEALS, seals)


class Region:
    """Private memory, all zero, parts of which can be replaced. It is reserved only: what nobody touches takes no room.

    It ends with the last array of it.
    """

    def __init__(self, size: int) -> None:
        self._mapped = mmap.mmap(
            -1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        )
        self.bytes: Octets = np.frombuffer(self._mapped, np.uint8)
        """uint8[size]."""

    def put(self, offset: int, size: int, descriptor: int, *, writable: bool = True) -> None:
        """Replaces a part by shared memory. Args: offset, size: whole pages. Raises: OSError."""
        self._map(offset, size, mmap.MAP_SHARED, descriptor, writable)

    def clear(self, offset: int, size: int) -> None:
        """Makes a part private and zero again. Raises: OSError."""
        self._map(offset, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, True)

    def keep_from_children(self) -> None:
        """Has processes that are forked from this one, such as a DataLoader's workers, go without this memory."""
        self._mapped.madvise(mmap.MADV_DONTFORK)

    def _map(self, offset: int, size: int, flags: int, descriptor: int, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        at = self.bytes.ctypes.data + offset
        if _LIBC.mmap(at, size, access, flags | _FIXED | _NORESERVE, descriptor, 0) == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
