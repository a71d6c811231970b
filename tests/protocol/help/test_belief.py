"""Properties of what is believed of times to come."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.belief import REMEMBERED, Forecast


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
