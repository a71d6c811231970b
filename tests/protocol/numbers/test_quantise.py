"""float32 to integers and back: the error bound, poison, and sums that do not depend on who added what first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sa_atp.protocol.numbers.quantise import dequantise, largest, poisoned, quantise, saturating_add
from sa_atp.protocol.numbers.scaling import (
    MAX_EXPONENT,
    POISON,
    SUM_LIMIT,
    gathered_exponent,
    limit_bits,
    magnitude_code,
)

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
CONTRIBUTIONS = st.integers(1, 64)


def vectors(
    n: st.SearchStrategy[int] | int, elements: st.SearchStrategy[float] = FINITE
) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float32, n, elements=elements)


def shards(most: int = 6) -> st.SearchStrategy[list[np.ndarray]]:
    """Some contributions of one length, with values of every magnitude that float32 has."""
    return st.integers(1, 40).flatmap(lambda n: st.lists(vectors(n), min_size=1, max_size=most))


def exponent_for(parts: list[np.ndarray]) -> int:
    """The exponent that a gather would choose."""
    return gathered_exponent(max(magnitude_code(part) for part in parts), len(parts))


def rounded(parts: list[np.ndarray], exponent: int, contributions: int) -> tuple[np.ndarray, int]:
    out = np.empty(parts[0].size, np.int32)
    bad = quantise(parts, exponent, contributions, out)
    return out, bad


@given(shards())
def test_the_error_of_a_sum_is_at_most_half_a_unit_for_each_contribution(parts: list[np.ndarray]) -> None:
    exponent = exponent_for(parts)
    total = np.zeros(parts[0].size, np.int64)
    for part in parts:
        out, bad = rounded([part], exponent, len(parts))
        assert bad == 0
        total += out
    assert np.abs(total).max() < SUM_LIMIT
    exact = np.sum(np.array(parts, np.float64), axis=0)
    error = np.abs(total * 2.0**-exponent - exact)
    assert (error <= len(parts) * 2.0 ** -(exponent + 1) + np.abs(exact) * 2.0**-52).all()


@given(st.lists(vectors(8, st.integers(-(2**20), 2**20).map(float)), min_size=1, max_size=64))
def test_sums_of_integers_are_exact(parts: list[np.ndarray]) -> None:
    """Where every x * 2**e is an integer there is no error at all."""
    out, bad = rounded(parts, 0, len(parts))
    assert bad == 0
    assert np.array_equal(out, np.sum(np.array(parts, np.int64), axis=0))
    back = np.empty(8, np.float32)
    dequantise(out, 0, back)
    assert np.array_equal(back, out.astype(np.float32))


@given(shards(), st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_order_or_grouping(parts: list[np.ndarray], rng: object) -> None:
    exponent = exponent_for(parts)
    alone = sum(rounded([part], exponent, len(parts))[0].astype(np.int64) for part in parts)
    shuffled = list(parts)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(parts) // 2
    total = np.zeros(parts[0].size, np.int64)
    for group in (shuffled[:cut], shuffled[cut:]):
        if group:
            total += rounded(group, exponent, len(parts))[0]
    assert np.array_equal(total, alone)


@given(vectors(st.integers(1, 40)), CONTRIBUTIONS)
def test_a_gathered_exponent_fits_and_wastes_at_most_two_bits(values: np.ndarray, contributions: int) -> None:
    code = magnitude_code(values)
    exponent = gathered_exponent(code, contributions)
    out, bad = rounded([values], exponent, contributions)
    assert bad == 0
    assert largest(out) < 1 << limit_bits(contributions)
    if code > 0 and exponent < MAX_EXPONENT:
        assert largest(out) >= 1 << (limit_bits(contributions) - 2)


@given(CONTRIBUTIONS)
def test_as_many_contributions_as_there_are_stay_below_the_limit(contributions: int) -> None:
    """The largest integers that are not poisoned, all with the same sign."""
    most = np.float32(np.nextafter(np.float32(1 << limit_bits(contributions)), np.float32(0)))
    for value in (most, -most):
        out, bad = rounded([np.array([value], np.float32)] * contributions, 0, contributions)
        assert bad == 0
        assert not poisoned(largest(out))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**28, -(2.0**28)])
def test_values_that_do_not_fit_are_poisoned_and_the_rest_are_not(value: float) -> None:
    values = np.array([1.0, value, -2.0], np.float32)
    out, bad = rounded([values], 0, 4)
    assert bad == 1
    assert out.tolist() == [1, POISON, -2]


def test_poison_in_one_of_several_parts_poisons_their_sum() -> None:
    good = np.array([1.0, 2.0, 3.0], np.float32)
    out, bad = rounded([good, np.array([1.0, np.nan, np.inf], np.float32), good], 4, 8)
    assert bad == 2
    assert out.tolist() == [48, POISON, POISON]


def test_a_value_that_overflows_when_scaled_is_poisoned_without_a_warning() -> None:
    out, bad = rounded([np.array([1e30, 1e-30], np.float32)], 127, 2)
    assert bad == 1
    assert out[0] == POISON
    assert out[1] == round(float(np.float32(1e-30)) * 2.0**127)


@given(st.data(), CONTRIBUTIONS)
def test_poison_survives_whatever_honest_contributions_are_added(data: st.DataObject, contributions: int) -> None:
    """In any order and grouping, with any number of poisoned lanes: the sum is recognised as poisoned."""
    top = (1 << limit_bits(contributions)) - 1
    lanes = data.draw(st.lists(st.integers(-top, top), max_size=contributions - 1), label="honest")
    poison = data.draw(st.integers(1, contributions - len(lanes)), label="poisoned")
    order = data.draw(st.permutations([*lanes, *[POISON] * poison]), label="order")
    cut = data.draw(st.integers(0, len(order)), label="grouping")
    groups = []
    for group in (order[:cut], order[cut:]):
        total = np.zeros(1, np.int32)
        for lane in group:
            total = saturating_add(total, np.array([lane], np.int32))
        groups.append(total)
    total = saturating_add(*groups)
    assert poisoned(largest(total))
    assert total[0] <= -SUM_LIMIT


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2))
def test_saturating_add_stops_at_the_ends(pair: list[int]) -> None:
    a, b = (np.array([v], np.int32) for v in pair)
    assert saturating_add(a, b)[0] == max(-(2**31), min(2**31 - 1, sum(pair)))


def test_lanes_beyond_the_values_are_zero() -> None:
    out = np.full(8, 77, np.int32)
    quantise([np.ones(3, np.float32)], 2, 2, out)
    assert out.tolist() == [4, 4, 4, 0, 0, 0, 0, 0]


@given(st.integers(-(2**30) + 1, 2**30 - 1), st.integers(-126, 127))
def test_dequantise_is_exact_up_to_the_precision_of_float32(integer: int, exponent: int) -> None:
    out = np.empty(1, np.float32)
    dequantise(np.array([integer], np.int32), exponent, out)
    with np.errstate(over="ignore"):
        assert out[0] == np.float32(integer * 2.0**-exponent)


def test_a_sum_beyond_float32_is_infinite_as_in_float32_arithmetic() -> None:
    parts = [np.full(2, 3e38, np.float32)] * 4
    exponent = exponent_for(parts)
    out, bad = rounded(parts, exponent, 4)
    assert bad == 0
    values = np.empty(2, np.float32)
    dequantise(out, exponent, values)
    assert values.tolist() == [np.inf, np.inf]


def test_largest_of_nothing_and_of_the_most_negative() -> None:
    assert largest(np.zeros(0, np.int32)) == 0
    assert largest(np.array([5, -(2**31)], np.int32)) == 2**31
