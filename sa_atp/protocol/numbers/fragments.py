"""The cut of an operation's values into chunks and fragments, and their sequence numbers. (protocol section 5.1)

An operation owns a contiguous range of sequence numbers, the same on every rank, laid out as

    | scale 0 | data 0 | scale 1 | data 1 |

`data` has one fragment for each packet's worth of values; `scale` has the fragments in which exponents are gathered.
The second pair serves chunks that are summed again. Unused numbers are skipped at no cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sa_atp.basics.arrays import Indices, Numbers, Values
from sa_atp.protocol.numbers.scaling import CODE_BITS, CODES_PER_LANE
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS

CHUNK_VALUES = 16384  # values that share an exponent


class Piece(NamedTuple):
    """Consecutive sequence numbers that belong to consecutive fragments."""

    skip: int  # numbers that were asked about and come before these
    first: int  # position of the first fragment in the operation
    length: int


class Run(NamedTuple):
    """Consecutive data fragments of one chunk in one attempt, or one scale fragment."""

    first: int  # position in the operation
    end: int
    attempt: int
    chunk: int  # -1 for a scale fragment
    fragment: int  # position of the first among the data fragments, or among the scale fragments

    def __len__(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class Plan:
    """The cut of `values` values into packets of `lanes` lanes, with bitmaps of `contributions` bits."""

    values: int
    lanes: int
    contributions: int = CONTRIBUTION_BITS

    def __post_init__(self) -> None:
        if self.values < 1:
            raise ValueError("an operation has at least one value")
        if not self.chunks_per_scale_fragment:
            raise ValueError(f"{self.lanes} lanes: too few for the magnitudes of {self.contributions} contributions")

    @cached_property
    def chunks(self) -> int:
        return -(-self.values // CHUNK_VALUES)

    @cached_property
    def chunk_fragments(self) -> int:
        """Fragments of a full chunk."""
        return CHUNK_VALUES // self.lanes

    @cached_property
    def data_fragments(self) -> int:
        return -(-self.values // self.lanes)

    @cached_property
    def chunks_per_scale_fragment(self) -> int:
        if self.lanes >= self.contributions:
            return self.lanes // self.contributions * CODES_PER_LANE
        return CODES_PER_LANE // -(-self.contributions // self.lanes)

    @cached_property
    def scale_fragments(self) -> int:
        return -(-self.chunks // self.chunks_per_scale_fragment)

    @cached_property
    def attempt_fragments(self) -> int:
        return self.scale_fragments + self.data_fragments

    @cached_property
    def span(self) -> int:
        """Number of fragments that the operation may have, in both attempts."""
        return 2 * self.attempt_fragments

    @property
    def kept_fragments(self) -> int:
        """Number of data fragments whose sums a rank keeps: all."""
        return self.data_fragments

    @property
    def numbers(self) -> int:
        """Sequence numbers that the operation owns: here one for each fragment, in their order."""
        return self.span

    def numbers_of(self, locals_: Indices) -> Indices:
        """The numbers of fragments, counted from the operation's first one. They rise with the fragments' positions."""
        return locals_

    def number_of(self, local: int) -> int:
        """The number of one fragment, see `numbers_of`."""
        return local

    def pieces(self, first: int, count: int) -> Iterator[Piece]:
        """The fragments that have these consecutive numbers, in order. Numbers that no fragment has are left out."""
        yield Piece(0, first, count)

    def straight(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Cuts consecutive data fragments where their numbers have gaps.

        Yields: positions of the first fragment and of the end, and the difference between numbers and positions there.
        """
        yield first, end, 0

    def local_of(self, number: int) -> int | None:
        """The position of the fragment that has a number; None: no fragment has it."""
        return next((piece.first for piece in self.pieces(number, 1)), None)

    def first_from(self, number: int) -> int:
        """The position of the first fragment that has this number or a higher one."""
        return number

    def laid_out(self, values: Values) -> Values:
        """Values in the order in which they travel: as they are."""
        return values

    def described(self, chunk: int) -> tuple[int, int]:
        """(first, end) of the program's values between which those of a chunk are."""
        return self.values_of(chunk)

    def scale_start(self, attempt: int) -> int:
        return attempt * self.attempt_fragments

    def data_start(self, attempt: int) -> int:
        return attempt * self.attempt_fragments + self.scale_fragments

    def fragments_of(self, chunk: int) -> tuple[int, int]:
        """(first, end) among the data fragments."""
        first = chunk * self.chunk_fragments
        return first, min(first + self.chunk_fragments, self.data_fragments)

    def values_of(self, chunk: int) -> tuple[int, int]:
        """(first, end) among the values."""
        first = chunk * CHUNK_VALUES
        return first, min(first + CHUNK_VALUES, self.values)

    def scale_fragment_of(self, chunk: int) -> int:
        """The scale fragment in which the chunk's exponents are gathered."""
        return chunk // self.chunks_per_scale_fragment

    def scale_place(self, chunk: int) -> tuple[int, Indices, Numbers]:
        """(scale fragment, lanes, shifts): contribution c's code is in lane lanes[c], shifted left by shifts[c] bits.

        The codes of a chunk are in neighbouring lanes, those of the next chunks in higher bits of the same lanes. With
        fewer lanes than contributions, the codes that find no lane are in higher bits of the first lanes.
        """
        fragment, within = divmod(chunk, self.chunks_per_scale_fragment)
        return fragment, *_code_places(within, self.lanes, self.contributions)

    def chunks_of_scale(self, fragment: int) -> range:
        """The chunks whose exponents are gathered in a scale fragment."""
        first = fragment * self.chunks_per_scale_fragment
        return range(first, min(first + self.chunks_per_scale_fragment, self.chunks))

    def runs(self, first: int, end: int) -> Iterator[Run]:
        """Cuts consecutive fragments, first to end - 1, into runs."""
        while first < end:
            attempt, within = divmod(first, self.attempt_fragments)
            if within < self.scale_fragments:
                yield Run(first, first + 1, attempt, -1, within)
                first += 1
                continue
            fragment = within - self.scale_fragments
            chunk = fragment // self.chunk_fragments
            stop = min(end, first + self.fragments_of(chunk)[1] - fragment)
            yield Run(first, stop, attempt, chunk, fragment)
            first = stop


@lru_cache
def _code_places(within: int, lanes: int, contributions: int) -> tuple[Indices, Numbers]:
    """Lanes and shifts of a chunk's codes, see `Plan.scale_place`.

    Args: within: the chunk's position in its fragment.
    """
    group, position = divmod(within, CODES_PER_LANE)
    row, lane = np.divmod(np.arange(contributions), min(lanes, contributions))
    places = group * contributions + lane, (position + row) * CODE_BITS
    for array in places:
        array.flags.writeable = False
    return places


@lru_cache(maxsize=1024)
def plan_of(values: int, lanes: int, contributions: int = CONTRIBUTION_BITS) -> Plan:
    """The plan of an operation; operations of one size share it, with its cached properties."""
    return Plan(values, lanes, contributions)
