"""float32 to int32 and back, by a power of two. (protocol section 6.1)

Scaling by a power of two is exact, so the only error is the rounding of each contribution to an integer: at most half a
unit, 2**-(e+1), for each; the sum of n contributions is off by at most n * 2**-(e+1), and not at all where every x *
2**e is an integer. Sums of integers do not depend on their order or grouping.
"""

from collections.abc import Sequence

import numpy as np

from sa_atp.basics.arrays import Addends, Integers, Mask, Values
from sa_atp.protocol.numbers.scaling import POISON, SUM_LIMIT, limit_bits


def quantise(parts: Sequence[Addends], exponent: int, contributions: int, out: Integers) -> int:
    """Rounds each part to integers and writes their sum.

    Args:
        parts: one float32[n] for each contribution in this packet. They are rounded one by one, so that the sum does
            not depend on which worker computed which contribution.
        exponent: every value is multiplied by 2**exponent. It is 0 for whole numbers, int32[n], which stay as they are;
            only their sum has a limit.
        contributions: how many contributions the complete sum will have; decides the limit of each value.
        out: int32[n], or more: lanes beyond n are set to zero.

    Returns: how many lanes were poisoned because a value is too large for the exponent, or not finite.
    """
    n = parts[0].size
    scale = np.float32(2.0**exponent)
    whole = parts[0].dtype == np.int32
    limit = np.float32(SUM_LIMIT if whole else 1 << limit_bits(contributions))
    bad: Mask | None = None
    for k, part in enumerate(parts):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = part * scale
        np.rint(scaled, out=scaled)
        fits = np.abs(scaled) < limit  # False for NaN
        if not fits.all():
            bad = ~fits if bad is None else bad | ~fits
            scaled[~fits] = 0
        if k == 0:
            out[:n] = scaled
        else:
            out[:n] += scaled.astype(np.int32)
    out[n:] = 0
    if bad is None:
        return 0
    out[:n][bad] = POISON
    return int(bad.sum())


def dequantise(sums: Integers, exponent: int, out: Values) -> None:
    """Converts sums back to values, sums / 2**exponent.

    Args: out: float32, as long as `sums`. An integer beyond 2**24 is rounded to the nearest float32; the scaling is
        exact.
        A value that float32 cannot hold becomes infinite.
    """
    with np.errstate(over="ignore"):
        np.multiply(sums, np.float64(2.0**-exponent), out=out, casting="unsafe")


def multiply(out: Values, factor: float) -> None:
    """Multiplies values by a factor, in float32 and in place."""
    if factor != 1.0:
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(out, np.float32(factor), out=out)


def largest(sums: Integers) -> int:
    """The largest absolute value; 0 if there is none."""
    if sums.size == 0:
        return 0
    return max(int(sums.max()), -int(sums.min()))


def poisoned(largest_value: int) -> bool:
    """Whether a sum with this largest absolute value has a poisoned lane."""
    return largest_value >= SUM_LIMIT


def saturating_add(sums: Integers, more: Integers) -> Integers:
    """Addition that saturates at the ends of int32, as in the switch."""
    wide = sums.astype(np.int64) + more
    np.clip(wide, -(1 << 31), (1 << 31) - 1, out=wide)
    narrow: Integers = wide.astype(np.int32)
    return narrow
