"""Devices and stragglers as plans describe them: functions of the seed, with the distributions that they promise."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.steps.stragglers import LinkContention, StragglerPattern


def pattern(**fields: Any) -> StragglerPattern:
    defaults: dict[str, Any] = {
        "kind": "none", "workers": (), "slowdown": 4.0, "slowdown_range": (2.0, 8.0), "pause_us": 0, "every": 10,
        "seed": 1, "world_size": 4,
    }  # fmt: skip
    return StragglerPattern(**defaults | fields)


def test_speeds_are_relative_and_count_in_the_bound() -> None:
    devices = pattern(world_size=3, speeds=(1.0, 0.5, 0.2))
    assert [devices.slowdown_of(7, worker) for worker in range(3)] == [1.0, 2.0, 5.0]
    assert devices.fluid_bound_us(0, 100.0) == pytest.approx(3 * 100 / 1.7)
    slowed = pattern(kind="constant", workers=(1,), world_size=3, speeds=(1.0, 0.5, 0.2))
    assert [slowed.slowdown_of(0, worker) for worker in range(3)] == [1.0, 8.0, 5.0]
    assert slowed.fluid_bound_us(0, 100.0) == pytest.approx(3 * 100 / (1 + 1 / 8 + 0.2))


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=12))
def test_no_assignment_beats_the_bound(speeds: list[float]) -> None:
    """Dealing work in proportion to speed takes exactly that long; any other deal gives some worker more."""
    devices = pattern(world_size=len(speeds), speeds=tuple(speeds))
    bound = devices.fluid_bound_us(0, 1000.0)
    shares = [speed / sum(speeds) * len(speeds) * 1000.0 for speed in speeds]
    times = [share * devices.slowdown_of(0, worker) for worker, share in enumerate(shares)]
    assert times == pytest.approx([bound] * len(speeds))


def test_pauses_come_with_their_probability_and_length() -> None:
    paused = pattern(kind="random-pause", probability=0.16, pause_range=(0.5, 2.0), typical_us=64_000)
    found = np.array([[paused.pause_us_of(step, worker) for worker in range(4)] for step in range(2000)])
    assert (found > 0).mean() == pytest.approx(0.16, abs=0.01)
    lengths = found[found > 0]
    assert lengths.min() >= 32_000
    assert lengths.max() <= 128_000
    assert lengths.mean() == pytest.approx(80_000, rel=0.03)
    together = (found > 0).sum(axis=1)
    assert (together > 1).mean() == pytest.approx(1 - 0.84**4 - 4 * 0.16 * 0.84**3, abs=0.02)  # each for itself
    assert paused.slowdown_of(0, 0) == 1.0
    again = pattern(kind="random-pause", probability=0.16, pause_range=(0.5, 2.0), typical_us=64_000)
    assert [again.pause_us_of(s, 2) for s in range(99)] == found[:99, 2].tolist()
    other = pattern(kind="random-pause", probability=0.16, typical_us=64_000, seed=2)
    assert [other.pause_us_of(s, 2) for s in range(99)] != found[:99, 2].tolist()


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_pauses_never_and_always(probability: float, share: float) -> None:
    paused = pattern(kind="random-pause", probability=probability, typical_us=1000)
    assert np.mean([paused.pause_us_of(step, 0) > 0 for step in range(50)]) == share


def test_a_trace_says_who_is_slow_and_begins_anew() -> None:
    traced = pattern(kind="trace", trace=((0, 1, 3.0), (4, 2, 1.5), (4, 0, 0.5)), speeds=(1.0, 1.0, 0.5, 1.0))
    assert traced.slowdown_of(0, 1) == traced.slowdown_of(5, 1) == traced.slowdown_of(500, 1) == 3.0
    assert traced.slowdown_of(4, 2) == 3.0
    assert traced.slowdown_of(9, 0) == 0.5
    assert traced.slowdown_of(1, 1) == 1.0


@given(st.integers(0, 2**31 - 1), st.integers(0, 63))
def test_spells_follow_one_another_with_lengths_in_their_ranges(seed: int, worker: int) -> None:
    links = LinkContention(
        workers=(worker,), share=0.2, spell_us=(100_000, 400_000), calm_us=(200_000, 800_000), seed=seed
    )
    before = 0
    for start, end, share in islice(links.spells(worker), 50):
        assert share == 0.2
        assert 199_998 <= start - before <= 800_002
        assert 99_998 <= end - start <= 400_002
        before = end
    assert list(islice(links.spells(worker), 9)) == list(islice(links.spells(worker), 9))
    assert list(links.spells(worker + 1)) == []


@pytest.mark.parametrize("tail", [1.5, 3.0])
def test_a_tail_has_its_median_and_its_99th_percentile(tail: float) -> None:
    drawn = pattern(kind="tail", tail=tail, among=(1, 3))
    found = np.array([[drawn.slowdown_of(step, worker) for worker in range(4)] for step in range(10_000)])
    assert (found[:, [0, 2]] == 1.0).all()
    slow = found[:, [1, 3]]
    assert np.median(slow) == pytest.approx(1.0, rel=0.03)
    assert np.percentile(slow, 99) == pytest.approx(tail, rel=0.05)
    assert abs(np.corrcoef(slow.T)[0, 1]) < 0.05  # each for itself
    links = LinkContention(workers=(1,), share=0.2, tail=tail, spell_us=(9, 10), calm_us=(1, 2), seed=3)
    shares = np.array([share for _, _, share in islice(links.spells(1), 10_000)])
    assert shares.max() == 1.0
    assert np.percentile(1 / shares, 99) == pytest.approx(tail, rel=0.1)


def test_stall_points_are_of_some_workers_and_add_up() -> None:
    fields: dict[str, Any] = {"kind": "random-pause", "probability": 0.15, "typical_us": 64_000, "among": (1,)}
    once, often = pattern(**fields), pattern(**fields, points=3)
    found = {
        each.points: np.array([[each.pause_us_of(step, worker) for worker in range(4)] for step in range(5000)])
        for each in (once, often)
    }
    for points, pauses in found.items():
        assert (pauses[:, [0, 2, 3]] == 0).all()
        assert (pauses[:, 1] > 0).mean() == pytest.approx(1 - 0.85**points, abs=0.02)
        assert pauses.sum() / 5000 == pytest.approx(points * 0.15 * 1.25 * 64_000, rel=0.06)
    assert found[3].max() > 2 * 64_000 * 1.1


def test_one_of_some_workers_is_slow_in_each_step() -> None:
    drawn = pattern(kind="random", among=(0, 2))
    slow = {worker for step in range(50) for worker in range(4) if drawn.slowdown_of(step, worker) > 1}
    assert slow == {0, 2}
