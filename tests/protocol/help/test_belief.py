"""Properties of what is believed of times to come."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.belief import REMEMBERED, Due, Forecast

TIMES = st.floats(0, 1e7)
SPREADS = st.floats(1, 1e6)


@given(TIMES, SPREADS, TIMES, st.floats(0, 1e6))
def test_waiting_in_vain_never_brings_the_end_nearer(
    at_us: float, spread_us: float, now_us: float, more: float
) -> None:
    due = Due(at_us, spread_us)
    assert due.expected_us(now_us + more) >= due.expected_us(now_us) - 1e-3
    assert due.expected_us(now_us) >= now_us
    # before it is due its expected time does not move; after that it moves twice as fast as time
    if now_us + more <= at_us:
        assert due.expected_us(now_us + more) == due.expected_us(now_us) == pytest.approx(due.mean_us)
    if now_us >= at_us:
        assert due.expected_us(now_us + more) - due.expected_us(now_us) == pytest.approx(2 * more, abs=1e-2)


@given(TIMES, SPREADS, TIMES, st.floats(0, 1e7), st.floats(0, 1e6))
def test_chances_are_chances(at_us: float, spread_us: float, now_us: float, then_us: float, more: float) -> None:
    due = Due(at_us, spread_us)
    assert 0 <= due.chance_after(then_us + more, now_us) <= due.chance_after(then_us, now_us) <= 1
    # news that it has not arrived makes a later arrival more likely
    assert due.chance_after(then_us, now_us + more) >= due.chance_after(then_us, now_us) - 1e-9


@given(st.floats(0, 1e5), st.floats(100, 1e4), st.floats(0, 2e5))
def test_the_expectation_is_the_integral_of_the_tail(at_us: float, spread_us: float, now_us: float) -> None:
    due = Due(at_us, spread_us)
    floor_us = max(now_us, at_us)
    copy_us = floor_us + 3 * spread_us
    steps = 2_000
    width = (copy_us - floor_us) / steps
    integral = sum(due.chance_after(floor_us + (n + 0.5) * width, now_us) * width for n in range(steps))
    assert due.copied_is_expected_us(copy_us, now_us) - floor_us == pytest.approx(integral, rel=1e-3)


@given(TIMES, SPREADS, TIMES, st.floats(0, 1e7))
def test_a_copy_saves_what_it_can(at_us: float, spread_us: float, now_us: float, copy_us: float) -> None:
    due, copy_us = Due(at_us, spread_us), max(copy_us, now_us)
    saves_us = due.copy_saves_us(copy_us, now_us)
    assert saves_us >= -1e-3
    assert saves_us <= due.expected_us(now_us) - now_us + 1e-3
    # a later copy saves less, one that never comes nothing
    assert due.copy_saves_us(copy_us + 1_000, now_us) <= saves_us + 1e-3
    assert due.copy_saves_us(1e15, now_us) < 1e-4 * (spread_us + now_us) ** 2 / 1e7 + 1


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20))
def test_a_forecast_lies_among_what_was_seen(took: list[float]) -> None:
    assert Forecast().mean_us is None
    forecast = Forecast()
    for each in took:
        forecast.note(each)
    recent = took[-REMEMBERED:]
    assert forecast.mean_us is not None
    assert min(recent) <= forecast.mean_us <= max(recent)
    assert math.isfinite(forecast.error_us)
    assert forecast.error_us <= max(took) - min(took)


def test_one_slow_step_moves_no_forecast() -> None:
    forecast = Forecast()
    for took_us in (12.0, 12.0, 48.0, 12.0):
        forecast.note(took_us)
        assert forecast.mean_us == 12.0
    assert forecast.error_us == 18.0  # half of the error of the slow step is remembered
    for _ in range(3):
        forecast.note(48.0)
    assert forecast.mean_us == 48.0


def test_newer_news_of_a_step_replaces_older() -> None:
    forecast = Forecast()
    forecast.note(10.0)
    forecast.note(30.0, is_new_step=False)
    assert forecast.mean_us == 30.0
