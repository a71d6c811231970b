"""The cut of an operation whose results are scattered. (protocol section 5.9)"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sa_atp.protocol.numbers.scattered import Cut, ScatteredPlan, cut_of, scattered_plan_of

RANKS = st.sampled_from((1, 2, 3, 4, 5, 8, 64))
SLOTS = st.sampled_from((2, 8, 16, 128, 1024))
LANES = st.sampled_from((32, 64, 256))


@st.composite
def plans(draw: st.DrawFn) -> ScatteredPlan:
    ranks, slots, lanes = draw(RANKS), draw(SLOTS), draw(LANES)
    assume(cut_of(ranks, slots) is not None)
    return scattered_plan_of(ranks * draw(st.integers(1, 200_000 // ranks)), lanes, 64, ranks=ranks, slots=slots)


@given(plans())
def test_numbers_say_whose_a_fragment_is(plan: ScatteredPlan) -> None:
    locals_ = np.arange(plan.span)
    numbers = plan.numbers_of(locals_)
    assert (np.diff(numbers) > 0).all()
    assert numbers[-1] < plan.numbers
    assert plan.numbers % plan.cut.block == 0
    for local in (*range(min(40, plan.span)), plan.span - 1):
        number = int(numbers[local])
        assert (plan.number_of(local), plan.local_of(number)) == (number, local)
        place, fragment = plan.cut.part_of(number), local - plan.scale_fragments
        assert place >= plan.ranks if fragment < 0 else place == plan.part_of(fragment)


def test_pieces_end_with_the_scales_of_their_block() -> None:
    """Fewer exponents than a block has room for, and a piece that begins among them."""
    plan = ScatteredPlan(values=32739, lanes=32, contributions=64, ranks=3, cut=Cut(places=4, stretch=2))
    assert [(piece.first, piece.length) for piece in plan.pieces(0, 9)] == [(0, 2)]


@given(plans(), st.data())
def test_pieces_are_the_fragments_among_numbers(plan: ScatteredPlan, data: st.DataObject) -> None:
    first, count = data.draw(st.integers(0, plan.numbers)), data.draw(st.integers(0, 600))
    numbers = plan.numbers_of(np.arange(plan.span))
    inside = np.flatnonzero((numbers >= first) & (numbers < first + count)).tolist()
    pieces = list(plan.pieces(first, count))
    assert [local for piece in pieces for local in range(piece.first, piece.first + piece.length)] == inside
    assert all(first + piece.skip == numbers[piece.first] for piece in pieces)
    for number in (first, first + count, -1):
        assert plan.first_from(number) == np.searchsorted(numbers, number)
    start, end = sorted(data.draw(st.tuples(*[st.integers(plan.scale_fragments, plan.span)] * 2)))
    straight = list(plan.straight(start, end))
    assert [local for a, b, _ in straight for local in range(a, b)] == list(range(start, end))
    assert all((numbers[a:b] == np.arange(a, b) + above).all() for a, b, above in straight)


@given(plans())
def test_values_travel_once_and_come_to_their_rank(plan: ScatteredPlan) -> None:
    values = np.arange(1, plan.values + 1, dtype=np.float32)
    rows = plan.laid_out(values).reshape(plan.data_fragments, plan.lanes)
    for part in range(plan.ranks):
        own = [f for p, a, b, _ in plan.by_part(0, plan.data_fragments) if p == part for f in range(a, b)]
        assert len(own) == plan.part_fragments
        size = plan.part_values
        assert np.array_equal(rows[own].reshape(-1)[:size], values[part * size : (part + 1) * size])
        ends = [plan.rows_of(chunk, part) for chunk in range(plan.chunks)]
        assert [row for a, b in ends for row in range(a, b)] == list(range(plan.part_fragments))
    assert np.count_nonzero(rows) == plan.values


def test_parts_are_equal() -> None:
    with pytest.raises(ValueError, match="7 values are not 2 equal parts"):
        scattered_plan_of(7, 64, ranks=2, slots=16)
    with pytest.raises(ValueError, match="4 slots are too few for 5 ranks"):
        scattered_plan_of(10, 64, ranks=5, slots=4)
