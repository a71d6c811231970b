"""One collective sum, from its first fragment to its values. (protocol sections 5.1 and 6)

Each chunk goes through: exponent known (from history, or gathered) -> data sent -> sums back -> accepted, or done again
once with a gathered exponent. All decisions follow from sums, which are the same for every rank, so ranks never need to
ask one another. A rank that is late may see the results of a later stage first; they tell it what it has missed.
"""

from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np

from sa_atp.tensor.fragments import Plan
from sa_atp.tensor.quantise import dequantise, largest, poisoned
from sa_atp.tensor.scaling import (
    CODE_NOT_FINITE,
    CODE_ZERO,
    ChunkHistory,
    after_gather,
    after_zeros,
    gathered_exponent,
)
from sa_atp.transport.contribution import Contribution

UNKNOWN = -128  # an exponent that is not known yet
CODE_MASK = 0xFF

History = list[ChunkHistory | None]


class NotFinite(Exception):
    """Contributions to a chunk hold NaN or infinity."""

    def __init__(self, contributions: list[int], chunk: int) -> None:
        super().__init__()
        self.contributions = contributions
        self.chunk = chunk


class Operation:
    def __init__(
        self,
        *,
        index: int,
        plan: Plan,
        first_seq: int,
        contributions: int,
        histories: MutableMapping[object, History],
        key: object | None,
    ) -> None:
        """Args:
        index: number of the operation in the job.
        first_seq: sequence number of its first fragment.
        contributions: how many contributions a sum has.
        histories: what is remembered between operations, by key.
        key: names the tensor from step to step; None: no history, every chunk's exponent is gathered.
        """
        self.index = index
        self.plan = plan
        self.first_seq = first_seq
        self.contributions = contributions
        self.groups: list[Contribution] = []
        self.pending = np.zeros(plan.span, bool)  # fragments whose sum is needed and not known
        self.missing = 0  # number of those
        self.resolved = 0  # chunks whose sum is accepted
        self.held_bits: int | None = None  # what the last probe saw of the oldest pending fragment
        self.attempt = np.zeros(plan.chunks, np.int8)
        self.exponent = np.full(plan.chunks, UNKNOWN, np.int16)
        self._accepted = np.zeros(plan.chunks, bool)
        self._waiting = np.zeros(plan.chunks, np.int32)  # data fragments missing in the current attempt
        self._sums = np.zeros(plan.data_fragments * plan.lanes, np.int32)
        self._scales: dict[tuple[int, int], np.ndarray] = {}  # (attempt, scale fragment): its sum
        self._superseded: dict[int, tuple[int, np.ndarray]] = {}  # chunk done again: first exponent and sums
        self._low = 0  # nothing below is pending
        self.key = key
        self._histories = histories
        known = histories.get(key) if key is not None else None
        # A copy: the next operation with this key must not see what this one has learned before it is over.
        self._history: History = (
            [h and replace(h) for h in known]
            if known is not None and len(known) == plan.chunks
            else [None] * plan.chunks
        )
        self._from_history = np.array([h is not None for h in self._history])
        for chunk, history in enumerate(self._history):
            if history is None:
                self._gather(chunk, 0)
            else:
                self._know(chunk, 0, history.exponent)

    # --- sending side -------------------------------------------------------------------------------------------------

    def add(self, group: Contribution) -> None:
        """Gives the operation values to send; what is ready may leave at once."""
        self.groups.append(group)
        plan = self.plan
        for attempt in (0, 1):
            for fragment in range(plan.scale_fragments):
                if self.pending[plan.scale_start(attempt) + fragment]:
                    group.may_send_scale(attempt, fragment)
        for chunk in range(plan.chunks):
            if self.exponent[chunk] != UNKNOWN and not self._accepted[chunk]:
                group.may_send_chunk(int(self.attempt[chunk]), chunk, int(self.exponent[chunk]))

    def exponents_of(self, locals_: np.ndarray) -> np.ndarray:
        """int8 for each fragment: the exponent of its lanes (0 for scale fragments)."""
        within = locals_ % self.plan.attempt_fragments - self.plan.scale_fragments
        chunk = np.maximum(within, 0) // self.plan.chunk_fragments
        return np.where(within >= 0, self.exponent[chunk], 0).astype(np.int8)

    def oldest_pending(self) -> int | None:
        """The first fragment whose sum is needed and not known."""
        if not self.missing:
            return None
        self._low += int(np.argmax(self.pending[self._low :]))
        return self._low

    @property
    def done(self) -> bool:
        return self.resolved == self.plan.chunks

    # --- receiving side -----------------------------------------------------------------------------------------------

    def on_results(self, locals_: np.ndarray, exponents: np.ndarray, lanes: np.ndarray) -> int:
        """Takes complete sums.

        Args: int64[n] fragments; int8[n] exponents; big-endian int32[n, lanes].
        Returns: how many fragments were news.
        Raises: NotFinite.
        """
        plan = self.plan
        attempt = locals_ // plan.attempt_fragments
        within = locals_ - attempt * plan.attempt_fragments
        is_scale = within < plan.scale_fragments
        if is_scale.any():
            for i in np.flatnonzero(is_scale):
                self._scales.setdefault((int(attempt[i]), int(within[i])), lanes[i].astype(np.int32))
        data = within - plan.scale_fragments
        chunk = np.where(is_scale, 0, data // plan.chunk_fragments)
        self._catch_up(chunk, attempt, exponents, is_scale)
        expected = (attempt == self.attempt[chunk]) & (exponents == self.exponent[chunk])
        news = self.pending[locals_] & (is_scale | expected)
        if not news.any():
            return 0
        fresh, first = np.unique(locals_[news], return_index=True)
        rows = np.flatnonzero(news)[first]
        self.pending[fresh] = False
        self.missing -= len(fresh)
        for group in self.groups:
            group.on_done(fresh)
        values = rows[~is_scale[rows]]
        if len(values):
            self._sums.reshape(-1, plan.lanes)[data[values]] = lanes[values]
            touched, counts = np.unique(chunk[values], return_counts=True)
            self._waiting[touched] -= counts.astype(np.int32)
        for row in rows[is_scale[rows]]:
            self._scale_known(int(attempt[row]), int(within[row]))
        if len(values):
            for c in touched:
                if self._waiting[c] == 0 and not self._accepted[c]:
                    self._chunk_complete(int(c))
        return len(fresh)

    def result(self, out: np.ndarray) -> None:
        """Writes the sums. Args: out: float32[values]."""
        for chunk in range(self.plan.chunks):
            start, end = self.plan.values_of(chunk)
            if self.exponent[chunk] == UNKNOWN:
                out[start:end] = 0.0  # every contribution was zero
            else:
                dequantise(self._sums[start:end], int(self.exponent[chunk]), out[start:end])

    def recall(self, local: int) -> tuple[int, np.ndarray] | None:
        """A fragment's sum, for someone who missed it: exponent and int32[lanes]; None if it is not known here."""
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

    def integers(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums as they were added, for checks: int32[values], and the exponent of each chunk (UNKNOWN: all zero)."""
        return self._sums[: self.plan.values], self.exponent

    def save_history(self) -> None:
        if self.key is not None:
            self._histories[self.key] = self._history

    # --- stages of a chunk --------------------------------------------------------------------------------------------

    def _want(self, first: int, end: int) -> None:
        span = self.pending[first:end]
        self.missing += int((~span).sum())
        span[:] = True
        self._low = min(self._low, first)

    def _unwant(self, first: int, end: int) -> None:
        """These fragments are not needed any more."""
        dropped = first + np.flatnonzero(self.pending[first:end])
        self.pending[dropped] = False
        self.missing -= len(dropped)
        for group in self.groups:
            group.on_done(dropped)

    def _gather(self, chunk: int, attempt: int) -> None:
        """Asks for the magnitudes of a chunk, unless they are known."""
        self.attempt[chunk] = attempt
        self.exponent[chunk] = UNKNOWN
        fragment = self.plan.scale_place(chunk)[0]
        if (attempt, fragment) in self._scales:
            self._use_scale(attempt, fragment, chunk)
            return
        local = self.plan.scale_start(attempt) + fragment
        if not self.pending[local]:
            self._want(local, local + 1)
            for group in self.groups:
                group.may_send_scale(attempt, fragment)

    def _know(self, chunk: int, attempt: int, exponent: int) -> None:
        """The exponent is known: the chunk's data may travel."""
        self.attempt[chunk] = attempt
        self.exponent[chunk] = exponent
        base = self.plan.data_start(attempt)
        first, end = self.plan.fragments_of(chunk)
        self._waiting[chunk] = end - first
        self._want(base + first, base + end)
        for group in self.groups:
            group.may_send_chunk(attempt, chunk, exponent)

    def _scale_known(self, attempt: int, fragment: int) -> None:
        for chunk in self.plan.chunks_of_scale(fragment):
            if self.attempt[chunk] == attempt and self.exponent[chunk] == UNKNOWN and not self._accepted[chunk]:
                self._use_scale(attempt, fragment, chunk)

    def _use_scale(self, attempt: int, fragment: int, chunk: int) -> None:
        _, group, shift = self.plan.scale_place(chunk)
        lanes = self._scales[attempt, fragment][group : group + 64]
        codes = (lanes >> shift) & CODE_MASK
        bad = np.flatnonzero(codes == CODE_NOT_FINITE)
        if len(bad):
            raise NotFinite(bad.tolist(), chunk)
        code = int(codes.max())
        if code == CODE_ZERO:
            self._history[chunk] = after_zeros()
            self._accept(chunk)
        else:
            self._know(chunk, attempt, gathered_exponent(code, self.contributions))

    def _catch_up(self, chunk: np.ndarray, attempt: np.ndarray, exponents: np.ndarray, is_scale: np.ndarray) -> None:
        """Results of a stage that this rank has not reached yet show that the others have: go there."""
        ahead = (
            ~is_scale
            & ~self._accepted[chunk]
            & ((attempt > self.attempt[chunk]) | ((attempt == self.attempt[chunk]) & (self.exponent[chunk] == UNKNOWN)))
        )
        for i in np.flatnonzero(ahead):
            c, a = int(chunk[i]), int(attempt[i])
            if a < self.attempt[c] or (a == self.attempt[c] and self.exponent[c] != UNKNOWN):
                continue
            self._leave(c)
            self._know(c, a, int(exponents[i]))

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
        fragment = self.plan.scale_place(chunk)[0]
        others = [
            c for c in self.plan.chunks_of_scale(fragment)
            if c != chunk and self.attempt[c] == attempt and self.exponent[c] == UNKNOWN and not self._accepted[c]
        ]  # fmt: skip
        if not others:
            local = self.plan.scale_start(attempt) + fragment
            self._unwant(local, local + 1)

    def _chunk_complete(self, chunk: int) -> None:
        """All data of the attempt is back: accept the sum, or do it again."""
        first, end = self.plan.fragments_of(chunk)
        sums = self._sums[first * self.plan.lanes : end * self.plan.lanes]
        top = largest(sums)
        attempt, used = int(self.attempt[chunk]), int(self.exponent[chunk])
        history = self._history[chunk]
        gathered = attempt == 1 or not self._from_history[chunk]
        if not gathered and history is not None:
            if poisoned(top) or history.too_coarse(used, top, self.contributions):
                self._superseded[chunk] = (used, sums.copy())
                for group in self.groups:
                    group.forget_chunk(attempt, chunk)
                self._gather(chunk, 1)
                return
            history.after_sum(used, top, self.contributions)
        else:
            self._history[chunk] = after_gather(used, top, self.contributions)
        self._accept(chunk)

    def _accept(self, chunk: int) -> None:
        self._accepted[chunk] = True
        self.resolved += 1
        for group in self.groups:
            group.forget_chunk(int(self.attempt[chunk]), chunk)
