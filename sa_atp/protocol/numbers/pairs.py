"""Values in half the bytes: two in a lane, as one whole number. (protocol section 6.5)

A lane is `upper * BASE + lower`, and a sum of lanes is `sum of upper * BASE + sum of lower`. Both sums can be read from it
as long as neither is larger than LARGEST_SUM, so each of N contributions has values of at most LARGEST_SUM / N units. A sum
of whole numbers is exact, so only rounding to units loses something.

A block of values has one unit, which all ranks have to know before they send. It follows from the magnitudes of all
contributions to the last sum, which travel behind the values, each at a place of its own: all ranks know the same of it. A
value that is larger than its block's unit allows is cut off there. With error feedback, what rounding and cutting took from
a rank's values is added to its values of the next sum.
"""

from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from sa_atp.basics.arrays import Integers, Measurements, Numbers, Values
from sa_atp.basics.errors import UserError
from sa_atp.protocol.numbers import pair_kernels
from sa_atp.protocol.numbers.scaling import CODE_BITS, CODE_NOT_FINITE, CODES_PER_LANE, SUM_LIMIT

LARGEST_SUM = 23169
"""Units: the largest n with (2 * n + 1) * n + n < SUM_LIMIT."""
BASE = 2 * LARGEST_SUM + 1
assert BASE * LARGEST_SUM + LARGEST_SUM < SUM_LIMIT <= (BASE + 2) * (LARGEST_SUM + 1) + LARGEST_SUM + 1

# Values that share a unit. Parameters of one layer are neighbours and have similar gradients, so fewer would be finer; but
# each contribution's magnitude of each block travels, which is 2 % of the lanes with 64 contributions.
BLOCK = 2048

HEADROOM_BITS = 1  # values may grow twofold from one sum to the next before they are cut off
SHRINKING_BITS = 1  # by which a unit becomes finer in a sum at most, so that gradients that come and go are not cut off

# Sums of a tensor that travel with 32 bits before its first one in pairs. One tells magnitudes; after the first of all,
# PyTorch's DDP may deal parameters to buckets anew.
EXACT_SUMS = 2


class PairKernels(Protocol):
    """The functions of pair_kernels.py, compiled or not; see there for their arguments."""

    @property
    def magnitudes(self) -> Any: ...
    @property
    def pack(self) -> Any: ...
    @property
    def unpack(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Packing:
    """The terms of a sum that travels in pairs, which all ranks know before it begins."""

    units: Measurements
    """float64[blocks]."""
    lanes: int
    seed: int
    """Seed of rounding, to which each contribution adds its number."""


class PairCodec:
    """Packs one rank's contributions to the sums of one tensor, one sum after another, and unpacks the sums.

    Every rank has one with the same arguments, and calls it for the same sums.
    """

    def __init__(
        self,
        values: int,
        contributions: int,
        *,
        seed: int = 0,
        key: object = None,
        feedback: bool = True,
        kernels: PairKernels = pair_kernels,
    ) -> None:
        """Args:
        values: of the tensor.
        contributions: arrays that are added up in a sum, 1 to LARGEST_SUM.
        seed, key: rounding is a function of these, the sum's number, the contribution and the position.
        feedback: whether what does not travel of this rank's values is added to its next ones. That needs one contribution
            a sum, the rank's own: others could not send the same for it.
        """
        self.values, self.contributions = values, contributions
        self.most = LARGEST_SUM // contributions
        """Units: the largest magnitude in a contribution."""
        self.feedback = feedback
        self._kernels = kernels
        self._blocks = -(-values // BLOCK)
        self._pairs = -(-values // 2)
        self._code_lanes = -(-contributions // CODES_PER_LANE)
        self._seed = crc32(repr((seed, key)).encode())
        self._codes: Numbers = np.zeros(self._blocks, np.int64)
        self._residual: Values | None = None
        self._exact = 0  # sums with 32 bits, all of whose values were finite
        self._number = 0
        self._is_open = False

    @property
    def lanes(self) -> int:
        """Number of lanes of a sum in pairs: the pairs, then for each block the magnitudes of its contributions."""
        return self._pairs + self._blocks * self._code_lanes

    def next_sum(self) -> Packing | None:
        """What the next sum travels by; None: with 32 bits, because magnitudes are not known.

        Raises: UserError: the last one is not over.
        """
        if self._is_open:
            raise UserError(
                "two sums of one tensor at a time, with 16 bits: the scale of the second follows from the first. "
                "Give each model a state of its own"
            )
        self._is_open = True
        top = int(self._codes.max())
        if self._exact < EXACT_SUMS or not top:
            return None
        codes = np.where(self._codes > 0, self._codes, top)  # a block that has always been zero
        units = np.ldexp(1.0 / self.most, codes - 126 + HEADROOM_BITS)
        return Packing(units, self.lanes, self._seed << 32 | self._number & 0xFFFFFFFF)

    def after_exact(self, sums: Values, scale: float = 1.0) -> None:
        """Learns from a sum that travelled with 32 bits. Args: sums: float32[values], already times `scale`."""
        self._is_open = False
        codes = self._magnitudes(np.ascontiguousarray(sums))
        if (codes < CODE_NOT_FINITE).all():
            # a sum is as large as one contribution, or larger, unless they cancel one another
            self._learn(np.where(codes > 0, np.clip(codes - int(np.floor(np.log2(scale))), 1, 254), 0))
            self._exact += 1

    def pack(self, packing: Packing, values: Values, contribution: int) -> Integers:
        """A contribution as it travels, int32[lanes].

        Args: values: float32[values], contiguous, unchanged; contribution: its number, from 0.
        """
        feedback = self.feedback
        if feedback:
            if self._residual is None:
                self._residual = np.zeros(self.values, np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                self._residual += values
            values = self._residual
        codes = self._magnitudes(values)
        units = np.where(codes < CODE_NOT_FINITE, packing.units, 0.0)
        lanes = np.zeros(packing.lanes, np.int32)
        seed = _stirred(packing.seed, contribution)
        with np.errstate(over="ignore"):
            self._kernels.pack(values, units, BLOCK, BASE, self.most, seed, feedback, lanes[: self._pairs])
        lane, place = divmod(contribution, CODES_PER_LANE)
        lanes[self._pairs + lane :: self._code_lanes] = codes << CODE_BITS * place
        return lanes

    def unpack(self, packing: Packing, sums: Integers, out: Values, scale: float = 1.0) -> list[int]:
        """Writes a sum, times `scale`, and learns from it.

        Args: sums: int32[lanes]; out: float32[values].
        Returns: contributions with a value that is not finite. If there are any, all of the sum is NaN.
        """
        self._number += 1
        self._is_open = False
        rows = sums[self._pairs :].reshape(self._blocks, self._code_lanes, 1)
        shifts = CODE_BITS * np.arange(CODES_PER_LANE)
        codes = (rows >> shifts & 0xFF).reshape(self._blocks, -1)
        bad = np.flatnonzero((codes == CODE_NOT_FINITE).any(axis=0))
        if len(bad):
            out[:] = np.nan
            self._residual = None  # it may be of that sum, which the program drops
            return [int(each) for each in bad]
        self._learn(codes.max(axis=1))
        with np.errstate(over="ignore"):
            self._kernels.unpack(sums[: self._pairs], packing.units, BLOCK, BASE, scale, out)
        return []

    def _magnitudes(self, values: Values) -> Numbers:
        codes = np.zeros(self._blocks, np.int64)
        self._kernels.magnitudes(values, BLOCK, codes)
        return codes

    def _learn(self, codes: Numbers) -> None:
        """A block that was zero keeps its unit."""
        shrunk = np.maximum(codes, np.maximum(self._codes - SHRINKING_BITS, 1))
        self._codes = np.where(codes > 0, shrunk, self._codes)


def _stirred(seed: int, contribution: int) -> np.uint64:
    """A seed of a contribution; neighbouring sums and contributions have unlike ones."""
    with np.errstate(over="ignore"):
        word = pair_kernels.mixed(np.uint64(seed))
        stirred: np.uint64 = pair_kernels.mixed(word + np.uint64(contribution) * np.uint64(0xD1B54A32D192ED03))
    return stirred
