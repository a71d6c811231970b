"""What one sender adds to an operation: the values of some contributions, and how far they have got.

A worker has one for its own contributions of an operation and, when it helps, one for each lot it sends on behalf of
others. The values stay here until the operation is over, because any fragment may have to be sent again.
"""

from bisect import bisect
from collections import deque
from collections.abc import Sequence

import numpy as np

from sa_atp.spec import CONTRIBUTION_BITS
from sa_atp.tensor.fragments import Plan
from sa_atp.tensor.quantise import quantise
from sa_atp.tensor.scaling import magnitude_code
from sa_atp.wire.header import LANE

NEVER = 0  # in sent_us: this fragment has not been sent


class Contribution:
    """Fragments are named by their place in the operation (`local`), from 0 to plan.span."""

    def __init__(
        self, plan: Plan, bits: int, parts: Sequence[np.ndarray], contributions: int, *, on_behalf: bool
    ) -> None:
        """Args:
        bits: the contributions that these values are, as a bitmap.
        parts: float32[values] each, flat and contiguous; one for each contribution, or one for all of them. They must
            not change until the operation is over.
        contributions: how many the complete sum has.
        """
        self.plan = plan
        self.bits = bits
        self.parts = tuple(parts)
        self.contributions = contributions
        self.on_behalf = on_behalf
        self.sent_us = np.zeros(plan.span, np.int64)
        self.tries = np.zeros(plan.span, np.uint8)
        self.in_flight = 0  # sent, neither answered nor given up
        self.given_up = np.zeros(plan.span, bool)  # sent, thought lost, and waiting in `again`
        self.again: deque[int] = deque()
        self.poisoned_chunks: set[tuple[int, int]] = set()  # (attempt, chunk)
        self._fresh: list[tuple[int, int]] = []  # ranges that may be sent for the first time, in order, disjoint
        self._exponents: dict[int, tuple[int, int]] = {}  # chunk: (attempt, exponent) of what may be sent
        self._rounded: dict[int, int] = {}  # chunk: attempt of what is in _lanes
        self._lanes = np.zeros((plan.data_fragments, plan.lanes), LANE)
        self._codes: dict[int, int] = {}

    # --- what may be sent -------------------------------------------------------------------------------------------

    def may_send_scale(self, attempt: int, fragment: int) -> None:
        first = self.plan.scale_start(attempt) + fragment
        self._insert(first, first + 1)

    def may_send_chunk(self, attempt: int, chunk: int, exponent: int) -> None:
        """Lets a chunk go; it is rounded when its first fragment is taken."""
        self._exponents[chunk] = (attempt, exponent)
        base = self.plan.data_start(attempt)
        first, last = self.plan.fragments_of(chunk)
        self._insert(base + first, base + last)

    def forget_chunk(self, attempt: int, chunk: int) -> None:
        """The chunk's sum is known, or is tried anew: nothing of this attempt needs to be sent any more."""
        base = self.plan.data_start(attempt)
        first, last = (base + f for f in self.plan.fragments_of(chunk))
        self._fresh = [
            piece
            for begin, end in self._fresh
            for piece in ((begin, min(end, first)), (max(begin, last), end))
            if piece[0] < piece[1]
        ]

    def _insert(self, first: int, end: int) -> None:
        """Adds a range, in order: a later range may have to wait for the sums of an earlier one."""
        at = bisect(self._fresh, (first, end))
        if at and self._fresh[at - 1][1] == first:
            self._fresh[at - 1] = (self._fresh[at - 1][0], end)
        else:
            self._fresh.insert(at, (first, end))

    def take(self, count: int, below: int, pending: np.ndarray) -> np.ndarray:
        """Takes up to `count` fragments to send now, those thought lost first; new ones only below `below`.

        Args: pending: bool[span], fragments whose sum is not known yet: others need not be sent.
        Returns: int64[n].
        """
        chosen: list[np.ndarray] = []
        lost: list[int] = []
        while self.again and len(lost) < count:
            local = self.again.popleft()
            if pending[local] and self.given_up[local]:
                self.given_up[local] = False
                lost.append(local)
        if lost:
            chosen.append(np.array(lost, np.int64))
            count -= len(lost)
        while self._fresh and count > 0:
            first, end = self._fresh[0]
            stop = min(end, first + count, below)
            if stop <= first:
                break
            found = first + np.flatnonzero(pending[first:stop])
            chosen.append(found)
            count -= len(found)
            if stop == end:
                self._fresh.pop(0)
            else:
                self._fresh[0] = (stop, end)
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)

    @property
    def has_work(self) -> bool:
        return bool(self.again or self._fresh)

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def on_sent(self, locals_: np.ndarray, now_us: int) -> None:
        self.tries[locals_] += self.tries[locals_] < 255
        self.sent_us[locals_] = now_us
        self.in_flight += len(locals_)

    def on_done(self, locals_: np.ndarray) -> None:
        """The sums of these fragments, none counted before, are known."""
        sent = self.sent_us[locals_] != NEVER
        self.in_flight -= int((sent & ~self.given_up[locals_]).sum())
        self.given_up[locals_] = False

    def give_up(self, locals_: np.ndarray) -> int:
        """Counts fragments as lost, to be sent again; returns how many were not given up before."""
        new = locals_[~self.given_up[locals_] & (self.sent_us[locals_] != NEVER)]
        self.given_up[new] = True
        self.in_flight -= len(new)
        self.again.extend(new.tolist())
        return len(new)

    # --- contents -----------------------------------------------------------------------------------------------------

    def write_lanes(self, locals_: np.ndarray, out: np.ndarray) -> None:
        """Writes the lanes of fragments.

        Args: out: big-endian int32[len(locals_), lanes].
        """
        within = locals_ % self.plan.attempt_fragments - self.plan.scale_fragments
        is_data = within >= 0
        for chunk in np.unique(within[is_data] // self.plan.chunk_fragments):
            self._round(int(chunk))
        if is_data.all():
            np.take(self._lanes, within, axis=0, out=out)
            return
        out[is_data] = self._lanes[within[is_data]]
        for i in np.flatnonzero(~is_data):
            out[i] = self._scale_lanes(int(within[i]) + self.plan.scale_fragments)

    def _round(self, chunk: int) -> None:
        attempt, exponent = self._exponents[chunk]
        if self._rounded.get(chunk) == attempt:
            return
        self._rounded[chunk] = attempt
        start, end = self.plan.values_of(chunk)
        first, last = self.plan.fragments_of(chunk)
        rounded = np.empty((last - first) * self.plan.lanes, np.int32)
        if quantise([part[start:end] for part in self.parts], exponent, self.contributions, rounded):
            self.poisoned_chunks.add((attempt, chunk))
        self._lanes[first:last] = rounded.reshape(last - first, self.plan.lanes)

    def is_poisoned(self, locals_: np.ndarray) -> np.ndarray:
        """bool for each fragment: its chunk has a poisoned lane in this attempt."""
        if not self.poisoned_chunks:
            return np.zeros(len(locals_), bool)
        attempt = locals_ // self.plan.attempt_fragments
        within = locals_ - attempt * self.plan.attempt_fragments - self.plan.scale_fragments
        chunk = within // self.plan.chunk_fragments
        return np.array(
            [
                w >= 0 and (int(a), int(c)) in self.poisoned_chunks
                for a, c, w in zip(attempt, chunk, within, strict=True)
            ]
        )

    def _scale_lanes(self, fragment: int) -> np.ndarray:
        """Lane c of a group holds the magnitudes of contribution c; everyone else writes zero there."""
        lanes = np.zeros(self.plan.lanes, np.int32)
        mine = [c for c in range(CONTRIBUTION_BITS) if self.bits >> c & 1]
        for chunk in self.plan.chunks_of_scale(fragment):
            _, group, shift = self.plan.scale_place(chunk)
            if chunk not in self._codes:
                start, end = self.plan.values_of(chunk)
                self._codes[chunk] = max(magnitude_code(part[start:end]) for part in self.parts)
            for c in mine:
                lanes[group + c] |= self._codes[chunk] << shift
        return lanes
