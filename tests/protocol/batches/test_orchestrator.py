"""Decisions: the optimum where speeds are known, nothing for noise, again when speeds drift."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.protocol.batches.orchestrator import LEAST_MEASUREMENTS, Measured, Orchestrator
from sa_atp.protocol.batches.program import Share, makespan_s, solve
from sa_atp.protocol.batches.speed import PERSISTENT, WINDOW, Speed


def step(orchestrator: Orchestrator, speeds: list[Speed], slow: dict[int, float] | None = None) -> None:
    times = [speed.seconds(b) for speed, b in zip(speeds, orchestrator.sizes, strict=True)]
    found = [
        Measured(b, t * (slow or {}).get(worker, 1.0))
        for worker, (b, t) in enumerate(zip(orchestrator.sizes, times, strict=True))
    ]
    orchestrator.decide(found)


def test_equal_at_first() -> None:
    assert Orchestrator(4, 256).sizes == (64, 64, 64, 64)
    assert Orchestrator(3, 10).sizes == (4, 3, 3)
    assert Orchestrator(3, 24, granularity=8).sizes == (8, 8, 8)
    assert Orchestrator(2, 20, bounds=[(1, 4), (1, 20)], offsets_s=[9.0, 0.0]).sizes == (4, 16)


@settings(max_examples=40)
@given(st.lists(st.builds(Speed, st.floats(1e-3, 2e-2), st.floats(0.0, 0.05)), min_size=2, max_size=5))
def test_ends_at_the_optimum(speeds: list[Speed]) -> None:
    """... or less than a sample's time from it: sizes next to one another say too little of what a sample costs."""
    orchestrator = Orchestrator(len(speeds), 200, least_gain=0.0)
    for _ in range(12):
        step(orchestrator, speeds)
    shares = [Share(speed, 1, 200) for speed in speeds]
    best = makespan_s(shares, solve(shares, 200))
    assert makespan_s(shares, orchestrator.sizes) < best + max(speed.alpha_s for speed in speeds)


def test_nothing_changes_before_everybody_was_measured() -> None:
    orchestrator = Orchestrator(2, 64)
    for _ in range(10):
        orchestrator.decide([Measured(32, 0.1), None])
    assert orchestrator.sizes == (32, 32)
    for n in range(LEAST_MEASUREMENTS):
        assert orchestrator.sizes == (32, 32), n
        orchestrator.decide([None, Measured(32, 0.3)])
    assert orchestrator.sizes == (48, 16)


def test_noise_is_not_followed() -> None:
    rng = random.Random(5)
    orchestrator = Orchestrator(4, 256)
    for _ in range(60):
        orchestrator.decide([Measured(b, 0.003 * b * rng.uniform(0.9, 1.1)) for b in orchestrator.sizes])
    assert orchestrator.changes == 0


def test_a_gain_smaller_than_asked_for_is_left() -> None:
    speeds = [Speed(0.010), Speed(0.0103)]
    careful, eager = Orchestrator(2, 200), Orchestrator(2, 200, least_gain=0.0)
    for _ in range(6):
        step(careful, speeds)
        step(eager, speeds)
    assert careful.sizes == (100, 100)
    assert eager.sizes == (101, 99)


def test_dynamic_stragglers_change_no_sizes() -> None:
    speeds = [Speed(0.003), Speed(0.003), Speed(0.012)]
    orchestrator = Orchestrator(3, 90)
    rng = random.Random(2)
    for _ in range(WINDOW):
        step(orchestrator, speeds)
    sizes = orchestrator.sizes
    assert sizes == (40, 40, 10)
    for _ in range(20):  # a different one is slow in each step
        slow = rng.randrange(3)
        step(orchestrator, speeds, {slow: 5.0})
        assert orchestrator.sizes == sizes


def test_drift_is_followed() -> None:
    orchestrator = Orchestrator(2, 120)
    for _ in range(WINDOW):
        step(orchestrator, [Speed(0.002), Speed(0.002)])
    assert orchestrator.sizes == (60, 60)
    for _ in range(PERSISTENT):
        step(orchestrator, [Speed(0.002), Speed(0.004)])
    assert orchestrator.sizes == (80, 40)


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        ({"bounds": [(1, 10), (1, 10)]}, "take 2 to 20"),
        ({"bounds": [(1, 10)]}, "one for each of 2 workers"),
        ({"granularity": 7}, "units of 7"),
    ],
)
def test_infeasible(settings_: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Orchestrator(2, 64, **settings_)  # type: ignore[arg-type]


def test_measurements_of_another_number_of_workers() -> None:
    with pytest.raises(UserError, match="measurements of 1 workers"):
        Orchestrator(2, 64).decide([None])
    with pytest.raises(UserError, match="workers = 0"):
        Orchestrator(0, 64)


def test_ranks_of_one_process_share_decisions() -> None:
    ranks = [Orchestrator(3, 90) for _ in range(4)]
    asked = 0

    def measurements() -> list[Measured | None]:
        nonlocal asked
        asked += 1
        return [Measured(30, 0.1), Measured(30, 0.1), Measured(30, 0.4)]

    for step in range(5):
        assert len({rank.decide_once(step, measurements) for rank in ranks}) == 1
    assert asked == 5
    assert {rank.sizes for rank in ranks} == {(40, 40, 10)}


def test_ranks_with_other_measurements_do_not_share_decisions() -> None:
    one, other = Orchestrator(2, 60), Orchestrator(2, 60)
    for _ in range(4):
        one.decide([Measured(30, 0.1), Measured(30, 0.2)])
        other.decide([Measured(30, 0.2), Measured(30, 0.1)])
    assert (one.sizes, other.sizes) == ((40, 20), (20, 40))


def test_equal_sizes_are_worked_out_once_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counting(shares: Sequence[Share], batch: int, granularity: int = 1) -> tuple[int, ...]:
        solved.append(batch)
        return solve(shares, batch, granularity)

    monkeypatch.setattr("sa_atp.protocol.batches.orchestrator.solve", counting)
    sizes = {Orchestrator(7, 7 * 1013, offsets_s=[0.001 * rank] * 7).sizes for rank in range(7)}
    assert sizes == {(1013,) * 7}
    assert len(solved) <= 1
