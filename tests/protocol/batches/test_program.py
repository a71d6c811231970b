"""The integer program: both methods against each other, and against trying everything."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_atp.basics.errors import UserError
from sa_atp.protocol.batches.program import Share, check, makespan_s, solve
from sa_atp.protocol.batches.speed import Speed

speeds = st.builds(
    Speed,
    st.sampled_from([0.001, 0.002, 0.004, 0.01]) | st.floats(1e-4, 1e-1),
    st.just(0.0) | st.floats(0.0, 0.2),
)


@st.composite
def programs(draw: st.DrawFn, *, most_workers: int, most_batch: int) -> tuple[list[Share], int, int]:
    """(shares, batch, granularity) that can be dealt."""
    granularity = draw(st.sampled_from([1, 1, 2, 3]))
    shares, least, most = [], 0, 0
    for _ in range(draw(st.integers(1, most_workers))):
        low = granularity * draw(st.integers(0, 3))
        high = low + granularity * draw(st.integers(1, most_batch))
        shares.append(Share(draw(speeds), low, high, draw(st.just(0.0) | st.floats(0.0, 0.5))))
        least, most = least + low, most + high
    units = draw(st.integers(max(1, least // granularity), max(1, min(most, least + most_batch) // granularity)))
    return shares, granularity * units, granularity


def fits(shares: list[Share], sizes: tuple[int, ...], batch: int, granularity: int) -> bool:
    return sum(sizes) == batch and all(
        share.low <= size <= share.high and size % granularity == 0 for share, size in zip(shares, sizes, strict=True)
    )


def best_of_all(shares: list[Share], batch: int, granularity: int) -> list[float]:
    """Every way to deal; the times of its workers, slowest first."""
    ranges = [range(share.low, min(share.high, batch) + 1) for share in shares]
    return min(
        sorted((s.finish_s(b) for s, b in zip(shares, sizes, strict=True)), reverse=True)
        for sizes in itertools.product(*ranges)
        if fits(shares, sizes, batch, granularity)
    )


@settings(max_examples=150)
@given(programs(most_workers=3, most_batch=12))
def test_no_other_sizes_are_better(program: tuple[list[Share], int, int]) -> None:
    shares, batch, granularity = program
    sizes = solve(shares, batch, granularity)
    assert fits(shares, sizes, batch, granularity)
    assert makespan_s(shares, sizes) == best_of_all(shares, batch, granularity)[0]


@settings(max_examples=60)
@given(programs(most_workers=3, most_batch=10))
def test_no_other_sizes_are_better_for_the_workers_before_the_last(program: tuple[list[Share], int, int]) -> None:
    shares, batch, granularity = program
    sizes = solve(shares, batch, granularity)
    times = sorted((s.finish_s(b) for s, b in zip(shares, sizes, strict=True)), reverse=True)
    if all(share.low and not share.offset_s for share in shares):
        assert times == best_of_all(shares, batch, granularity)


def test_three_speeds() -> None:
    shares = [Share(Speed(0.01 / speed), 1, 1000) for speed in (1.0, 0.5, 0.2)]
    assert solve(shares, 170) == (100, 50, 20)
    assert makespan_s(shares, solve(shares, 170)) == 1.0


def test_a_worker_whose_fixed_cost_is_too_high_gets_nothing() -> None:
    shares = [Share(Speed(0.01), 0, 100), Share(Speed(0.001, beta_s=5.0), 0, 100)]
    assert solve(shares, 50) == (50, 0)
    assert solve(shares, 120) == (100, 20)  # as little as it can: it is the last in any case


def test_many_workers_take_little() -> None:
    shares = [Share(Speed(0.001 * (1 + worker % 7)), 1, 10_000, 0.001 * (worker % 3)) for worker in range(1024)]
    sizes = solve(shares, 65_536)
    assert fits(shares, sizes, 65_536, 1)
    last = makespan_s(shares, sizes)
    assert all(share.finish_s(size + 1) >= last for share, size in zip(shares, sizes, strict=True))


@pytest.mark.parametrize(
    ("bounds", "batch", "granularity", "says"),
    [
        ([(1, 10), (1, 10)], 21, 1, "take 2 to 20"),
        ([(8, 10), (8, 10)], 15, 1, "take 16 to 20"),
        ([(1, 10), (1, 10)], 15, 2, "cannot be dealt in units of 2"),
        ([(3, 3), (1, 10)], 8, 2, "no multiple of 2 is from 3 to 3"),
        ([(5, 4)], 4, 1, "expected 0 <= least <= most"),
        ([(-1, 4)], 4, 1, "expected 0 <= least <= most"),
        ([(1, 4)], 4, 0, "granularity = 0"),
        ([(1, 4)], 0, 1, "a global batch of 0"),
    ],
)
def test_batches_that_cannot_be_dealt(bounds: list[tuple[int, int]], batch: int, granularity: int, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        check(bounds, batch, granularity)
    assert "\n" not in str(refused.value)
