"""Results that come before their operation is begun, because others did this rank's part. (protocol section 5.7)"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import groupby

import numpy as np

from sa_atp.basics.arrays import ByteRows, Octets

EARLY_BYTES = 4 << 20  # of them are kept
ROW_BYTES = 200  # what a result takes beside its own bytes


class EarlyResults:
    def __init__(self) -> None:
        self._rows: dict[int, Octets] = {}
        self._places: list[int] = []  # of these, as a heap
        self._room = EARLY_BYTES

    def keep(self, place: int, results: ByteRows) -> int:
        """Keeps results of consecutive places, as far as there is room, each once. Args: place: of the first; see
        Operations. Returns: how many.
        """
        kept = 0
        for at, row in enumerate(results, place):
            if at not in self._rows and row.nbytes + ROW_BYTES <= self._room:
                self._rows[at] = row.copy()  # the buffer is used again
                heappush(self._places, at)
                self._room -= row.nbytes + ROW_BYTES
                kept += 1
        return kept

    def take(self, before: int) -> Iterator[ByteRows]:
        """Gives back those before a place, in order; results of one length together."""
        found = []
        while self._places and self._places[0] < before:
            found.append(self._rows.pop(heappop(self._places)))
            self._room += found[-1].nbytes + ROW_BYTES
        for _, alike in groupby(found, key=len):
            yield np.stack(list(alike))
