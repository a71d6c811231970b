"""Sums that the parameter server finishes, and results that it keeps for late workers. (protocol section 7.2, 7.3)

One row for each fragment, in pages that are created when first needed and freed when every worker has passed them.
Contributions are added by the rules of a slot: disjoint ones are added, overlapping ones are dropped.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import Bitmaps, Exponents, Headers, Indices, Lanes, Mask, Octets, Seqs
from sa_atp.protocol.job.horizon import HORIZON, horizon
from sa_atp.protocol.job.serial import SEQ_MASK, serial_distance
from sa_atp.protocol.numbers.quantise import saturating_add
from sa_atp.protocol.packets.header import LANE, words_of
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, Flag

PAGE = 256  # fragments
FREE_VALUES = 1 << 22  # values of unused pages that are kept for reuse
APART = 16 * HORIZON  # fragments; no two ranks of an epoch are as far apart

# Outcome for each offered fragment
ADDED, COMPLETED, DUPLICATE, OVERLAP, KNOWN, PASSED, BEYOND, MISMATCH = range(8)

COLLISION, PARTIAL = int(Flag.COLLISION), int(Flag.PARTIAL)

Streams = NDArray[np.uint16]
"""uint16[fragments]: exponent and tag, which all contributions to a sum must share."""


@dataclass(slots=True)
class _Page:
    """PAGE fragments, with one item of each array for each."""

    lanes: Lanes  # in network byte order
    bits: Bitmaps
    stream: Streams
    complete: Mask
    collided: Mask  # a contribution came here because another fragment had the slot
    given_up: Mask  # the slot has handed over its part; later contributions are no sign of a collision

    @classmethod
    def of(cls, lanes: int, words: int) -> "_Page":
        return cls(
            np.empty((PAGE, lanes), LANE),
            np.empty((PAGE, words), np.uint64),
            np.empty(PAGE, np.uint16),
            np.empty(PAGE, bool),
            np.empty(PAGE, bool),
            np.empty(PAGE, bool),
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """Complete sums: sequence numbers, exponents, tags, whether they collided, and lanes in network byte order."""

    seqs: Seqs
    exponents: Exponents
    tags: Octets
    collided: Mask
    lanes: Lanes


class SumStore:
    def __init__(self, lanes: int, fan_in: int, first_seq: int, contribution_bits: int = CONTRIBUTION_BITS) -> None:
        """Args:
        fan_in: bitmap of a complete sum.
        first_seq: the first fragment of the job.
        contribution_bits: bits in the bitmaps.
        """
        self.lanes = lanes
        self.fan_in = words_of(fan_in, contribution_bits)
        self._origin = first_seq  # pages are numbered from here
        self._oldest = 0  # distance from the origin; all workers have passed everything before it
        self._pages: dict[int, _Page] = {}
        self._free: list[_Page] = []  # for reuse: the first access to fresh memory costs more than a copy

    def reaches(self, seq: int) -> bool:
        """Whether a rank may be at this number, if its numbers began where ours did."""
        return abs(serial_distance(self.oldest_seq, seq)) < APART

    # --- offering -----------------------------------------------------------------------------------------------------

    def add(self, head: Headers, bits: Bitmaps, lanes: Lanes) -> Octets:
        """Offers contributions. Returns: the outcome of each."""
        return self._offer(head, bits, lanes, merge=True)

    def keep(self, head: Headers, lanes: Lanes) -> Octets:
        """Stores complete sums that a switch finished. Returns: COMPLETED for new ones, KNOWN for repetitions."""
        return self._offer(head, np.broadcast_to(self.fan_in, (len(head), len(self.fan_in))), lanes, merge=False)

    def _offer(self, head: Headers, bits: Bitmaps, lanes: Lanes, *, merge: bool) -> Octets:
        outcome = np.zeros(len(head), np.uint8)
        place = self._places(head["seq"])
        passed = place < self._oldest
        beyond = place >= self._oldest + horizon(self.lanes)
        outcome[passed] = PASSED
        outcome[beyond] = BEYOND
        stream = (head["exponent"].view(np.uint8).astype(np.uint16) << 8) | head["tag"]
        usable = np.flatnonzero(~passed & ~beyond)
        for page_number in np.unique(place[usable] // PAGE):
            page = self._page(int(page_number))
            rows = usable[place[usable] // PAGE == page_number]
            # several packets of one fragment are handled one after the other, different fragments together
            while len(rows):
                _, first = np.unique(place[rows], return_index=True)
                turn = rows[first]
                at = place[turn] % PAGE
                take = self._merge if merge else self._replace
                outcome[turn] = take(page, at, bits[turn].astype(np.uint64), stream[turn], lanes[turn])
                page.given_up[at] |= (head["flags"][turn] & PARTIAL) != 0
                page.collided[at] |= ((head["flags"][turn] & COLLISION) != 0) & ~page.given_up[at]
                rows = np.delete(rows, first)
        return outcome

    def _merge(self, page: _Page, at: Indices, bits: Bitmaps, stream: Streams, lanes: Lanes) -> Octets:
        held = page.bits[at]
        empty = ~held.any(axis=1)
        overlap = held & bits
        outcome = np.full(len(at), ADDED, np.uint8)
        outcome[overlap.any(axis=1)] = OVERLAP
        outcome[(overlap == bits).all(axis=1) & ~empty] = DUPLICATE
        outcome[~empty & (page.stream[at] != stream)] = MISMATCH
        # what has all contributions is the sum, whatever of it was here (section 5.10)
        whole = (bits == self.fan_in).all(axis=1)
        outcome[whole & (outcome == OVERLAP)] = ADDED
        outcome[page.complete[at]] = KNOWN
        new = outcome == ADDED
        fresh, more = new & (empty | whole), new & ~(empty | whole)
        page.lanes[at[fresh]] = lanes[fresh]
        page.stream[at[fresh]] = stream[fresh]
        page.lanes[at[more]] = saturating_add(page.lanes[at[more]], lanes[more])
        page.bits[at[new]] |= bits[new]
        done = new & (page.bits[at] == self.fan_in).all(axis=1)
        page.complete[at[done]] = True
        outcome[done] = COMPLETED
        return outcome

    def _replace(self, page: _Page, at: Indices, bits: Bitmaps, stream: Streams, lanes: Lanes) -> Octets:
        outcome = np.where(page.complete[at], KNOWN, COMPLETED).astype(np.uint8)
        new = outcome == COMPLETED
        page.lanes[at[new]] = lanes[new]
        page.stream[at[new]] = stream[new]
        page.bits[at[new]] = bits[new]
        page.complete[at[new]] = True
        return outcome

    def keep_stream(self, seq: int, exponent: int, tag: int, lanes: Lanes) -> bool:
        """Keeps, as `keep` does, complete sums of consecutive fragments, all of them new and none collided.

        Returns: False: they are not; nothing has changed.
        """
        first = self._place(seq)
        end = first + len(lanes)
        if first < self._oldest or end > self._oldest + horizon(self.lanes):
            return False
        pieces = [
            (n, max(first, n * PAGE), min(end, (n + 1) * PAGE)) for n in range(first // PAGE, (end - 1) // PAGE + 1)
        ]
        for number, start, stop in pieces:
            page = self._pages.get(number)
            if page is not None and page.complete[start - number * PAGE : stop - number * PAGE].any():
                return False
        for number, start, stop in pieces:
            page, rows = self._page(number), slice(start - number * PAGE, stop - number * PAGE)
            page.lanes[rows] = lanes[start - first : stop - first]
            page.stream[rows] = (exponent & 0xFF) << 8 | tag
            page.bits[rows] = self.fan_in
            page.complete[rows] = True
        return True

    # --- looking ------------------------------------------------------------------------------------------------------

    def bits(self, seqs: Seqs) -> Bitmaps:
        """The contributions in each fragment's sum so far."""
        place = self._places(seqs)
        found = np.zeros((len(place), len(self.fan_in)), np.uint64)
        for page_number in np.unique(place // PAGE):
            page = self._pages.get(int(page_number))
            if page is not None:
                rows = np.flatnonzero((place // PAGE == page_number) & (place >= self._oldest))
                found[rows] = page.bits[place[rows] % PAGE]
        return found

    def complete(self, seqs: Seqs) -> Stored:
        """The complete sums among these sequence numbers."""
        place = self._places(seqs)
        found_seqs, found_streams, found_collided, found_lanes = [], [], [], []
        for page_number in np.unique(place // PAGE):
            page = self._pages.get(int(page_number))
            if page is None:
                continue
            rows = np.flatnonzero((place // PAGE == page_number) & (place >= self._oldest))
            rows = rows[page.complete[place[rows] % PAGE]]
            found_seqs.append(np.asarray(seqs)[rows].astype(np.int64))
            found_streams.append(page.stream[place[rows] % PAGE])
            found_collided.append(page.collided[place[rows] % PAGE])
            found_lanes.append(page.lanes[place[rows] % PAGE])
        if not found_seqs:
            return Stored(
                np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.uint8), np.zeros(0, bool),
                np.zeros((0, self.lanes), LANE),
            )  # fmt: skip
        streams = np.concatenate(found_streams)
        return Stored(
            np.concatenate(found_seqs),
            (streams >> 8).astype(np.uint8).view(np.int8),
            (streams & 0xFF).astype(np.uint8),
            np.concatenate(found_collided),
            np.concatenate(found_lanes),
        )

    # --- space --------------------------------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        """Forgets all fragments before a sequence number that every worker has passed."""
        place = self._place(seq)
        if place <= self._oldest or place - self._oldest > SEQ_MASK // 2:
            return
        self._oldest = place
        for number in [n for n in self._pages if (n + 1) * PAGE <= place]:
            page = self._pages.pop(number)
            if len(self._free) < max(2, FREE_VALUES // (PAGE * self.lanes)):
                self._free.append(page)

    def clear(self) -> None:
        """Forgets all sums, but not the oldest sequence number."""
        self._pages.clear()
        self._free.clear()

    @property
    def oldest_seq(self) -> int:
        return (self._origin + self._oldest) & SEQ_MASK

    @property
    def pages(self) -> int:
        return len(self._pages)

    def _page(self, number: int) -> _Page:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = self._free.pop() if self._free else _Page.of(self.lanes, len(self.fan_in))
            for array in (page.bits, page.stream, page.complete, page.collided, page.given_up):
                array.fill(0)
        return page

    def _place(self, seq: int) -> int:
        """Distance from the origin; of all that a 32-bit number can mean, the one nearest to the oldest fragment."""
        return self._oldest + serial_distance(self.oldest_seq, seq)

    def _places(self, seqs: Seqs) -> Indices:
        ahead = (np.asarray(seqs).astype(np.int64) - self._origin - self._oldest) & SEQ_MASK
        return self._oldest + np.where(ahead <= SEQ_MASK // 2, ahead, ahead - SEQ_MASK - 1)
