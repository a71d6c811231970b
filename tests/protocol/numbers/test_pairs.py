"""Two values in a lane: sums that are exact, rounding that is unbiased, units that all ranks know, and what is not lost."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.net.loop.compiled import pair_kernels
from sa_atp.protocol.numbers import pair_kernels as plain
from sa_atp.protocol.numbers.pairs import BASE, BLOCK, EXACT_SUMS, LARGEST_SUM, Packing, PairCodec
from sa_atp.protocol.numbers.scaling import SUM_LIMIT, magnitude_code

SEEDS = st.integers(0, 2**32 - 1)


def codecs(values: int, ranks: int, *, feedback: bool = True, seed: int = 0) -> list[PairCodec]:
    return [PairCodec(values, ranks, seed=seed, feedback=feedback, kernels=pair_kernels()) for _ in range(ranks)]


def prepare(codecs: list[PairCodec], parts: list[Values]) -> None:
    """Brings codecs past the sums with 32 bits, of these contributions."""
    for _ in range(EXACT_SUMS):
        for codec in codecs:
            assert codec.next_sum() is None
            codec.after_exact(np.sum(parts, axis=0, dtype=np.float32))


def packing_of(codecs: list[PairCodec]) -> Packing:
    """What the next sum travels by, the same on every rank."""
    first, *others = [codec.next_sum() for codec in codecs]
    assert first is not None
    for other in others:
        assert other is not None
        assert (other.seed, other.lanes, other.units.tobytes()) == (first.seed, first.lanes, first.units.tobytes())
    return first


def summed(codecs: list[PairCodec], parts: list[Values], scale: float = 1.0) -> tuple[Values, Packing]:
    """The sum of one contribution of each rank, as the switch adds it; all ranks decode the same."""
    packing = packing_of(codecs)
    lanes = [codec.pack(packing, part, rank) for rank, (codec, part) in enumerate(zip(codecs, parts, strict=True))]
    total = np.array(lanes, np.int64).sum(axis=0)
    assert np.abs(total).max() < SUM_LIMIT
    outs = [np.empty(codecs[0].values, np.float32) for _ in codecs]
    for codec, out in zip(codecs, outs, strict=True):
        assert codec.unpack(packing, total.astype(np.int32), out, scale) == []
        assert out.tobytes() == outs[0].tobytes()
    return outs[0], packing


def unit_of_each(packing: Packing, values: int) -> np.ndarray:
    return np.repeat(packing.units, BLOCK)[:values]


@given(st.integers(1, 64), st.data())
def test_packed_sums_are_the_sums_of_what_was_packed(ranks: int, data: st.DataObject) -> None:
    """Also where all are as large as they may be."""
    most = LARGEST_SUM // ranks
    numbers = data.draw(
        arrays(np.int64, (ranks, 7), elements=st.integers(-most, most) | st.sampled_from([-most, most]))
    )
    lanes = np.zeros((ranks, 4), np.int32)
    for row, out in zip(numbers.astype(np.float32), lanes, strict=True):
        pair_kernels().pack(row, np.ones(1), BLOCK, BASE, most, np.uint64(1), False, out)
    total = lanes.sum(axis=0, dtype=np.int64)
    assert np.abs(total).max() < SUM_LIMIT
    found = np.empty(7, np.float32)
    pair_kernels().unpack(total.astype(np.int32), np.ones(1), BLOCK, BASE, 1.0, found)
    assert found.astype(np.int64).tolist() == numbers.sum(axis=0).tolist()


@given(st.integers(-LARGEST_SUM, LARGEST_SUM), st.integers(-LARGEST_SUM, LARGEST_SUM))
def test_any_two_sums_can_be_told_from_their_lane(upper: int, lower: int) -> None:
    found = np.empty(2, np.float32)
    pair_kernels().unpack(np.array([upper * BASE + lower], np.int32), np.ones(1), BLOCK, BASE, 1.0, found)
    assert found.tolist() == [upper, lower]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), SEEDS)
def test_compiled_loops_are_the_plain_ones(blocks: int, values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = 4
    made = (rng.standard_normal(min(values, blocks * block)) * 10.0 ** rng.integers(-30, 30)).astype(np.float32)
    made[rng.integers(made.size)] = rng.choice([0.0, np.nan, np.inf, 1e-42, 3.4e38])
    count = -(-made.size // block)
    outcomes = []
    for kernels in (plain, pair_kernels()):
        codes, lanes, given_ = np.zeros(count, np.int64), np.zeros(-(-made.size // 2), np.int32), made.copy()
        kernels.magnitudes(given_, block, codes)
        units = np.where(codes < 255, np.ldexp(1e-3, np.maximum(codes, 1) - 126), 0.0)
        with np.errstate(over="ignore"):
            kernels.pack(given_, units, block, BASE, LARGEST_SUM // 3, np.uint64(seed), True, lanes)
        found = np.empty(made.size, np.float32)
        kernels.unpack(lanes, units, block, BASE, 0.5, found)
        outcomes.append((codes.tolist(), lanes.tobytes(), given_.tobytes(), found.tobytes()))
    assert outcomes[0] == outcomes[1]


@given(arrays(np.float32, st.integers(1, 9), elements=st.floats(width=32)))
def test_magnitudes_are_those_of_a_gather(values: Values) -> None:
    codes = np.zeros(1, np.int64)
    plain.magnitudes(values, BLOCK, codes)
    assert codes[0] == magnitude_code(values)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), SEEDS, st.booleans())
def test_a_sum_is_off_by_less_than_a_unit_for_each_contribution(ranks: int, seed: int, feedback: bool) -> None:
    rng = np.random.default_rng(seed)
    values = int(rng.integers(1, 3 * BLOCK))
    parts = list((rng.standard_normal((ranks, values)) * np.logspace(-3, 3, values)).astype(np.float32))
    of = codecs(values, ranks, feedback=feedback, seed=seed)
    prepare(of, [np.abs(part) for part in parts])
    found, packing = summed(of, parts)
    exact = np.sum(parts, axis=0, dtype=np.float64)
    assert (np.abs(found - exact) <= ranks * unit_of_each(packing, values) * 1.001 + 1e-6 * np.abs(exact)).all()


def test_rounding_is_unbiased_and_a_function_of_what_it_says() -> None:
    values = np.linspace(-1.0, 1.0, 101, dtype=np.float32)
    total = np.zeros(101)
    turns = 4000
    codec = PairCodec(101, 64, seed=5, feedback=False, kernels=pair_kernels())
    prepare([codec], [values])
    for _ in range(turns):
        packing = packing_of([codec])
        lanes, out = codec.pack(packing, values, 3), np.empty(101, np.float32)
        assert codec.pack(packing, values, 3).tobytes() == lanes.tobytes()  # whoever packs it
        assert codec.pack(packing, values, 4).tobytes() != lanes.tobytes()
        assert codec.unpack(packing, lanes, out) == []
        total += out
    unit = packing.units[0]
    error = np.abs(total / turns - values)
    assert error.max() < 5 * unit * 0.5 / np.sqrt(turns)
    assert np.abs(values / unit - np.rint(values / unit)).max() > 0.4, "there is something to round"
    again = [
        PairCodec(101, 64, seed=seed, key=key, kernels=pair_kernels()) for seed, key in ((5, None), (6, None), (5, "a"))
    ]
    prepare(again, [values])
    drawn = []
    for other in again:
        drawn.append(other.pack(packing_of([other]), values, 3).tobytes())
    assert len({*drawn}) == 3


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), SEEDS)
def test_with_error_feedback_nothing_is_lost(ranks: int, seed: int) -> None:
    """Whatever gradients do, the sum of all sums is that of all gradients, but for what the last step has left over."""
    rng = np.random.default_rng(seed)
    values = int(rng.integers(1, 2 * BLOCK))
    of = codecs(values, ranks, seed=seed)
    first = list(rng.standard_normal((ranks, values)).astype(np.float32))
    prepare(of, first)
    given_, got, largest = np.zeros(values), np.zeros(values), 1.0
    for step in range(12):
        # a gradient that jumps is cut off, and is there some steps later
        size = 10.0 ** rng.integers(-3, 4) if step < 6 else 1e-3
        parts = list((rng.standard_normal((ranks, values)) * size).astype(np.float32))
        largest = max(largest, *(float(np.abs(part).max()) for part in parts))
        found, packing = summed(of, parts)
        got += found
        given_ += np.sum(parts, axis=0, dtype=np.float64)
    rounding = 12 * ranks * 2e-7 * largest * 12
    assert np.abs(got - given_).max() <= ranks * packing.units.max() * 1.001 + rounding


def test_a_value_that_is_cut_off_comes_with_the_next_sum() -> None:
    of = codecs(10, 2)
    prepare(of, [np.ones(10, np.float32)] * 2)
    summed(of, [np.ones(10, np.float32)] * 2)
    cut, _ = summed(of, [np.full(10, 1000.0, np.float32), np.ones(10, np.float32)])
    assert cut.max() < 10
    rest, _ = summed(of, [np.zeros(10, np.float32)] * 2)
    assert cut[0] + rest[0] == pytest.approx(1001.0, abs=2.0)


def test_a_value_that_is_not_finite_is_said_of_whom_and_drops_the_sum() -> None:
    of = codecs(5000, 7)
    parts = [np.full(5000, rank + 1.0, np.float32) for rank in range(7)]
    prepare(of, parts)
    bad = [part.copy() for part in parts]
    bad[2][4999], bad[5][0] = np.nan, -np.inf
    packing, out = packing_of(of), np.empty(5000, np.float32)
    lanes = np.sum(
        [codec.pack(packing, part, rank) for rank, (codec, part) in enumerate(zip(of, bad, strict=True))], axis=0
    )
    for codec in of:
        assert codec.unpack(packing, lanes.astype(np.int32), out) == [2, 5]
        assert np.isnan(out).all()
    found, after = summed(of, parts)
    assert after.units.tobytes() == packing.units.tobytes()
    assert found == pytest.approx(28.0, rel=0.01)


def test_sums_that_were_not_finite_teach_nothing() -> None:
    codec = PairCodec(4, 2)
    for sums in ([1.0, np.nan, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [np.inf, 0.0, 0.0, 0.0]):
        assert codec.next_sum() is None
        codec.after_exact(np.array(sums, np.float32))
    assert codec.next_sum() is None
    codec.after_exact(np.full(4, 2.0, np.float32), 0.5)
    packing = codec.next_sum()
    assert packing is not None
    assert packing.units[0] * codec.most == 16.0  # twice the power of two above the sum, which is 4


def test_units_of_blocks_that_are_zero() -> None:
    of = codecs(3 * BLOCK, 2, feedback=False)
    zero = np.zeros(3 * BLOCK, np.float32)
    for _ in range(EXACT_SUMS):
        for codec in of:
            codec.next_sum()
            codec.after_exact(zero)
    for codec in of:
        assert codec.next_sum() is None, "nothing is known of any block"
        codec.after_exact(
            np.concatenate([np.full(BLOCK, 3.0), np.full(BLOCK, 300.0), np.zeros(BLOCK)]).astype(np.float32)
        )
    _, packing = summed(of, [zero, zero])
    assert packing.units[2] == packing.units[1] > packing.units[0], "the largest, where there was never a value"
    _, after = summed(of, [zero, zero])
    assert after.units.tobytes() == packing.units.tobytes(), "zeros teach nothing"


def test_units_grow_at_once_and_shrink_step_by_step() -> None:
    codec = PairCodec(2, 1, feedback=False, kernels=pair_kernels())
    prepare([codec], [np.ones(2, np.float32)])
    units = []
    for value in (1.0, 1000.0, 1.0, 1.0, 1.0):
        units.append(summed([codec], [np.full(2, value, np.float32)])[1].units[0])
    assert [after / before for before, after in pairwise(units)] == [1.0, 512.0, 0.5, 0.5]


def test_two_sums_of_one_tensor_at_a_time() -> None:
    codec = PairCodec(2, 1)
    codec.next_sum()
    with pytest.raises(UserError, match="two sums of one tensor at a time"):
        codec.next_sum()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
def test_how_many_lanes_travel(ranks: int) -> None:
    for values in (1, 2, 2047, BLOCK, BLOCK + 1, 100_000):
        lanes = PairCodec(values, ranks).lanes
        assert values / 2 <= lanes <= (values + 1) / 2 + -(-values // BLOCK) * -(-ranks // 3)
