"""The arithmetic of sums on flows: exact sums, and scales that are predicted, or gathered again if they do not fit."""

import numpy as np
import pytest

from sa_atp.basics.arrays import Values
from sa_atp.lab.flow.sums import Adder
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.protocol.packets.contributions import ContributionMap

MAP = ContributionMap(3, 2)


def parts(scale: float, seed: int = 1, values: int = 40_000) -> dict[int, Values]:
    rng = np.random.default_rng(seed)
    return {c: (scale * rng.standard_normal(values)).astype(np.float32) for c in range(6)}


def test_sums_are_those_of_the_values() -> None:
    adder = Adder(40_000, MAP, 256)
    for seed in range(4):
        given = parts(1.0, seed)
        total = adder.add(seed, given)
        exact = np.sum([part.astype(np.float64) for part in given.values()], axis=0)
        unit = 2.0 ** -float(total.exponents.min())
        assert np.abs(total.values - exact).max() <= 6 * unit
        assert total.redone == 0


def test_a_scale_that_does_not_fit_is_gathered_anew() -> None:
    adder = Adder(40_000, MAP, 256)
    adder.add(0, parts(1e-3))
    grown = adder.add(1, parts(1.0))
    assert grown.redone == 3  # all chunks
    assert np.isfinite(grown.values).all()
    assert adder.add(2, parts(1.0)).redone == 0


def test_zeros_and_values_that_are_not_finite() -> None:
    adder = Adder(10, MAP, 256)
    nothing = {c: np.zeros(10, np.float32) for c in range(6)}
    assert not adder.add(0, nothing).values.any()
    bad = {**nothing, 3: np.full(10, np.nan, np.float32)}
    with pytest.raises(NonFiniteError, match="rank 1"):
        adder.add(1, bad)
