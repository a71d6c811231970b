"""The contributions of ranks, and the reference for their sum, computed in 64 bits."""

from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Exponents, Values
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import JobScene
from sa_atp.protocol.rank.sums.operation import UNKNOWN

SHAPES = (("normal", 8), ("whole", 2), ("sparse", 2), ("spread", 2), ("opposite", 1), ("zeros", 1))
"""Distributions of values, with weights: "opposite" values cancel one another, "spread" ones differ by powers of two."""
MOST_MAGNITUDE = 120  # binary exponent of a value: a sum of 64 such values still fits float32
FLOAT_ERROR = 2.0**-24  # relative error of rounding a sum to float32
LEAST = 2.0**-140  # absolute error allowed near zero


def draw_contributions(seed: int, number: int, job: JobScene, step: int) -> list[Values]:
    """float32[values] of each contribution to a sum. Args: seed: the world's seed; number: the job's number in it."""
    rng = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32, number, step])
    count, length, shape = job.contributions, job.values(step), job.shapes[step]
    values = rng.standard_normal((count, length))
    if shape == "whole":
        values = np.rint(16 * values)
    elif shape == "sparse":
        values *= rng.random((count, length)) < 0.1
        values[rng.random(count) < 0.3] = 0
    elif shape == "spread":
        values = np.ldexp(values, rng.integers(-20, 20, (count, length)))
    elif shape == "opposite":
        values[1::2] = -values[: 2 * (count // 2) : 2]
    elif shape == "zeros":
        values[:] = 0
    found = np.ldexp(values, min(job.magnitudes[step], MOST_MAGNITUDE - 24)).astype(np.float32)
    if job.not_finite is not None and job.not_finite[0] == step:
        found[job.not_finite[1] * job.micro_batches, length // 2] = np.nan
    return list(found)


@dataclass(slots=True)
class Reference:
    """The reference for a sum with given exponents: its integers, the exact sum of the values, and the error allowed."""

    integers: np.ndarray
    """int64[values]"""
    exact: np.ndarray
    """float64[values]"""
    bound: np.ndarray
    """float64[values]"""


def reference(parts: list[Values], exponents: Exponents) -> Reference:
    """Computes the reference. Args: exponents: one for each value. Raises: Broken: a value does not fit its exponent."""
    wide = np.array(parts, np.float64)
    was_sent = exponents != UNKNOWN
    if wide[:, ~was_sent].any():
        raise Broken("sum", "a chunk was sent as zeros, and has other values")
    limit = 2.0 ** (30 - (len(parts) - 1).bit_length())  # protocol section 6.1
    powers = np.where(was_sent, exponents, 0).astype(np.int64)
    rounded = np.rint(np.ldexp(wide, powers))
    too_large = np.flatnonzero((np.abs(rounded) >= limit).any(axis=0))
    if len(too_large):
        at = int(too_large[0])
        raise Broken("sum", f"value {at} overflows with exponent {powers[at]}, and was accepted")
    exact = wide.sum(axis=0)
    bound = np.where(was_sent, np.ldexp(float(len(parts)), -(powers + 1)), 0.0)
    return Reference(rounded.astype(np.int64).sum(axis=0), exact, bound + np.abs(exact) * FLOAT_ERROR + LEAST)
