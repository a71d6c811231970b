"""One collective sum, from its first fragment to its values. (protocol sections 5.1 and 6)

Each chunk goes through: exponent known (from history, or gathered) -> data sent -> sums back -> accepted, or done again
once with an exponent that is gathered then. All decisions follow from sums, which are the same for every rank, so ranks
never need to ask one another. A rank that is late may see the results of a later stage first; they tell it what it missed.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import Addends, Exponents, Indices, Integers, Lanes
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.log.rank_events import ChunkAccepted, ChunkRedone, ScaleAgreed
from sa_atp.protocol.numbers.fragments import Plan, Run
from sa_atp.protocol.numbers.quantise import dequantise, largest, multiply
from sa_atp.protocol.numbers.scaling import (
    CODE_NOT_FINITE,
    CODE_ZERO,
    SUM_LIMIT,
    ChunkHistory,
    after_gather,
    after_zeros,
    gathered_exponent,
)
from sa_atp.protocol.rank.compiled.kernels import HistoryRow, Sums
from sa_atp.protocol.rank.sums.buffers import Buffers
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.progress import NEVER, Progress, miss, on_taken, tag_of
from sa_atp.protocol.rank.sums.under_way import UnderWay
from sa_atp.protocol.rank.sums.wrong_values import Changed, NotFinite
from sa_atp.protocol.records import dtype_of

_HISTORY = dtype_of(HistoryRow)
UNKNOWN = -128  # an exponent that is not known yet
CODE_MASK = 0xFF

History = NDArray[np.void]
"""HistoryRow[chunks]: of each chunk, what its next exponent follows from."""
WriteValues = Callable[[Integers, Exponents, int, int, float, Any], bool]
NO_FRAGMENTS: Indices = np.zeros(0, np.int64)


def history_of_whole(chunks: int) -> History:
    """The history of whole numbers: the exponent is 0, and no sum of theirs is too coarse."""
    history: History = np.zeros(chunks, _HISTORY)
    history["patience"] = 1
    return history


class Operation(Progress):
    sum_limit = SUM_LIMIT
    """Sums, and whole numbers that are added, are smaller."""
    first_value = 0
    """Index, in the whole tensor, of the first value whose sum this rank receives."""

    def __init__(
        self,
        *,
        index: int,
        plan: Plan,
        first_seq: int,
        place: int = 0,
        contributions: int,
        histories: MutableMapping[object, History],
        key: object | None,
        name: int = 0,
        whole: bool = False,
        buffers: Buffers,
        under_way: UnderWay,
        log: Log = nobody,
    ) -> None:
        """Args:
        index: number of the operation in the job.
        first_seq: sequence number of its first fragment.
        place: see Operations.
        contributions: how many contributions a sum has.
        histories: what is remembered between operations, by key.
        key: names the tensor from step to step; None: no history, every chunk's exponent is gathered.
        name: see progress.name_of.
        whole: whether the values are int32, which travel at the exponent 0. (section 6.4)
        buffers: where large arrays come from, and go back to by `release`.
        under_way: of all operations, which this counts itself in.
        """
        super().__init__(first_seq, tag_of(index, plan.values, name))
        self._log = log
        self.index, self.place = index, place
        self.plan = plan
        self.contributions = contributions
        self.groups: list[ContributionGroup] = []
        self.pending = np.zeros(plan.span, bool)  # fragments whose sum is needed and not known
        self.has_left = False  # the first that was contributed, as a whole
        self.held_bits: int | None = None  # what the last probe saw of the oldest pending fragment
        self.held_since_us = 0  # ... and when one first saw that
        self.attempt = np.zeros(plan.chunks, np.int8)
        self.redone = 0  # chunks that are in their second attempt
        self._accepted = np.zeros(plan.chunks, bool)
        self._waiting = np.zeros(plan.chunks, np.int32)  # data fragments missing in the current attempt
        self._buffers = buffers
        self._under_way = under_way
        self._sums = buffers.take(plan.kept_fragments * plan.lanes)
        self._scales: dict[tuple[int, int], Lanes] = {}  # (attempt, scale fragment): its sum
        self._superseded: dict[int, tuple[int, Integers]] = {}  # chunk done again: first exponent and sums
        self.key = key
        self._histories = histories
        self.whole = whole
        known = history_of_whole(plan.chunks) if whole else histories.get(key) if key is not None else None
        self.foretold = known is not None and len(known) == plan.chunks
        """Whether a history says the exponent of each chunk."""
        # A copy: the next operation with this key must not see what this one has learned before it is over.
        self._history: History = (
            known.copy() if known is not None and self.foretold else np.zeros(plan.chunks, _HISTORY)
        )
        self.exponent: Exponents = (
            self._history["exponent"].astype(np.int16) if self.foretold else np.full(plan.chunks, UNKNOWN, np.int16)
        )
        self.sums = Sums(
            self.pending, self._waiting, self.exponent, self.attempt, self._accepted, self._sums, self._history
        )
        """The arrays that kernels read and write."""
        if self.foretold:
            self._want_all()
            return
        for chunk in range(plan.chunks):
            self._gather(chunk, 0)

    @property
    def missing_share(self) -> float:
        """Share of the data fragments whose sum is not known."""
        # fragments of chunks whose exponent is not known cannot be sent yet, and are not counted as missing
        gathering = np.count_nonzero((self.exponent == UNKNOWN) & ~self._accepted)
        return min(1.0, (self.missing + gathering * self.plan.chunk_fragments) / self.plan.data_fragments)

    # --- sending side -------------------------------------------------------------------------------------------------

    def add(self, group: ContributionGroup) -> None:
        """Gives the operation values to send; what is ready may leave at once."""
        self.groups.append(group)
        plan = self.plan
        if self.is_foretold and not self.resolved:
            group.allow_all()
            return
        for attempt in (0, 1):
            first = plan.scale_start(attempt)
            for fragment in np.flatnonzero(self.pending[first : first + plan.scale_fragments]).tolist():
                group.allow_scale(attempt, fragment)
        for chunk in range(plan.chunks):
            if self.exponent[chunk] != UNKNOWN and not self._accepted[chunk]:
                group.allow_chunk(int(self.attempt[chunk]), chunk)

    def exponent_of(self, run: Run) -> int:
        """The exponent of a run's lanes; 0 for scale fragments."""
        return 0 if run.chunk < 0 else int(self.exponent[run.chunk])

    def oldest_pending(self) -> int | None:
        """The first fragment whose sum is needed and not known."""
        if not self.missing:
            return None
        if not self.pending[self.low]:
            self.low += int(self.pending[self.low :].argmax())
        return self.low

    def missed(self, most: int, *, by_order: bool) -> Indices:
        """Finds fragments whose results may be lost.

        Args:
        most: fragments that are looked at, from the oldest pending one on.
        by_order: leaves out fragments that no later result has shown to be late.
        """
        oldest = self.oldest_pending()
        return NO_FRAGMENTS if oldest is None else oldest + np.flatnonzero(self.pending[oldest : oldest + most])

    def gaps(self, now_us: int, reordering_us: int) -> Indices:
        """Finds fragments that other ranks send, and of which results show that they are late. (section 5.10)"""
        return NO_FRAGMENTS

    def is_done(self) -> bool:
        return self.resolved == self.plan.chunks

    # --- receiving side -----------------------------------------------------------------------------------------------

    def on_results(self, first: int, exponent: int, lanes: Lanes) -> tuple[int, int]:
        """Takes complete sums of consecutive fragments.

        Args: place of the first; exponent of all; their lanes, big-endian.
        Returns: how many were news, and when the newest of them was sent (NEVER if not by us, or more than once).
        Raises: NotFinite, Changed.
        """
        news, newest = 0, NEVER
        for run in self.plan.runs(first, first + len(lanes)):
            values = lanes[run.first - first : run.end - first]
            fresh, sent_us = self._on_scale(run, values) if run.chunk < 0 else self._on_data(run, exponent, values)
            news += fresh
            newest = max(newest, sent_us)
        return news, newest

    def _on_scale(self, run: Run, lanes: Lanes) -> tuple[int, int]:
        self._scales.setdefault((run.attempt, run.fragment), lanes[0].astype(np.int32))
        if not self.pending[run.first]:
            return 0, NEVER
        sent_us = self._settle(run.first, run.end)
        for chunk in self.plan.chunks_of_scale(run.fragment):
            if self._waits_for_scale(chunk, run.attempt):
                self._use_scale(run.attempt, run.fragment, chunk)
        return 1, sent_us

    def _on_data(self, run: Run, exponent: int, lanes: Lanes) -> tuple[int, int]:
        chunk = run.chunk
        if self._accepted[chunk] or run.attempt < self.attempt[chunk]:
            return 0, NEVER
        if run.attempt > self.attempt[chunk] or self.exponent[chunk] == UNKNOWN:
            # A stage that this rank has not reached yet: the others have, so go there.
            self._leave(chunk)
            self._log(ScaleAgreed(self.index, chunk, run.attempt, exponent, "result"))
            self._know(chunk, run.attempt, exponent)
        if exponent != self.exponent[chunk]:
            return 0, NEVER
        pending = self.pending[run.first : run.end]
        fresh = int(np.count_nonzero(pending))
        if fresh == 0:
            return 0, NEVER
        sums = self._sums.reshape(-1, self.plan.lanes)[run.fragment : run.fragment + len(run)]
        if fresh == len(run):
            sums[:] = lanes
            sent_us = self._settle(run.first, run.end)
        else:
            news = np.flatnonzero(pending)
            sums[news] = lanes[news]
            sent_us = max(self._settle(run.first + i, run.first + i + 1) for i in news.tolist())
        self._waiting[chunk] -= fresh
        if self._waiting[chunk] == 0:
            self._chunk_complete(chunk, largest(self._sums_of(chunk)))
        return fresh, sent_us

    def after_taken(self, last: int, found: Any, done: Any) -> tuple[int, int]:
        """Finishes a stream that a kernel has taken. Args: last: its last fragment; found, done: see kernels.take.

        Returns: as on_results. Raises: NotFinite, Changed.
        """
        (group,) = self.groups
        fresh, newest_us, flown, complete, accepted, last_accepted = found.item()
        on_taken(self, group, self._under_way, group, last, fresh, flown, accepted, newest_us)
        if accepted:
            group.forget_complete(self._accepted, self.plan.data_start(0) + self.plan.fragments_of(last_accepted)[1])
        for chunk, top in done[:complete].tolist():
            self._chunk_complete(chunk, top)
        return fresh, newest_us

    @property
    def is_foretold(self) -> bool:
        """Whether all data travel at exponents that a history says: nothing is done again."""
        return self.foretold and not self.redone

    def _learn(self, chunk: int, history: ChunkHistory) -> None:
        self._history[chunk] = (history.exponent, history.finest, history.patience)

    def _settle(self, first: int, end: int) -> int:
        """Marks pending fragments as known, or not needed any more. Returns: when the newest was sent."""
        self.pending[first:end] = False
        miss(self, self._under_way, first - end)
        newest = NEVER
        for group in self.groups:
            newest = max(newest, group.on_done(first, end))
        return newest

    def result(self, out: Addends, factor: float = 1.0, write: WriteValues | None = None) -> None:
        """Writes the sums, times a factor.

        Args: out: float32[values]; int32[values] for whole numbers, which have no factor. write: does it, if it can; see
            CommonCase.write_values.
        """
        if self.whole:
            out[:] = self._sums[: self.plan.values]
            return
        if write is not None and write(self._sums, self.exponent, 0, self.plan.chunks, factor, out):
            return
        for chunk in range(self.plan.chunks):
            start, end = self._values_of(chunk)
            if self.exponent[chunk] == UNKNOWN:
                out[start:end] = 0.0  # every contribution was zero
            else:
                dequantise(self._sums[start:end], int(self.exponent[chunk]), out[start:end])
        multiply(out, factor)

    def release(self) -> None:
        """Gives the memory of the sums back: no rank needs them any more."""
        self._buffers.give(self._sums)

    def recall(self, local: int) -> tuple[int, Lanes] | None:
        """A fragment's sum, for someone who missed it: exponent and lanes; None if it is not known here."""
        attempt, within = divmod(local, self.plan.attempt_fragments)
        if within < self.plan.scale_fragments:
            scale = self._scales.get((attempt, within))
            return None if scale is None else (0, scale)
        fragment = within - self.plan.scale_fragments
        chunk = fragment // self.plan.chunk_fragments
        lanes = self.plan.lanes
        if attempt < self.attempt[chunk]:
            if chunk not in self._superseded:
                return None
            exponent, sums = self._superseded[chunk]
            first = (fragment - self.plan.fragments_of(chunk)[0]) * lanes
            return exponent, sums[first : first + lanes]
        if attempt > self.attempt[chunk] or self.exponent[chunk] == UNKNOWN or self.pending[local]:
            return None
        return int(self.exponent[chunk]), self._sums[fragment * lanes : (fragment + 1) * lanes]

    def integers(self) -> tuple[Integers, Exponents]:
        """The sums as they were added, for checks, until the job has moved on.

        Returns: them, and the exponent of each chunk; where that is UNKNOWN, every contribution was zero.
        """
        for chunk in np.flatnonzero(self.exponent == UNKNOWN).tolist():
            start, end = self._values_of(chunk)
            self._sums[start:end] = 0
        return self._sums[: self.plan.values], self.exponent

    def save_history(self) -> None:
        if self.key is not None and not self.whole:
            self._histories[self.key] = self._history

    # --- stages of a chunk --------------------------------------------------------------------------------------------

    def _want(self, first: int, end: int) -> None:
        span = self.pending[first:end]
        miss(self, self._under_way, int((~span).sum()))
        span[:] = True
        self.low = min(self.low, first)

    def _unwant(self, first: int, end: int) -> None:
        """Gives up fragments that are not needed any more."""
        for local in (first + np.flatnonzero(self.pending[first:end])).tolist():
            self._settle(local, local + 1)

    def _gather(self, chunk: int, attempt: int) -> None:
        """Asks for the magnitudes of a chunk, unless they are known."""
        self._begin_attempt(chunk, attempt)
        self.exponent[chunk] = UNKNOWN
        fragment = self.plan.scale_fragment_of(chunk)
        if (attempt, fragment) in self._scales:
            self._use_scale(attempt, fragment, chunk)
            return
        local = self.plan.scale_start(attempt) + fragment
        if not self.pending[local]:
            self._want(local, local + 1)
            for group in self.groups:
                group.allow_scale(attempt, fragment)

    def _know(self, chunk: int, attempt: int, exponent: int) -> None:
        """The exponent is known: the chunk's data may travel."""
        self._begin_attempt(chunk, attempt)
        self.exponent[chunk] = exponent
        base = self.plan.data_start(attempt)
        first, end = self.plan.fragments_of(chunk)
        self._waiting[chunk] = end - first
        self._want(base + first, base + end)
        for group in self.groups:
            group.allow_chunk(attempt, chunk)

    def _begin_attempt(self, chunk: int, attempt: int) -> None:
        self.redone += attempt - int(self.attempt[chunk])
        self.attempt[chunk] = attempt

    def _want_all(self) -> None:
        """Wants all chunks in attempt 0, whose exponents are known before any group contributes."""
        plan = self.plan
        self._waiting.fill(plan.chunk_fragments)
        self._waiting[-1] = plan.data_fragments - (plan.chunks - 1) * plan.chunk_fragments
        self.low = plan.scale_fragments
        self.pending[self.low : plan.attempt_fragments] = True
        miss(self, self._under_way, plan.data_fragments)

    def _waits_for_scale(self, chunk: int, attempt: int) -> bool:
        return bool(self.attempt[chunk] == attempt and self.exponent[chunk] == UNKNOWN and not self._accepted[chunk])

    def _use_scale(self, attempt: int, fragment: int, chunk: int) -> None:
        _, at, shifts = self.plan.scale_place(chunk)
        codes = (self._scales[attempt, fragment][at] >> shifts) & CODE_MASK
        bad = np.flatnonzero(codes == CODE_NOT_FINITE)
        if len(bad):
            raise NotFinite(bad.tolist(), chunk)
        code = int(codes.max())
        if code == CODE_ZERO:
            self._learn(chunk, after_zeros())
            self._accept(chunk)
        else:
            exponent = gathered_exponent(code, self.contributions)
            self._log(ScaleAgreed(self.index, chunk, attempt, exponent, "gathered"))
            self._know(chunk, attempt, exponent)

    def _leave(self, chunk: int) -> None:
        """Gives up what the chunk still waits for in its current attempt."""
        attempt = int(self.attempt[chunk])
        if self.exponent[chunk] != UNKNOWN:
            base = self.plan.data_start(attempt)
            first, end = self.plan.fragments_of(chunk)
            self._unwant(base + first, base + end)
            for group in self.groups:
                group.forget_chunk(attempt, chunk)
            return
        fragment = self.plan.scale_fragment_of(chunk)
        if not any(c != chunk and self._waits_for_scale(c, attempt) for c in self.plan.chunks_of_scale(fragment)):
            local = self.plan.scale_start(attempt) + fragment
            self._unwant(local, local + 1)

    def _values_of(self, chunk: int) -> tuple[int, int]:
        """Where a chunk begins and ends, counted in values whose sums this rank receives."""
        return self.plan.values_of(chunk)

    def _sums_of(self, chunk: int) -> Integers:
        """All lanes of a chunk's fragments."""
        first, end = self.plan.fragments_of(chunk)
        return self._sums[first * self.plan.lanes : end * self.plan.lanes]

    def _chunk_complete(self, chunk: int, top: int) -> None:
        """All data of the attempt is back: accept the sum, or do it again. Args: top: the largest absolute value."""
        attempt, used = int(self.attempt[chunk]), int(self.exponent[chunk])
        # what fits its exponent by construction is poisoned all the same where values change, or two copies of them differ
        bad = top >= self.sum_limit
        predicted = None
        if attempt == 0 and self.foretold:
            predicted = ChunkHistory(*self._history[chunk].item())
        if (
            attempt == 0
            and not self.whole
            and (bad or (predicted and predicted.too_coarse(used, top, self.contributions)))
        ):
            self._log(ChunkRedone(self.index, chunk, used, "does not fit" if bad else "too coarse"))
            self._superseded[chunk] = (used, self._sums_of(chunk).copy())
            for group in self.groups:
                group.forget_chunk(attempt, chunk)
            self._gather(chunk, 1)
            return
        if bad:
            raise self._changed(chunk, self._sums_of(chunk))
        if predicted:
            predicted.after_sum(used, top, self.contributions)
        else:
            predicted = after_gather(used, top, self.contributions)
        self._learn(chunk, predicted)
        if attempt:
            self._log(ChunkAccepted(self.index, chunk, used))
        self._accept(chunk)

    def _changed(self, chunk: int, sums: Integers) -> Changed:
        """Says whose values do not fit, and where. Args: sums: of the chunk, with poison in some, or what no sum can be."""
        lanes = self.plan.lanes
        found = sums.reshape(-1, lanes) <= -SUM_LIMIT
        rows = np.flatnonzero((found | (sums.reshape(-1, lanes) >= SUM_LIMIT)).any(axis=1))
        first, end = (self.first_value + place for place in self._values_of(chunk))
        return Changed(
            [c for c in range(self.contributions) if found[:, c % lanes].any()],
            first + int(rows[0]) * lanes,
            min(first + (int(rows[-1]) + 1) * lanes, end),
        )

    def _accept(self, chunk: int) -> None:
        self._accepted[chunk] = True
        self.resolved += 1
        for group in self.groups:
            group.forget_chunk(int(self.attempt[chunk]), chunk)

    # --- for people ---------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Describes what the operation waits for, for people who wonder why."""
        oldest = self.oldest_pending()
        held = "unknown" if self.held_bits is None else f"{self.held_bits:x}"
        lines = [
            f"  operation {self.index}: {self.missing} fragments missing, the oldest is {oldest}, whose slot holds {held}",
            f"    exponents {self.exponent.tolist()}, attempts {self.attempt.tolist()}",
        ]
        for group in self.groups:
            tries = "" if oldest is None else f", the oldest sent {group.tries[oldest]} times"
            lines.append(f"    contributions {group.bits:x}: {group.in_flight} in flight, {group.fresh} to send{tries}")
        return "\n".join(lines)
