"""Two values in a lane: the loops of pairs.py, which net/loop compiles where speed counts. (protocol section 6.5)

They are written for numba, as rank/compiled/kernels.py is, and run without it, slowly. Arrays are C-contiguous.
"""

from typing import Any

import numpy as np


def mixed(word: Any) -> Any:
    """64 bits that look random, the same for the same word: the finaliser of SplitMix64. Args: word: uint64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def rounded(value: Any, most: int, chance: Any) -> int:
    """A multiple of the unit at random, of the two that are nearest: the expected value is the value, up to the limits.

    Args: value: float64, in units; most: the largest magnitude; chance: float64, uniform in [0, 1).
    """
    return int(np.floor(min(max(value, -float(most)), float(most)) + chance))


def magnitudes(values: Any, block: int, codes: Any) -> None:
    """Writes the magnitude code of each block, see scaling.magnitude_code.

    Args: values: float32[values]; block: values of a block; codes: int64[blocks].
    """
    bits = values.view(np.int32)
    for b in range(codes.size):
        top = np.int32(0)
        for i in range(b * block, min((b + 1) * block, bits.size)):
            top = max(top, bits[i] & np.int32(0x7FFFFFFF))  # floats without sign have the order of their bits
        codes[b] = max(np.int64(top) >> 23, np.int64(top != 0))


def pack(values: Any, units: Any, block: int, base: int, most: int, seed: Any, keep: bool, lanes: Any) -> None:
    """Rounds each value to a multiple of its block's unit, and writes two values into each lane.

    Args:
        values: float32[values]. units: float64[blocks]; 0: the block travels as zeros.
        block: values of a block, an even number. base: the factor of a lane's upper value.
        most: the largest magnitude, in units.
        seed: uint64; rounding is a function of it and of the lane.
        keep: whether the difference between a value and what travels of it replaces the value.
        lanes: int32[values / 2, rounded up].
    """
    for b in range(units.size):
        unit = units[b]
        inverse = 1.0 / unit if unit > 0.0 else 0.0
        for i in range(b * block // 2, min((b + 1) * block // 2, lanes.size)):
            word = mixed(np.uint64(seed) + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15))
            upper, lower = 0, 0
            if unit > 0.0:
                value = np.float64(values[2 * i])
                upper = rounded(value * inverse, most, np.float64(word >> np.uint64(32)) * 2.0**-32)
                if keep:
                    values[2 * i] = np.float32(value - upper * unit)
                if 2 * i + 1 < values.size:
                    value = np.float64(values[2 * i + 1])
                    chance = np.float64(word & np.uint64(0xFFFFFFFF)) * 2.0**-32
                    lower = rounded(value * inverse, most, chance)
                    if keep:
                        values[2 * i + 1] = np.float32(value - lower * unit)
            lanes[i] = np.int32(upper * base + lower)


def unpack(lanes: Any, units: Any, block: int, base: int, scale: float, out: Any) -> None:
    """Writes the values that sums of lanes stand for, times `scale`.

    Args: lanes: int32[values / 2, rounded up]; units: float64[blocks]; block, base: see `pack`; out: float32[values].
    """
    half = base // 2  # the largest magnitude of a sum's upper and lower value
    inverse = 1.0 / base
    for b in range(units.size):
        unit = units[b] * scale
        for i in range(b * block // 2, min((b + 1) * block // 2, lanes.size)):
            above = np.int64(lanes[i]) + half * (base + 1)  # not negative
            upper = np.int64((above + 0.5) * inverse)  # division by multiplication: 0.5 is more than its error
            out[2 * i] = np.float32((upper - half) * unit)
            if 2 * i + 1 < out.size:
                out[2 * i + 1] = np.float32((above - upper * base - half) * unit)
