"""Arrays that end at a guard page: an access one byte too far ends the process."""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
PROT_NONE = 0
PATTERN = 0xA5
BEFORE = 256  # bytes in front that must stay as they are


class Guarded:
    """An array of zeros before a guard page."""

    def __init__(self, shape: int | tuple[int, ...], kind: Any) -> None:
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        page = mmap.PAGESIZE
        inside = -(-(size + BEFORE) // page) * page
        self._map = mmap.mmap(-1, inside + page)
        whole = np.frombuffer(self._map, np.uint8)
        if _LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + inside), page, PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        whole[:inside] = PATTERN
        self._before = whole[: inside - size]
        self.array: NDArray[Any] = whole[inside - size : inside].view(kind).reshape(shape)
        self.array[...] = 0

    def check(self) -> None:
        assert (self._before == PATTERN).all()
