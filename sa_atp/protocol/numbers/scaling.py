"""The power of two by which a chunk is scaled, chosen alike by all workers. (protocol section 6)

A chunk of values is sent as integers q = round(x * 2**e). All contributions to a sum must use the same exponent e, and
the sum must not overflow. Two ways lead to e:

  history   all workers have the last sum of a chunk, and derive the same exponent for its next sum from it (delayed
            scaling). This costs nothing, and is usually right.
  gather    without history, or when history was wrong, each contribution first sends the magnitude of its values in a
            *scale fragment*: contribution c writes into lane c, all others write zero there, so the sum is the list of
            all magnitudes. This costs one round trip, and is exact.

History is wrong when a value does not fit (its sender *poisons* the lane, which all see in the sum), or when the sum is
so small that its rounding error would matter. The chunk is then summed again with a gathered exponent: once, since that
one fits by construction.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sa_atp.basics.arrays import Addends

SUM_BITS = 30  # |sum| < 2**30; the bit above marks a poisoned lane
SUM_LIMIT = 1 << SUM_BITS
POISON = -(1 << 31)  # stays at or below -SUM_LIMIT whatever valid contributions are added; addition saturates

MIN_EXPONENT, MAX_EXPONENT = -126, 127  # the header has 8 signed bits; 2.0**127 is still a float32

# Headroom of delayed scaling: from one step to the next a contribution may grow to 2**3 times the previous sum's
# largest value before the chunk has to be summed again.
HEADROOM_BITS = 3

# A sum with so many bits fewer than its exponent was chosen for is done again with a gathered exponent, so that
# shrinking values do not drown in rounding errors.
COARSE_BITS = 7

# Steps between two gathers for a coarse sum, after one that did not help (contributions cancel one another).
PATIENCE = 16

# Magnitude codes of a scale fragment: the biased exponent of the largest absolute value, as in IEEE 754.
CODE_ZERO = 0
CODE_NOT_FINITE = 255
CODE_BITS = 8
CODES_PER_LANE = 3  # 24 bits, far below SUM_LIMIT


@lru_cache
def limit_bits(contributions: int) -> int:
    """The b for which contributions with |q| < 2**b have a sum below SUM_LIMIT."""
    return SUM_BITS - max(contributions - 1, 0).bit_length()


def magnitude_code(values: Addends) -> int:
    """The code of a chunk's largest absolute value.

    Returns: 0 for all zeros, 255 if a value is NaN or infinite, otherwise 1 to 254 with |x| < 2**(code - 126).
    """
    if values.size == 0:
        return CODE_ZERO
    largest = float(np.max(np.abs(values)))
    if not np.isfinite(largest):
        return CODE_NOT_FINITE
    if largest == 0.0:
        return CODE_ZERO
    return max(1, min(254, int(np.frexp(np.float32(largest))[1]) + 126))


def gathered_exponent(largest_code: int, contributions: int) -> int:
    """The exponent at which contributions of at most this magnitude fit exactly.

    |x| < 2**(code - 126), so q = x * 2**e stays below 2**limit for e = limit - (code - 126). Rounding may carry
    |q| to 2**limit itself, so one bit is left free.
    """
    exponent = limit_bits(contributions) - 1 - (largest_code - 126)
    return max(MIN_EXPONENT, min(MAX_EXPONENT, exponent))


def target_bits(contributions: int) -> int:
    """Bits that a sum's largest value should have under delayed scaling."""
    return limit_bits(contributions) - HEADROOM_BITS


@dataclass(slots=True)
class ChunkHistory:
    """Every worker's memory of one chunk: made by a gather, updated by every accepted sum."""

    exponent: int  # for the next step
    finest: int  # the last gathered exponent: the contributions' own magnitude does not allow more
    patience: int = 0  # steps until a coarse sum is worth another gather

    def too_coarse(self, used: int, largest: int, contributions: int) -> bool:
        """Whether a sum with this largest absolute value should be done again with a gathered exponent."""
        lost = target_bits(contributions) - largest.bit_length()
        return lost > COARSE_BITS and used < MAX_EXPONENT and self.patience == 0

    def after_sum(self, used: int, largest: int, contributions: int) -> None:
        """Learns from an accepted sum.

        Args: used: its exponent; largest: its largest absolute value, in quantised units.
        """
        self.patience = max(0, self.patience - 1)
        if largest:
            wanted = used + target_bits(contributions) - largest.bit_length()
            self.exponent = max(MIN_EXPONENT, min(wanted, self.finest - HEADROOM_BITS, MAX_EXPONENT))


def after_gather(exponent: int, largest: int, contributions: int) -> ChunkHistory:
    """The history after a sum at a gathered exponent."""
    lost = target_bits(contributions) - largest.bit_length() - HEADROOM_BITS
    return ChunkHistory(
        exponent=max(MIN_EXPONENT, exponent - HEADROOM_BITS),
        finest=exponent,
        patience=PATIENCE if lost > COARSE_BITS else 0,
    )


def after_zeros() -> ChunkHistory:
    """The history of a chunk whose contributions were all zero: at the finest exponent anything else is poison."""
    return ChunkHistory(exponent=MAX_EXPONENT, finest=MAX_EXPONENT + HEADROOM_BITS)
