"""A contribution group's values as they travel: rounded to lanes, with poison, and as magnitudes. (protocol section 6)"""

from collections.abc import Sequence

import numpy as np

from sa_atp.basics.arrays import Addends, Lanes
from sa_atp.protocol.numbers.fragments import Plan, Run
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.numbers.scaling import POISON, magnitude_code
from sa_atp.protocol.packets.header import LANE


class RoundedValues:
    """Rounds a chunk when its first fragment is written, and keeps it while its fragments may be needed."""

    def __init__(self, plan: Plan, bits: int, parts: Sequence[Addends], contributions: int) -> None:
        """Args: see ContributionGroup."""
        self._plan, self._parts, self._contributions = plan, parts, contributions
        self._owners = [c for c in range(bits.bit_length()) if bits >> c & 1]  # contributions that the parts are
        self.poisoned_chunks: set[tuple[int, int]] = set()  # (attempt, chunk)
        self._rounded: dict[int, tuple[int, Lanes]] = {}  # chunk: attempt, and its lanes while they may be needed
        self._codes: dict[tuple[int, int], list[int]] = {}  # (attempt, chunk): the magnitude of each part

    def __bool__(self) -> bool:
        """Whether rounded chunks are kept."""
        return bool(self._rounded)

    def forget(self, chunk: int) -> None:
        """Frees a chunk's lanes, as its sum is known or its exponent changes."""
        self._rounded.pop(chunk, None)

    def forget_all(self) -> None:
        """Frees the lanes of all chunks: also of those that were sent again after the sum was known."""
        self._rounded.clear()

    def is_poisoned(self, run: Run) -> bool:
        """True if a lane of the run's chunk is poisoned in this attempt."""
        return bool(self.poisoned_chunks) and (run.attempt, run.chunk) in self.poisoned_chunks

    def lanes_of(self, chunk: int, attempt: int, exponent: int) -> Lanes:
        """Returns a chunk as it travels, int32[fragments, lanes], big-endian; rounds it if it is not known."""
        known = self._rounded.get(chunk)
        if known is not None and known[0] == attempt:
            return known[1]
        start, end = self._plan.values_of(chunk)
        first, last = self._plan.fragments_of(chunk)
        rounded = np.empty((last - first) * self._plan.lanes, np.int32)
        whole = rounded.reshape(last - first, self._plan.lanes)
        parts = [part[start:end] for part in self._parts]
        if quantise(parts, exponent, self._contributions, rounded):
            self.poisoned_chunks.add((attempt, chunk))
            self._sign_poison(whole, parts, self._owners, exponent)
        lanes = whole.astype(LANE)
        self._rounded[chunk] = (attempt, lanes)
        return lanes

    def lanes_without(self, chunk: int, exponent: int, fragment: int, excluded: int) -> Lanes:
        """Rounds one fragment of a chunk, without some of the contributions.

        Args: fragment: its place in the chunk; excluded: contributions, as a bitmap.
        Returns: int32[lanes], big-endian.
        """
        start, end = self._plan.values_of(chunk)
        start = min(start + fragment * self._plan.lanes, end)
        span = slice(start, min(start + self._plan.lanes, end))
        rest = {c: part[span] for c, part in zip(self._owners, self._parts, strict=True) if not excluded >> c & 1}
        parts = list(rest.values())
        rounded = np.empty(self._plan.lanes, np.int32)
        if quantise(parts, exponent, self._contributions, rounded):
            self._sign_poison(rounded.reshape(1, -1), parts, list(rest), exponent)
        return rounded.astype(LANE)

    def _sign_poison(self, lanes: Lanes, parts: Sequence[Addends], owners: Sequence[int], exponent: int) -> None:
        """Says whose values it is that do not fit: contribution c's poison goes to lane c of a fragment. (section 6.3)

        Args: lanes: quantised; parts: what they were made of; owners: the contributions that these are.
        """
        is_poison = lanes == POISON
        lanes[is_poison] = 0
        alone = np.empty(lanes.size, np.int32)
        for n, part in enumerate(parts):
            # all fragments of a part at once: where a tensor has grown every one of them is poisoned
            if quantise([part], exponent, self._contributions, alone):
                rows = np.flatnonzero((is_poison & (alone.reshape(lanes.shape) == POISON)).any(axis=1))
                whose = owners if len(parts) == 1 else owners[n : n + 1]
                lanes[np.ix_(rows, np.array(whose) % self._plan.lanes)] = POISON

    def scale_lanes(self, attempt: int, fragment: int, excluded: int) -> Lanes:
        """Returns a scale fragment, int32[lanes]: the magnitudes of its chunks, each contribution's in its own place, where
        everyone else writes zero.
        """
        lanes = np.zeros(self._plan.lanes, np.int32)
        for chunk in self._plan.chunks_of_scale(fragment):
            _, at, shifts = self._plan.scale_place(chunk)
            codes = self._codes.get((attempt, chunk))
            if codes is None:
                start, end = self._plan.values_of(chunk)
                codes = self._codes[attempt, chunk] = [magnitude_code(part[start:end]) for part in self._parts]
            for place, c in enumerate(self._owners):
                if not excluded >> c & 1:
                    lanes[at[c]] |= codes[place if len(codes) > 1 else 0] << int(shifts[c])
        return lanes
