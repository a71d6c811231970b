"""Delayed scaling: everyone derives the same exponent, it usually fits, and it does not drown small values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.numbers.scaling import (
    COARSE_BITS,
    CODE_NOT_FINITE,
    CODE_ZERO,
    HEADROOM_BITS,
    MAX_EXPONENT,
    MIN_EXPONENT,
    PATIENCE,
    SUM_LIMIT,
    ChunkHistory,
    after_gather,
    after_zeros,
    gathered_exponent,
    limit_bits,
    magnitude_code,
    target_bits,
)

CONTRIBUTIONS = st.integers(1, 64)
EXPONENTS = st.integers(MIN_EXPONENT, MAX_EXPONENT)
SUMS = st.integers(0, SUM_LIMIT - 1)  # largest absolute values of sums that are not poisoned


@given(arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_a_code_bounds_the_largest_value_from_both_sides(values: np.ndarray) -> None:
    code = magnitude_code(values)
    largest = float(np.abs(values).max())
    if largest == 0.0:
        assert code == CODE_ZERO
        return
    assert 1 <= code <= 254
    assert largest < 2.0 ** (code - 126)
    assert code == 1 or largest >= 2.0 ** (code - 127)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_have_their_own_code(value: float) -> None:
    assert magnitude_code(np.array([1.0, value, 3e38], np.float32)) == CODE_NOT_FINITE


def test_codes_at_the_ends_of_float32() -> None:
    info = np.finfo(np.float32)
    assert magnitude_code(np.array([info.max], np.float32)) == 254
    assert magnitude_code(np.array([info.tiny], np.float32)) == 1
    assert magnitude_code(np.array([info.smallest_subnormal], np.float32)) == 1
    assert magnitude_code(np.zeros(0, np.float32)) == CODE_ZERO


@given(CONTRIBUTIONS)
def test_the_limit_leaves_room_for_all_contributions(contributions: int) -> None:
    assert contributions << limit_bits(contributions) <= SUM_LIMIT
    assert contributions << (limit_bits(contributions) + 1) > SUM_LIMIT  # and for no more than it must


@given(EXPONENTS, SUMS, CONTRIBUTIONS)
def test_exponents_stay_in_their_range(exponent: int, largest: int, contributions: int) -> None:
    for history in (after_gather(exponent, largest, contributions), after_zeros()):
        history.after_sum(exponent, largest, contributions)
        assert MIN_EXPONENT <= history.exponent <= MAX_EXPONENT


@given(st.integers(-60, 60), st.integers(1, 1 << 26), CONTRIBUTIONS, st.floats(0.0, 7.9))
def test_a_contribution_may_grow_to_almost_eight_times_the_last_sum(
    used: int, largest: int, contributions: int, growth: float
) -> None:
    history = after_gather(used, largest, contributions)
    history.after_sum(used, largest, contributions)
    value = np.array([growth * largest * 2.0**-used], np.float32)
    assert quantise([value], history.exponent, contributions, np.empty(1, np.int32)) == 0


@given(st.integers(-60, 60), st.integers(1, SUM_LIMIT - 1), CONTRIBUTIONS)
def test_the_same_sum_again_is_not_too_coarse(used: int, largest: int, contributions: int) -> None:
    """Once history has settled, steps whose sums stay as they are never pay for a gather."""
    history = ChunkHistory(exponent=used, finest=MAX_EXPONENT + HEADROOM_BITS)
    history.after_sum(used, largest, contributions)
    again = int(largest * 2.0 ** (history.exponent - used))
    assert not history.too_coarse(history.exponent, again, contributions)


@given(EXPONENTS, CONTRIBUTIONS)
def test_a_sum_that_lost_more_bits_than_allowed_is_done_again(used: int, contributions: int) -> None:
    history = ChunkHistory(exponent=used, finest=used)
    enough = 1 << (target_bits(contributions) - COARSE_BITS - 1)
    assert not history.too_coarse(used, enough, contributions)
    assert history.too_coarse(used, enough - 1, contributions) == (used < MAX_EXPONENT)


def test_after_a_gather_that_did_not_help_some_steps_pass_before_the_next() -> None:
    """Contributions that cancel one another: the sum is small, and no exponent would make it larger."""
    history = after_gather(10, 1, 4)
    assert history.patience == PATIENCE
    for _ in range(PATIENCE):
        assert not history.too_coarse(7, 1, 4)
        history.after_sum(7, 1, 4)
    assert history.too_coarse(7, 1, 4)


def test_a_history_never_asks_for_more_than_the_contributions_allow() -> None:
    """A small sum of large contributions does not lead to an exponent at which they would not fit."""
    largest_code = magnitude_code(np.array([1000.0], np.float32))
    finest = gathered_exponent(largest_code, 4)
    history = after_gather(finest, 3, 4)
    for _ in range(20):
        history.after_sum(history.exponent, 3, 4)
        assert quantise([np.array([1000.0], np.float32)], history.exponent, 4, np.empty(1, np.int32)) == 0


def test_after_zeros_anything_else_does_not_fit_and_zeros_do() -> None:
    history = after_zeros()
    out = np.empty(1, np.int32)
    assert quantise([np.ones(1, np.float32)], history.exponent, 2, out) == 1
    assert quantise([np.zeros(1, np.float32)], history.exponent, 2, out) == 0
    history.after_sum(history.exponent, 0, 2)
    assert history.exponent == MAX_EXPONENT
