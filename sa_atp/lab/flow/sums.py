"""The arithmetic of a sum, with the same integers as in packets. (protocol section 6)

Each contribution is rounded to integers with the exponent of its chunk, which is predicted from the last sum with the same
key or gathered; the integers are added; a chunk whose exponent does not fit is repeated with a gathered one. The result is
bit for bit that of sums.operation, since a sum of integers does not depend on the order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Exponents, Integers, Values
from sa_atp.protocol.job.errors import NonFiniteError, ValuesChangedError
from sa_atp.protocol.numbers.fragments import Plan, plan_of
from sa_atp.protocol.numbers.quantise import dequantise, largest, poisoned, quantise
from sa_atp.protocol.numbers.scaling import (
    CODE_NOT_FINITE,
    CODE_ZERO,
    ChunkHistory,
    after_gather,
    after_zeros,
    gathered_exponent,
    magnitude_code,
)
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.rank.sums.operation import UNKNOWN


@dataclass(frozen=True, slots=True)
class Total:
    """A complete sum."""

    values: Values
    sums: Integers
    exponents: Exponents
    redone: int
    """Number of chunks that were repeated."""

    def integers(self) -> tuple[Integers, Exponents]:
        """See `sums.operation.Operation.integers`."""
        return self.sums, self.exponents


class Adder:
    """Sums one tensor of a job, step after step; remembers its scale."""

    def __init__(self, values: int, contributions: ContributionMap, lanes: int) -> None:
        self.plan: Plan = plan_of(values, lanes)
        self.map = contributions
        self.contributions = contributions.contributions
        self._history: list[ChunkHistory | None] = [None] * self.plan.chunks

    @property
    def gathers(self) -> bool:
        """Whether magnitudes have to be gathered before values are sent: there was no earlier sum."""
        return any(known is None for known in self._history)

    def add(self, operation: int, parts: Mapping[int, Values]) -> Total:
        """Adds contributions up.

        Args: operation: its number, for errors; parts: float32[values] of each contribution, by its number.
        Raises: NonFiniteError, ValuesChangedError.
        """
        plan = self.plan
        sums = np.zeros(plan.values, np.int32)
        exponents = np.full(plan.chunks, UNKNOWN, np.int16)
        out = np.zeros(plan.values, np.float32)
        redone = 0
        for chunk in range(plan.chunks):
            start, end = plan.values_of(chunk)
            cut = {c: part[start:end] for c, part in parts.items()}
            exponent, again = self._chunk(operation, chunk, cut, sums[start:end])
            redone += again
            exponents[chunk] = exponent
            if exponent != UNKNOWN:
                dequantise(sums[start:end], exponent, out[start:end])
        return Total(out, sums, exponents, redone)

    def _chunk(self, operation: int, chunk: int, parts: Mapping[int, Values], sums: Integers) -> tuple[int, bool]:
        """Writes a chunk's sum. Returns: its exponent, and whether it was repeated."""
        history = self._history[chunk]
        if history is not None:
            top = self._add(parts, history.exponent, sums)
            if not poisoned(top) and not history.too_coarse(history.exponent, top, self.contributions):
                used = history.exponent
                history.after_sum(used, top, self.contributions)
                return used, False
        codes = {c: magnitude_code(part) for c, part in parts.items()}
        start, end = self.plan.values_of(chunk)
        bad = {self.map.rank_of(c) for c, code in codes.items() if code == CODE_NOT_FINITE}
        if bad:
            raise NonFiniteError(operation, bad, start, end - 1)
        code = max(codes.values())
        if code == CODE_ZERO:
            self._history[chunk] = after_zeros()
            sums[:] = 0
            return UNKNOWN, history is not None
        exponent = gathered_exponent(code, self.contributions)
        top = self._add(parts, exponent, sums)
        if poisoned(top):
            raise ValuesChangedError(operation, {self.map.rank_of(c) for c in parts}, start, end - 1)
        self._history[chunk] = after_gather(exponent, top, self.contributions)
        return exponent, history is not None

    def _add(self, parts: Mapping[int, Values], exponent: int, sums: Integers) -> int:
        """Writes the sum of all parts with the switch's saturating addition. Returns: the largest magnitude."""
        total = np.zeros(len(sums), np.int64)
        rounded = np.empty(len(sums), np.int32)
        for part in parts.values():
            quantise([part], exponent, self.contributions, rounded)
            total += rounded
        np.clip(total, -(1 << 31), (1 << 31) - 1, out=total)
        sums[:] = total
        return largest(sums)
