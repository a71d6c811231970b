"""Large arrays that are used again.

A fresh array costs a page fault every 4 KiB when it is first written, which on a virtual machine is more than all the
arithmetic done on it. Operations of one size follow one another, so their arrays are kept.
"""

import numpy as np

from sa_atp.basics.arrays import Integers

KEPT = 4  # of each length,
# ... and two where they are longer: memory that nobody uses shall not be much. Two often come back at once, and with one
# kept a program that has a sum at a time would have a fresh array for every second one.
KEPT_OF_LONG, KEPT_VALUES = 2, 1 << 23


class Buffers:
    """A pool of int32 arrays."""

    def __init__(self) -> None:
        self._free: dict[int, list[Integers]] = {}

    def take(self, length: int) -> Integers:
        """An int32[length] with anything in it."""
        free = self._free.get(length)
        return free.pop() if free else np.empty(length, np.int32)

    def give(self, array: Integers) -> None:
        """Gives an array back; nobody may use it after that."""
        if len(array) not in self._free and len(self._free) >= 2 * KEPT:
            self._free.pop(next(iter(self._free)))  # sizes that are no longer used
        free = self._free.setdefault(len(array), [])
        if len(free) < (KEPT if len(array) <= KEPT_VALUES else KEPT_OF_LONG):
            free.append(array)
