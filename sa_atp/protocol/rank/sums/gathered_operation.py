"""An all-gather: a sum to whose every fragment one rank contributes, and all others zeros. (protocol section 5.10)

The parts of all ranks follow one another, each filled up with zeros to whole fragments. To everybody who carries them they
are whole numbers of 32 bits. Nothing is added to them, so none is too large, and their bits stay what they are.

Its first fragment is an ordinary sum, of zeros, to which each rank contributes when its part is there. Nobody sends values
before that sum is complete: a rank keeps few of the results that come before it has begun the operation.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import Indices, Lanes
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.numbers.fragments import Plan, Run, plan_of
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import NO_FRAGMENTS, Operation, WriteValues

START = 0  # the fragment to whose sum each rank contributes when it begins
LOOK_FRAGMENTS = 4096  # from the oldest pending one on, among which late ones are looked for


def gather_plan_of(words: int, member: Membership) -> Plan:
    """The plan of an all-gather. Args: words: of each rank's part."""
    padded = -(-words // member.lanes) * member.lanes
    return plan_of(member.world_size * padded, member.lanes, member.contribution_bits)


class GatheredOperation(Operation):
    sum_limit = 1 << 32

    def __init__(self, *, part: int, parts: int, **settings: Any) -> None:
        """Args: part: the rank's own one, of `parts`; settings: see Operation."""
        super().__init__(**settings)
        self._part, self._parts = part, parts
        self._part_fragments = self.plan.data_fragments // parts
        self._want(START, START + 1)
        self._fronts: dict[int, int] = {}  # of each part: behind the last fragment that was known at that time
        self._looked_us = 0

    # --- stages -------------------------------------------------------------------------------------------------------

    def add(self, group: ContributionGroup) -> None:
        self.groups.append(group)
        if self.pending[START]:
            group.allow_scale(0, START)
        else:
            group.allow_all()

    def _start(self) -> None:
        """Lets the own part go: everybody has begun the operation."""
        if self.pending[START]:
            self._settle(START, START + 1)
            for group in self.groups:
                group.allow_all()

    def _on_scale(self, run: Run, lanes: Lanes) -> tuple[int, int]:
        waits = bool(self.pending[START]) and (run.attempt, run.fragment) == (0, START)
        found = super()._on_scale(run, lanes)
        if waits:
            for group in self.groups:
                group.allow_all()
        return found

    def _on_data(self, run: Run, exponent: int, lanes: Lanes) -> tuple[int, int]:
        self._start()
        return super()._on_data(run, exponent, lanes)

    def after_taken(self, last: int, found: Any, done: Any) -> tuple[int, int]:
        self._start()
        return super().after_taken(last, found, done)

    # --- what is missing ----------------------------------------------------------------------------------------------

    def missed(self, most: int, *, by_order: bool) -> Indices:
        if not by_order:
            return super().missed(most, by_order=by_order)
        return self._behind(self._known_to(most), most)

    def gaps(self, now_us: int, reordering_us: int) -> Indices:
        """Finds pending fragments of other ranks, behind ones of the same rank that were there a while ago."""
        if now_us - self._looked_us < reordering_us or self.pending[START]:
            return NO_FRAGMENTS
        self._looked_us, before = now_us, self._fronts
        self._fronts = self._known_to(LOOK_FRAGMENTS)
        before.pop(self._part, None)
        return self._behind(before, LOOK_FRAGMENTS)

    def _known_to(self, most: int) -> dict[int, int]:
        """Where the known fragments of each part end, among so many from the oldest pending one on."""
        fronts: dict[int, int] = {}
        for part, first, end in self._pieces(most):
            known = np.flatnonzero(~self.pending[first:end])
            if len(known):
                fronts[part] = first + int(known[-1]) + 1
        return fronts

    def _behind(self, fronts: dict[int, int], most: int) -> Indices:
        found = [
            first + np.flatnonzero(self.pending[first : min(end, fronts[part])])
            for part, first, end in self._pieces(most)
            if part in fronts
        ]
        return np.concatenate(found) if found else NO_FRAGMENTS

    def _pieces(self, most: int) -> list[tuple[int, int, int]]:
        """The next so many fragments from the oldest pending one on, cut into parts: part, first and end."""
        oldest = self.oldest_pending()
        if oldest is None:
            return []
        start, size = self.plan.data_start(0), self._part_fragments
        first = max(oldest, start)
        end = min(first + most, self.plan.attempt_fragments)
        return [
            (part, max(first, start + part * size), min(end, start + (part + 1) * size))
            for part in range((first - start) // size, -(-(end - start) // size))
        ]

    # --- values -------------------------------------------------------------------------------------------------------

    def result(self, out: NDArray[Any], factor: float = 1.0, write: WriteValues | None = None) -> None:
        """Writes all parts. Args: out: uint8[parts, bytes of a part], contiguous; factor, write: not used."""
        values = self.plan.values
        out[:] = self._sums[:values].view(np.uint8).reshape(self._parts, -1)[:, : out.shape[1]]
