"""The plan of a step against all plans, on small cases, and its properties."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.plan import Machine
from sa_atp.protocol.help.planning import own_done_us, piece_us

PIECE_US = st.integers(20, 200)


@st.composite
def machines(draw: st.DrawFn, count: int, *, pieces: int = 3, weights: Sequence[int] = (1,)) -> list[Machine]:
    found = []
    for _ in range(count):
        weight = draw(st.sampled_from(weights))
        unit_us = draw(PIECE_US)
        free_us = draw(st.integers(0, 300))
        told_us = draw(st.integers(0, 300))
        found.append(
            Machine(
                free_us=free_us,
                unit_us=unit_us,
                weight=weight,
                held=draw(st.integers(0, pieces)),
                open=draw(st.integers(0, pieces)),
                told_us=told_us,
                release_us=draw(st.integers(0, 300)),
                link_us=draw(st.sampled_from((0, 0, 30, 150))),
                link_free_us=draw(st.sampled_from((0, 200))),
            )
        )
    return found


def splits(count: int, ways: int) -> Iterator[tuple[int, ...]]:
    if ways == 1:
        yield (count,)
        return
    for first in range(count + 1):
        yield from ((first, *rest) for rest in splits(count - first, ways - 1))


def end_of(found: Sequence[Machine], given_to: Sequence[Sequence[int]]) -> float:
    """When all is sent, if rank r computes given_to[s][r] pieces of shard s. Each does its own first, then others' as
    they are released.
    """
    last = 0.0
    for rank, m in enumerate(found):
        own_us = own_done_us(m, given_to[rank][rank])
        if given_to[rank][rank]:
            # its own leaves together with what it computes for others
            last = max(last, max(own_us, m.link_free_us) + m.link_us)
        last = max(last, m.link_free_us)
        jobs = []
        for shard, split in enumerate(given_to):
            if shard == rank:
                continue
            other = found[shard]
            # who gives up pieces gives up what nobody holds first; of several, the one with the most of them comes last
            given_up = sum(split) - split[shard]
            held = max(0, given_up - other.open)
            late = min(split[rank], held) if held else 0
            jobs += [(other.release_us, other.weight)] * late + [(0, other.weight)] * (split[rank] - late)
        if jobs:
            at_us = max(own_us, m.told_us)
            for release_us, weight in sorted(jobs):
                at_us = max(at_us, release_us) + m.unit_us * weight
            last = max(last, max(at_us, m.link_free_us) + m.link_us)
    return last


def best_of(found: Sequence[Machine]) -> float:
    ways = [list(splits(m.held + m.open, len(found))) for m in found]
    return min(end_of(found, given_to) for given_to in itertools.product(*ways))


@given(machines(2, pieces=3))
def test_two_workers_have_the_best_plan(found: list[Machine]) -> None:
    step_us = min(piece_us(m) for m in found) / 16
    assert plan.make(found).end_us <= best_of(found) + max(1.0, step_us)


@given(machines(3, pieces=1, weights=(1, 2, 3)))
def test_three_workers_are_within_a_third_of_the_best(found: list[Machine]) -> None:
    assert plan.make(found).end_us <= 4 / 3 * best_of(found) + 1


@given(machines(5, pieces=20, weights=(1, 2)))
def test_every_piece_is_done_once_and_in_time(found: list[Machine]) -> None:
    made = plan.make(found)
    for shard, m in enumerate(found):
        others = sum(part.get(shard, 0) for part in made.parts)
        assert made.own[shard] + others == m.held + m.open
    for rank, m in enumerate(found):
        assert rank not in made.parts[rank]
        assert own_done_us(m, made.own[rank]) + m.link_us <= made.end_us + 1 or not made.own[rank]
        if made.parts[rank]:
            assert made.own[rank] == m.held + m.open, "who helps has done its own"
    alone_us = max(own_done_us(m, m.held + m.open) + m.link_us for m in found)
    assert made.end_us <= alone_us


@given(machines(4, pieces=10), st.integers(0, 3))
def test_a_faster_worker_makes_no_plan_longer(found: list[Machine], rank: int) -> None:
    faster = list(found)
    faster[rank] = dataclasses.replace(found[rank], unit_us=found[rank].unit_us / 2)
    step_us = max(1.0, min(piece_us(m) for m in found) / 16)
    assert plan.make(faster).end_us <= plan.make(found).end_us + step_us


def test_one_slow_worker_is_helped_by_all() -> None:
    found = [Machine(0, 12_000, held=16) for _ in range(3)] + [Machine(0, 48_000, held=16)]
    made = plan.make(found)
    assert made.own == [16, 16, 16, 5]
    assert [part.get(3, 0) for part in made.parts] == [4, 4, 3, 0]
    assert made.end_us == 240_000


def test_nobody_is_slow() -> None:
    found = [Machine(0, 12_000, held=16, link_us=5_000) for _ in range(4)]
    made = plan.make(found)
    assert made.own == [16] * 4
    assert not any(made.parts)
    assert made.end_us == 16 * 12_000 + 5_000


@pytest.mark.parametrize("among", [(0, 1), (0, 1, 2, 3)])
def test_only_helpers_of_the_same_rack(among: tuple[int, ...]) -> None:
    found = [Machine(0, 40, held=10), *(Machine(0, 10, held=10) for _ in range(3))]
    may = np.ones((4, 4), np.bool_)
    may[0] = [rank in among for rank in range(4)]
    made = plan.make(found, helpers=may)
    assert {rank for rank, part in enumerate(made.parts) if part} == set(among) - {0}


def test_a_contribution_that_would_be_the_last_on_a_slow_link_is_left_to_others() -> None:
    found = [
        Machine(0, 10, held=10, link_us=20),
        Machine(0, 10, held=10, link_us=20),
        Machine(0, 10, held=10, link_us=900),
    ]
    made = plan.make(found)
    assert made.own == [10, 10, 0]
    assert made.end_us == 150 + 20


def test_pieces_that_nobody_holds_are_done_by_helpers_whatever_that_saves() -> None:
    found = [Machine(0, 10, loose=4), Machine(0, 10, held=2)]
    made = plan.make(found)
    assert made.parts == [{0: 3}, {0: 1}]
