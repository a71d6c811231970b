"""The cut of an operation into fragments: nothing is left out, nothing twice, at every length."""

import itertools

import pytest

from sa_atp.protocol.numbers.fragments import CHUNK_VALUES, Plan
from sa_atp.protocol.packets.spec import BUILDS, LANE_BUILDS

AROUND_CHUNKS = [n * CHUNK_VALUES + d for n in (1, 2, 3, 4) for d in (-1, 0, 1)]
LENGTHS = [*range(1, 700), *AROUND_CHUNKS, 100_000, 1_000_003, 16_777_216]


@pytest.mark.parametrize("lanes", LANE_BUILDS)
def test_every_value_is_in_one_chunk_and_one_fragment(lanes: int) -> None:
    for values in LENGTHS:
        plan = Plan(values, lanes)
        assert plan.data_fragments == -(-values // lanes)
        at_value = at_fragment = 0
        for chunk in range(plan.chunks):
            first, end = plan.values_of(chunk)
            assert first == at_value < end <= first + CHUNK_VALUES
            at_value = end
            first, end = plan.fragments_of(chunk)
            assert first == at_fragment < end
            assert first * lanes == chunk * CHUNK_VALUES
            at_fragment = end
        assert (at_value, at_fragment) == (values, plan.data_fragments)


@pytest.mark.parametrize("lanes", LANE_BUILDS)
def test_runs_cut_the_whole_span_without_gaps(lanes: int) -> None:
    for values in LENGTHS:
        plan = Plan(values, lanes)
        at = 0
        seen: set[tuple[int, int, int]] = set()
        for run in plan.runs(0, plan.span):
            assert run.first == at < run.end
            at = run.end
            if run.chunk < 0:
                assert len(run) == 1
                assert run.first == plan.scale_start(run.attempt) + run.fragment
            else:
                first, end = plan.fragments_of(run.chunk)
                assert (run.fragment, run.fragment + len(run)) == (first, end)
                assert run.first == plan.data_start(run.attempt) + run.fragment
            key = (run.attempt, run.chunk, run.fragment)
            assert key not in seen
            seen.add(key)
        assert at == plan.span
        assert len(seen) == 2 * (plan.chunks + plan.scale_fragments)


@pytest.mark.parametrize("values", [1, 64, 65, CHUNK_VALUES, CHUNK_VALUES + 1, 3 * CHUNK_VALUES + 100])
def test_runs_of_any_part_are_parts_of_the_whole(values: int) -> None:
    """Losses and windows cut sent and received fragments anywhere."""
    plan = Plan(values, 64)
    owner = {
        n: (r.attempt, r.chunk, r.fragment + n - r.first)
        for r in plan.runs(0, plan.span)
        for n in range(r.first, r.end)
    }
    edges = sorted(
        {0, 1, 2, plan.span // 3, plan.attempt_fragments - 1, plan.attempt_fragments, plan.span - 1, plan.span}
    )
    for first, end in itertools.combinations([e for e in edges if 0 <= e <= plan.span], 2):
        covered = {
            n: (r.attempt, r.chunk, r.fragment + n - r.first)
            for r in plan.runs(first, end)
            for n in range(r.first, r.end)
        }
        assert covered == {n: owner[n] for n in range(first, end)}
    assert list(plan.runs(3, 3)) == []


@pytest.mark.parametrize(("lanes", "contributions"), [*BUILDS, (256, 192), (1024, 512), (64, 192)])
def test_every_chunk_and_contribution_has_a_place_of_its_own_in_the_scale_fragments(
    lanes: int, contributions: int
) -> None:
    plan = Plan(30 * CHUNK_VALUES + 1, lanes, contributions)
    bits: set[tuple[int, int, int]] = set()
    for chunk in range(plan.chunks):
        fragment, at, shifts = plan.scale_place(chunk)
        assert chunk in plan.chunks_of_scale(fragment)
        for contribution in range(contributions):
            lane, shift = int(at[contribution]), int(shifts[contribution])
            assert lane < lanes
            place = {(fragment, lane, shift + bit) for bit in range(8)}
            assert not place & bits
            bits |= place
    assert max(bit for _, _, bit in bits) < 24  # far below the limit of a sum
    assert sorted(c for f in range(plan.scale_fragments) for c in plan.chunks_of_scale(f)) == list(range(plan.chunks))


def test_packets_have_room_for_the_magnitudes_of_all_contributions() -> None:
    with pytest.raises(ValueError, match="16 lanes: too few"):
        Plan(1, 16)
    with pytest.raises(ValueError, match="64 lanes: too few for the magnitudes of 512 contributions"):
        Plan(1, 64, 512)


@pytest.mark.parametrize("values", [0, -1])
def test_an_operation_has_values(values: int) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Plan(values, 64)
