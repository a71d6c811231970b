"""A collective sum of which this rank needs one part. (protocol section 5.9)

Results of other ranks' parts come bare. A bare result says that a fragment's sum is complete, and windows, recovery and
progress need no more. Only one rank sees a fragment's values, so no decision that all ranks must take alike may follow from
them: exponents are gathered, by fragments that everybody sees, and no chunk is summed a second time.
"""

from typing import Any

import numpy as np

from sa_atp.basics.arrays import Exponents, Integers, Lanes, Values
from sa_atp.protocol.log.rank_events import ScaleAgreed
from sa_atp.protocol.numbers.fragments import Run
from sa_atp.protocol.numbers.quantise import largest, poisoned
from sa_atp.protocol.numbers.scattered import ScatteredPlan
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation, WriteValues
from sa_atp.protocol.rank.sums.progress import NEVER


class ScatteredOperation(Operation):
    plan: ScatteredPlan

    def __init__(self, *, part: int, **settings: Any) -> None:
        """Args: part: the part that this rank needs; settings: see Operation."""
        self.part = part
        self.recalled = 0
        """Number of times that contributions were sent again after the operation was over."""
        super().__init__(**settings)
        self.first_value = part * self.plan.part_values

    # --- receiving side -----------------------------------------------------------------------------------------------

    def on_bare(self, first: int, count: int, exponent: int) -> tuple[int, int]:
        """Takes bare results of consecutive fragments: the sums that other ranks need are complete.

        A bare result of this rank's own part changes nothing. None is sent, unless something is wrong.
        """
        news, newest = 0, NEVER
        for run in self.plan.runs(first, first + count):
            if run.chunk >= 0:
                fresh, sent_us = self._on_part_of_chunk(run, exponent, None)
                news, newest = news + fresh, max(newest, sent_us)
        return news, newest

    def _on_data(self, run: Run, exponent: int, lanes: Lanes) -> tuple[int, int]:
        return self._on_part_of_chunk(run, exponent, lanes)

    def _on_part_of_chunk(self, run: Run, exponent: int, lanes: Lanes | None) -> tuple[int, int]:
        chunk = run.chunk
        if self._accepted[chunk]:
            return 0, NEVER
        if self.exponent[chunk] == UNKNOWN:  # others have learned it already
            self._leave(chunk)
            self._log(ScaleAgreed(self.index, chunk, run.attempt, exponent, "result"))
            self._know(chunk, run.attempt, exponent)
        if exponent != self.exponent[chunk]:
            return 0, NEVER
        fresh, newest = 0, NEVER
        offset = run.first - run.fragment
        sums = self._sums.reshape(-1, self.plan.lanes)
        for part, first, end, row in self.plan.by_part(run.fragment, run.fragment + len(run)):
            if part == self.part and lanes is None:
                continue
            pending = self.pending[offset + first : offset + end]
            count = int(np.count_nonzero(pending))
            if part == self.part and lanes is not None and count:
                rows = sums[row : row + end - first]
                rows[pending] = lanes[first - run.fragment : end - run.fragment][pending]
            if count == end - first:
                newest = max(newest, self._settle(offset + first, offset + end))
            else:
                for local in (offset + first + np.flatnonzero(pending)).tolist():
                    newest = max(newest, self._settle(local, local + 1))
            fresh += count
        self._waiting[chunk] -= fresh
        if fresh and self._waiting[chunk] == 0:
            self._chunk_complete(chunk, 0)
        return fresh, newest

    def _chunk_complete(self, chunk: int, top: int) -> None:
        sums = self._sums_of(chunk)
        if poisoned(largest(sums)):
            raise self._changed(chunk, sums)
        self._accept(chunk)

    def _sums_of(self, chunk: int) -> Integers:
        """The lanes of this rank's part in a chunk."""
        first, end = self.plan.rows_of(chunk, self.part)
        return self._sums[first * self.plan.lanes : end * self.plan.lanes]

    def _values_of(self, chunk: int) -> tuple[int, int]:
        first, end = (row * self.plan.lanes for row in self.plan.rows_of(chunk, self.part))
        end = min(end, self.plan.part_values)
        return min(first, end), end

    def result(self, out: Values, factor: float = 1.0, write: WriteValues | None = None) -> None:
        """Writes the sums of this rank's part, times a factor. Args: out: float32[part_values]; write: not used."""
        super().result(out, factor)

    def integers(self) -> tuple[Integers, Exponents]:
        """The sums of this rank's part as they were added, and the exponent of each of them."""
        sums, exponents = super().integers()
        of_values = np.empty(self.plan.part_values, np.int16)
        for chunk in range(self.plan.chunks):
            first, end = self._values_of(chunk)
            of_values[first:end] = exponents[chunk]
        return sums[: self.plan.part_values], of_values

    def save_history(self) -> None:
        """Does nothing: not every rank has seen the sums, from which the next exponents would follow."""

    # --- for those who missed results ---------------------------------------------------------------------------------

    def recall(self, local: int) -> tuple[int, Lanes] | None:
        fragment = local - self.plan.scale_fragments
        if fragment < 0:
            return super().recall(local)
        chunk = fragment // self.plan.chunk_fragments
        if self.exponent[chunk] == UNKNOWN or self.pending[local]:
            return None
        part, _, _, row = next(self.plan.by_part(fragment, fragment + 1))
        if part != self.part:
            return None
        return int(self.exponent[chunk]), self._sums[row * self.plan.lanes : (row + 1) * self.plan.lanes]

    def contribution(self, local: int) -> tuple[ContributionGroup, Run] | None:
        """The rank's own contribution to a fragment of another rank's part whose sum was complete: its group and run.

        Returns: None: the fragment is of this rank's own part, the rank has contributed nothing to it, or its sum is not
            known to have been complete.
        """
        fragment = local - self.plan.scale_fragments
        if fragment < 0 or self.pending[local] or not self.groups:
            return None
        (run,) = self.plan.runs(local, local + 1)
        if self.exponent[run.chunk] == UNKNOWN or self.plan.part_of(fragment) == self.part:
            return None
        return self.groups[0], run

    def release(self) -> None:
        super().release()
        self.groups.clear()
