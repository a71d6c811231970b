"""The speed model: outliers do not move it, drift does."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.protocol.batches.speed import PERSISTENT, SPREAD, WINDOW, SpeedModel


def fed(times: list[tuple[int, float]], **settings: float) -> SpeedModel:
    model = SpeedModel(**settings)  # type: ignore[arg-type]
    for samples, seconds in times:
        model.add(samples, seconds)
    return model


@given(st.floats(1e-5, 1.0), st.floats(0.0, 2.0), st.lists(st.integers(1, 500), min_size=2, max_size=16))
def test_a_line_is_found(alpha: float, beta: float, sizes: list[int]) -> None:
    model = fed([(b, alpha * b + beta) for b in sizes])
    assert model.speed is not None
    # sizes that are close to each other say nothing about the slope
    rel = 1e-6 if len(set(sizes)) == 1 or min(sizes) < (1 - SPREAD) * max(sizes) else SPREAD
    for b in sizes:
        assert model.speed.seconds(b) == pytest.approx(alpha * b + beta, rel=rel)
    if max(sizes) > 2 * min(sizes):
        assert model.speed.alpha_s == pytest.approx(alpha, rel=1e-3, abs=1e-9 * (alpha + beta))


def test_outliers_do_not_move_it() -> None:
    rng = random.Random(7)
    times = []
    for n in range(WINDOW):
        b = rng.choice([20, 40, 80])
        t = (0.003 * b + 0.05) * rng.uniform(0.98, 1.02)
        times.append((b, t * rng.uniform(2.0, 8.0) if n % 4 == 1 else t))
    speed = fed(times).speed
    assert speed is not None
    for b in (20, 40, 80):
        assert speed.seconds(b) == pytest.approx(0.003 * b + 0.05, rel=0.05)


def test_one_size_takes_the_prior() -> None:
    once = [(40, 0.2)] * 4
    without, with_prior = fed(once).speed, fed(once, prior_beta_s=0.08).speed
    assert without is not None
    assert with_prior is not None
    assert without.alpha_s == pytest.approx(0.005)
    assert without.beta_s == 0.0
    assert with_prior.alpha_s == pytest.approx(0.003)
    assert with_prior.beta_s == 0.08
    too_much = fed(once, prior_beta_s=5.0).speed
    assert too_much is not None
    assert too_much.seconds(40) == pytest.approx(0.2)
    assert too_much.alpha_s > 0.0


def test_invalid_measurements_are_ignored() -> None:
    model = fed([(0, 1.0), (5, 0.0), (5, -1.0), (5, float("inf")), (5, float("nan"))])
    assert model.speed is None
    assert model.measurements == 0


def test_a_dynamic_straggler_keeps_its_speed() -> None:
    model = fed([(40, 0.12)] * 12 + [(40, 0.6)])
    assert model.measurements == 13
    assert model.speed is not None
    assert model.speed.seconds(40) == pytest.approx(0.12)
    model.add(40, 0.12)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_new_speed_is_believed_after_a_few_steps(factor: float) -> None:
    model = fed([(40, 0.12)] * WINDOW)
    for n in range(PERSISTENT):
        assert model.measurements == WINDOW, n
        model.add(40, 0.12 * factor)
    assert model.measurements == PERSISTENT
    assert model.speed is not None
    assert model.speed.seconds(40) == pytest.approx(0.12 * factor)


def test_a_new_size_is_no_drift() -> None:
    """Batches of one size do not show the fixed cost."""
    model = fed([(40, 0.12)] * WINDOW + [(80, 0.2)] * PERSISTENT)
    assert model.measurements == WINDOW
    assert model.speed is not None
    assert model.speed.alpha_s == pytest.approx(0.002)
    assert model.speed.beta_s == pytest.approx(0.04)


def test_the_error_shrinks_with_measurements_and_grows_with_noise() -> None:
    def error(noise: float, count: int) -> float:
        """The mean over some seeds."""
        errors = []
        for seed in range(30):
            rng = random.Random(seed)
            speed = fed([(40, 0.12 * rng.uniform(1 - noise, 1 + noise)) for _ in range(count)]).speed
            assert speed is not None
            errors.append(speed.error)
        return sum(errors) / len(errors)

    assert error(0.2, 1) == 1.0
    assert error(0.01, 12) < error(0.1, 12) < error(0.3, 12)
    assert error(0.1, 16) < error(0.1, 4)


def test_a_window_too_short_for_drift() -> None:
    with pytest.raises(UserError, match="window = 5"):
        SpeedModel(window=5)
