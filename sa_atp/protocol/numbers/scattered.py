"""The cut of an operation whose results are scattered: of each fragment only one rank needs the sum. (protocol section 5.9)

The values are as many equal *parts* as there are ranks, and rank r needs part r. A fragment's sequence number says which
part it belongs to, so that a switch knows it by the slot: numbers go to the parts in turn, `stretch` consecutive ones to
each.

    | part 0 | part 1 | ... | part N-1 | for everybody ... | part 0 | ...      one block: places x stretch numbers

The number of places is a power of two, and larger than the number of ranks. Places beyond those of the ranks are for scale
fragments, whose sums everybody needs. Within an operation fragments are counted without gaps, in the order of their
numbers: first all scale fragments, in blocks of their own, then data, stretch by stretch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from sa_atp.basics.arrays import Indices, Seqs, Values
from sa_atp.protocol.numbers.fragments import Piece, Plan
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS

_Numbers = TypeVar("_Numbers", int, Seqs)

LONGEST_STRETCH = 32  # fragments: long enough to be sent and received together


class Cut(NamedTuple):
    """How numbers, and slots, are dealt to parts."""

    places: int
    """Number of places in a block: a power of two, larger than the number of ranks."""
    stretch: int
    """How many consecutive numbers a part has in a block: a power of two."""

    @property
    def block(self) -> int:
        """How many numbers a block has; then the parts follow one another again."""
        return self.places * self.stretch

    def part_of(self, seq: _Numbers) -> _Numbers:
        """The part to which a sequence number belongs. If that is the number of ranks or more, everybody needs the sum."""
        return seq // self.stretch % self.places


LEAST_CUT = Cut(2, 1)


def cut_of(ranks: int, slots: int) -> Cut | None:
    """Returns the cut of a job with so many ranks; None: the job has too few slots for them.

    Args: slots: number of the job's slots, a power of two.
    """
    places = 1 << ranks.bit_length()
    return Cut(places, min(LONGEST_STRETCH, slots // places)) if places <= slots else None


@dataclass(frozen=True)
class ScatteredPlan(Plan):
    """The cut of `ranks` parts of `values` / `ranks` values each. Nothing is summed a second time, so there is one attempt.

    What travels is the values in the order of their fragments, each part filled up with zeros to whole fragments.
    """

    ranks: int = 1
    cut: Cut = LEAST_CUT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.values % self.ranks:
            raise ValueError(f"{self.values} values are not {self.ranks} equal parts")

    @property
    def part_values(self) -> int:
        return self.values // self.ranks

    @cached_property
    def part_fragments(self) -> int:
        return -(-self.part_values // self.lanes)

    @property
    def kept_fragments(self) -> int:
        return self.part_fragments

    @cached_property
    def data_fragments(self) -> int:
        return self.ranks * self.part_fragments

    @cached_property
    def chunks(self) -> int:
        return -(-self.data_fragments // self.chunk_fragments)

    @cached_property
    def span(self) -> int:
        return self.attempt_fragments

    def values_of(self, chunk: int) -> tuple[int, int]:
        first, end = self.fragments_of(chunk)
        return first * self.lanes, end * self.lanes

    # --- numbers ------------------------------------------------------------------------------------------------------

    @property
    def _row(self) -> int:
        """Number of data fragments in a full block."""
        return self.ranks * self.cut.stretch

    @property
    def _scales(self) -> int:
        """Number of scale fragments in a full block."""
        return self.cut.block - self._row

    @cached_property
    def _scale_blocks(self) -> int:
        return -(-self.scale_fragments // self._scales)

    @cached_property
    def numbers(self) -> int:
        return self.cut.block * (self._scale_blocks - (-self.part_fragments // self.cut.stretch))

    def _width(self, block: int) -> int:
        """Number of fragments that each part has in a block of data; the last block may have fewer than the others."""
        return min(self.cut.stretch, self.part_fragments - block * self.cut.stretch)

    def numbers_of(self, locals_: Indices) -> Indices:
        return np.array([self.number_of(local) for local in locals_.tolist()], np.int64)

    def number_of(self, local: int) -> int:
        """The fragment's number, counted from the operation's first one. Blocks of scales come first, then blocks of data;
        in each block the parts follow one another.
        """
        if local < self.scale_fragments:
            block, within = divmod(local, self._scales)
            return block * self.cut.block + self._row + within
        block, within = divmod(local - self.scale_fragments, self._row)
        part, at = divmod(within, self._width(block))
        return (self._scale_blocks + block) * self.cut.block + part * self.cut.stretch + at

    def pieces(self, first: int, count: int) -> Iterator[Piece]:
        stretch, end = self.cut.stretch, min(first + count, self.numbers)
        number = max(first, 0)
        while number < end:
            block, within = divmod(number, self.cut.block)
            local, most, following = self._at(block, within, stretch)
            found = min(most, end - number)
            if found > 0:
                yield Piece(number - first, local, found)
            number = block * self.cut.block + following

    def _at(self, block: int, within: int, stretch: int) -> tuple[int, int, int]:
        """Looks a number up in its block.

        Returns: the position of the fragment that has it; how many fragments have consecutive numbers from there on, 0: no
            fragment has the number; and the place in the block from which on to look further.
        """
        if block < self._scale_blocks:
            if within < self._row:
                return 0, 0, self._row
            local = block * self._scales + within - self._row
            return local, min(self.scale_fragments - local, self.cut.block - within), self.cut.block
        part, at = divmod(within, stretch)
        if part >= self.ranks:
            return 0, 0, self.cut.block
        block -= self._scale_blocks
        width = self._width(block)
        return self.scale_fragments + block * self._row + part * width + at, width - at, (part + 1) * stretch

    def straight(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        offset = self.scale_fragments
        for _, start, stop, _ in self.by_part(first - offset, end - offset):
            yield start + offset, stop + offset, self.number_of(start + offset) - start - offset

    def first_from(self, number: int) -> int:
        if number <= 0:
            return 0
        if number >= self.numbers:
            return self.span
        stretch = self.cut.stretch
        block, within = divmod(number, self.cut.block)
        if block < self._scale_blocks:
            return min(block * self._scales + max(within - self._row, 0), self.scale_fragments)
        block -= self._scale_blocks
        width = self._width(block)
        part, at = divmod(within, stretch)
        first = min(part, self.ranks) * width + (min(at, width) if part < self.ranks else 0)
        return min(self.scale_fragments + block * self._row + first, self.span)

    # --- parts --------------------------------------------------------------------------------------------------------

    def by_part(self, first: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Cuts consecutive data fragments where one part ends and the next one begins.

        Yields: the part; the first of its fragments here, and the end; and which fragment of the part that first one is.
        """
        while first < end:
            block, within = divmod(first, self._row)
            width = self._width(block)
            part, at = divmod(within, width)
            stop = min(end, first + width - at)
            yield part, first, stop, block * self.cut.stretch + at
            first = stop

    def rows_of(self, chunk: int, part: int) -> tuple[int, int]:
        """A part's fragments in a chunk, (first, end) within the part."""
        first, end = self.fragments_of(chunk)
        return self._before(first, part), self._before(end, part)

    def _before(self, fragment: int, part: int) -> int:
        """Counts the fragments of a part that come before a data fragment."""
        block, within = divmod(fragment, self._row)
        width = max(self._width(block), 0)
        return min(block * self.cut.stretch, self.part_fragments) + min(max(within - part * width, 0), width)

    def part_of(self, fragment: int) -> int:
        """The part to which a data fragment belongs."""
        block, within = divmod(fragment, self._row)
        return within // self._width(block)

    def laid_out(self, values: Values) -> Values:
        """Values, part by part, in the order in which they travel: a new array."""
        parts, size = values.reshape(self.ranks, self.part_values), self.cut.stretch * self.lanes
        found = np.empty(self.data_fragments * self.lanes, np.float32)
        at = 0
        for first in range(0, self.part_values, size):
            piece = parts[:, first : first + size]
            width = -(-piece.shape[1] // self.lanes) * self.lanes
            out = found[at : at + self.ranks * width].reshape(self.ranks, width)
            out[:, : piece.shape[1]] = piece
            out[:, piece.shape[1] :] = 0
            at += self.ranks * width
        return found

    def described(self, chunk: int) -> tuple[int, int]:
        """(first, end) of the values between which those of a chunk are."""
        found = [
            (part * self.part_values + first * self.lanes, part * self.part_values + end * self.lanes)
            for part in range(self.ranks)
            for first, end in [self.rows_of(chunk, part)]
            if first < end
        ]
        return found[0][0], min(found[-1][1], self.values)


@lru_cache(maxsize=1024)
def scattered_plan_of(
    values: int, lanes: int, contributions: int = CONTRIBUTION_BITS, *, ranks: int, slots: int
) -> ScatteredPlan:
    """Returns the plan of an operation. Args: slots: number of the job's slots. Raises: ValueError: they are too few."""
    cut = cut_of(ranks, slots)
    if cut is None:
        raise ValueError(f"{slots} slots are too few for {ranks} ranks")
    return ScatteredPlan(values, lanes, contributions, ranks=ranks, cut=cut)
