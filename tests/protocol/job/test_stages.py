"""The stages of a chunk, from its scale to its sum: section 6.2 as a table, and what holds in whatever order sums come."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sa_atp.protocol.numbers.fragments import CHUNK_VALUES, Plan
from sa_atp.protocol.numbers.scaling import (
    COARSE_BITS,
    CODE_NOT_FINITE,
    CODE_ZERO,
    POISON,
    SUM_LIMIT,
    ChunkHistory,
    gathered_exponent,
    target_bits,
)
from sa_atp.protocol.packets.header import LANE
from sa_atp.protocol.rank.compiled.kernels import HistoryRow
from sa_atp.protocol.rank.sums.buffers import Buffers
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation
from sa_atp.protocol.rank.sums.under_way import UnderWay
from sa_atp.protocol.rank.sums.wrong_values import Changed, NotFinite
from sa_atp.protocol.records import dtype_of

LANES = 64
RANKS = 2  # with a contribution each
CODE = 130  # a magnitude that is gathered: values below 16
GATHERED = gathered_exponent(CODE, RANKS)
PREDICTED = 7  # the exponent that history tells
FINE = 1 << target_bits(RANKS) - 1  # a sum that is as large as it should be
SMALLEST = 1 << target_bits(RANKS) - COARSE_BITS - 1  # one that is just fine enough

VALUES = 130  # one chunk of three fragments
SCALE_0, DATA_0, SCALE_1, DATA_1 = {0}, {1, 2, 3}, {4}, {5, 6, 7}


def operation(values: int = VALUES, *, known: Sequence[ChunkHistory] = ()) -> Operation:
    """Args: known: what a history says of each chunk."""
    rows = [HistoryRow(h.exponent, h.finest, h.patience) for h in known]
    return Operation(
        index=0,
        plan=Plan(values, LANES),
        first_seq=0,
        contributions=RANKS,
        histories={"key": np.array(rows, dtype_of(HistoryRow))},
        key="key" if rows else None,
        buffers=Buffers(),
        under_way=UnderWay(),
    )


def group(found: Operation, rank: int = 0, values: np.ndarray | None = None) -> ContributionGroup:
    parts = [np.ones(found.plan.values, np.float32) if values is None else values]
    made = ContributionGroup(found.plan, 1 << rank, parts, RANKS, on_behalf=False, under_way=UnderWay())
    found.add(made)
    return made


def pending(found: Operation) -> set[int]:
    return set(np.flatnonzero(found.pending).tolist())


def may_leave(found: Operation, sender: ContributionGroup) -> set[int]:
    """Takes all that may be sent now."""
    span = found.plan.span
    ranges = sender.take(span, span, span, found.pending) if sender.has_work else []
    return {local for first, end in ranges for local in range(first, end)}


# --- what arrives
# ---------------------------------------------------------------------------------------------------------


def scale(found: Operation, attempt: int, *codes: int, fragment: int = 0) -> int:
    """The sum of a scale fragment. Args: codes: of each chunk in it; all contributions tell the same."""
    lanes = np.zeros(LANES, np.int32)
    for chunk, code in zip(found.plan.chunks_of_scale(fragment), codes, strict=True):
        _, at, shifts = found.plan.scale_place(chunk)
        for c in range(RANKS):
            lanes[at[c]] |= code << int(shifts[c])
    return found.on_results(found.plan.scale_start(attempt) + fragment, 0, lanes.astype(LANE).reshape(1, -1))[0]


def data(
    found: Operation, attempt: int, top: int, exponent: int, *, chunk: int = 0, only: int | None = None, lane: int = 1
) -> int:
    """Sums of a chunk, whose largest value is in its last fragment. Args: only: the first so many of its fragments."""
    first, end = found.plan.fragments_of(chunk)
    lanes = np.ones((end - first, LANES), LANE)
    lanes[-1, lane] = top
    return found.on_results(found.plan.data_start(attempt) + first, exponent, lanes[:only])[0]


ARRIVALS: dict[str, Callable[[Operation, int], int]] = {
    # the exponent is that of data in the stage in question
    "scale 0": lambda found, _: scale(found, 0, CODE),
    "scale 0: zeros": lambda found, _: scale(found, 0, CODE_ZERO),
    "scale 0: NaN": lambda found, _: scale(found, 0, CODE_NOT_FINITE),
    "data 0: some": lambda found, exponent: data(found, 0, FINE, exponent, only=1),
    "data 0: fine": lambda found, exponent: data(found, 0, FINE, exponent),
    "data 0: just fine": lambda found, exponent: data(found, 0, SMALLEST, exponent),
    "data 0: too coarse": lambda found, exponent: data(found, 0, SMALLEST - 1, exponent),
    "data 0: large": lambda found, exponent: data(found, 0, 1 - SUM_LIMIT, exponent),
    "data 0: poison": lambda found, exponent: data(found, 0, -SUM_LIMIT, exponent),
    "data 0: other exponent": lambda found, exponent: data(found, 0, FINE, exponent - 1),
    "scale 1": lambda found, _: scale(found, 1, CODE),
    "scale 1: zeros": lambda found, _: scale(found, 1, CODE_ZERO),
    "scale 1: NaN": lambda found, _: scale(found, 1, CODE_NOT_FINITE),
    "data 1: some": lambda found, _: data(found, 1, FINE, GATHERED, only=1),
    "data 1: fine": lambda found, _: data(found, 1, FINE, GATHERED),
    "data 1: too coarse": lambda found, _: data(found, 1, 1, GATHERED),
    "data 1: poison": lambda found, _: data(found, 1, -SUM_LIMIT, GATHERED),
    "data 1: other exponent": lambda found, _: data(found, 1, FINE, GATHERED + 1),
}

STAGES: dict[str, tuple[str, ...]] = {
    # how to get there; "history" and what follows it begin with an exponent that is predicted
    "scale 0": (),
    "gathered": ("scale 0",),
    "history": (),
    "scale 1": ("scale 0", "data 0: poison"),
    "scale 1 after history": ("data 0: too coarse",),
    "data 1": ("scale 0", "data 0: poison", "scale 1"),
    "accepted": ("scale 0", "data 0: fine"),
    "accepted: zeros": ("scale 0: zeros",),
    "accepted again": ("scale 0", "data 0: poison", "scale 1", "data 1: fine"),
}


def at(stage: str) -> tuple[Operation, ContributionGroup, int]:
    """An operation in a stage; a group that is there from the beginning and has sent nothing; the exponent of attempt
    0.
    """
    told = "history" in stage
    known = ChunkHistory(exponent=PREDICTED, finest=PREDICTED + 3)
    found = operation(known=[known] if told else [])
    early = group(found)
    exponent = PREDICTED if told else GATHERED
    for name in STAGES[stage]:
        assert ARRIVALS[name](found, exponent)
    return found, early, exponent


def stage_of(found: Operation, chunk: int = 0) -> str:
    if found.is_done():
        return "accepted"
    return ("scale" if found.exponent[chunk] == UNKNOWN else "data") + f" {found.attempt[chunk]}"


TABLE: list[tuple[str, str, str, set[int], int]] = [
    # in this stage ... this arrives: ... this stage, what is missing in it and may be sent, and how many were news
    ("scale 0", "scale 0", "data 0", DATA_0, 1),
    ("scale 0", "scale 0: zeros", "accepted", set(), 1),
    ("scale 0", "scale 0: NaN", "failed", set(), 0),
    ("scale 0", "data 0: some", "data 0", {2, 3}, 1),  # the others have gathered without us: it tells the exponent
    ("scale 0", "data 0: fine", "accepted", set(), 3),
    ("scale 0", "data 0: too coarse", "accepted", set(), 3),
    ("scale 0", "data 0: poison", "scale 1", SCALE_1, 3),
    ("scale 0", "scale 1", "scale 0", SCALE_0, 0),
    ("scale 0", "data 1: some", "data 1", {6, 7}, 1),
    ("scale 0", "data 1: fine", "accepted", set(), 3),
    ("scale 0", "data 1: poison", "failed", set(), 0),
    ("gathered", "scale 0", "data 0", DATA_0, 0),
    ("gathered", "scale 0: NaN", "data 0", DATA_0, 0),
    ("gathered", "data 0: some", "data 0", {2, 3}, 1),
    ("gathered", "data 0: fine", "accepted", set(), 3),
    ("gathered", "data 0: large", "accepted", set(), 3),
    ("gathered", "data 0: too coarse", "accepted", set(), 3),  # nothing finer is to be had
    ("gathered", "data 0: poison", "scale 1", SCALE_1, 3),
    ("gathered", "data 0: other exponent", "data 0", DATA_0, 0),
    ("gathered", "scale 1", "data 0", DATA_0, 0),
    ("gathered", "scale 1: zeros", "data 0", DATA_0, 0),
    ("gathered", "data 1: some", "data 1", {6, 7}, 1),
    ("gathered", "data 1: fine", "accepted", set(), 3),
    ("history", "scale 0", "data 0", DATA_0, 0),
    ("history", "scale 0: zeros", "data 0", DATA_0, 0),
    ("history", "data 0: some", "data 0", {2, 3}, 1),
    ("history", "data 0: fine", "accepted", set(), 3),
    ("history", "data 0: just fine", "accepted", set(), 3),
    ("history", "data 0: too coarse", "scale 1", SCALE_1, 3),
    ("history", "data 0: poison", "scale 1", SCALE_1, 3),
    ("history", "data 0: other exponent", "data 0", DATA_0, 0),
    ("history", "scale 1: zeros", "data 0", DATA_0, 0),
    ("history", "data 1: some", "data 1", {6, 7}, 1),
    ("scale 1", "scale 0", "scale 1", SCALE_1, 0),
    ("scale 1", "data 0: fine", "scale 1", SCALE_1, 0),
    ("scale 1", "scale 1", "data 1", DATA_1, 1),
    ("scale 1", "scale 1: zeros", "accepted", set(), 1),
    ("scale 1", "scale 1: NaN", "failed", set(), 0),
    ("scale 1", "data 1: some", "data 1", {6, 7}, 1),
    ("scale 1", "data 1: fine", "accepted", set(), 3),
    ("scale 1", "data 1: poison", "failed", set(), 0),
    ("scale 1 after history", "data 0: fine", "scale 1", SCALE_1, 0),
    ("scale 1 after history", "scale 1", "data 1", DATA_1, 1),
    ("data 1", "scale 0: NaN", "data 1", DATA_1, 0),
    ("data 1", "data 0: fine", "data 1", DATA_1, 0),
    ("data 1", "data 0: poison", "data 1", DATA_1, 0),
    ("data 1", "scale 1", "data 1", DATA_1, 0),
    ("data 1", "data 1: some", "data 1", {6, 7}, 1),
    ("data 1", "data 1: fine", "accepted", set(), 3),
    ("data 1", "data 1: too coarse", "accepted", set(), 3),
    ("data 1", "data 1: other exponent", "data 1", DATA_1, 0),
    ("data 1", "data 1: poison", "failed", set(), 0),
    *[(stage, name, "accepted", set(), 0) for stage in STAGES if "accepted" in stage for name in ARRIVALS],
]


@pytest.mark.parametrize(
    ("stage", "arrives", "then", "missing", "news"), TABLE, ids=[f"{row[0]} - {row[1]}" for row in TABLE]
)
def test_each_arrival_leads_to_the_next_stage(
    stage: str, arrives: str, then: str, missing: set[int], news: int
) -> None:
    found, early, exponent = at(stage)
    if then == "failed":
        with pytest.raises(NotFinite if "NaN" in arrives else Changed):
            ARRIVALS[arrives](found, exponent)
        assert not found.is_done()
        return
    assert ARRIVALS[arrives](found, exponent) == news
    assert stage_of(found) == then
    assert pending(found) == missing
    assert found.missing == len(missing)
    assert found.oldest_pending() == min(missing, default=None)
    late = group(found, 1)
    if "some" not in arrives:
        assert late.fresh == len(missing)
        assert early.fresh - len(missing) in (0, 1, 2), "more than scale fragments is kept that nobody needs"
    assert may_leave(found, early) == may_leave(found, late) == missing, "all of it may be sent, and nothing else"
    assert ARRIVALS[arrives](found, exponent) == 0, "it is news once"
    assert stage_of(found) == then


def test_the_exponent_is_the_one_that_was_gathered_told_or_predicted() -> None:
    for stage, expected in (("gathered", GATHERED), ("history", PREDICTED), ("data 1", GATHERED)):
        assert at(stage)[0].exponent.tolist() == [expected], stage
    found, _, _ = at("scale 0")
    data(found, 0, FINE, 3, only=1)
    assert found.exponent.tolist() == [3], "that of those who knew it"


def test_a_scale_that_came_before_its_time_is_used_when_it_has_come() -> None:
    found, early, exponent = at("gathered")
    assert scale(found, 1, CODE) == 0
    assert ARRIVALS["data 0: poison"](found, exponent) == 3
    assert stage_of(found) == "data 1"
    assert may_leave(found, early) == DATA_1, "nobody needs to gather again"


def test_a_burst_of_which_some_is_known_brings_the_rest() -> None:
    found, _, exponent = at("gathered")
    lanes = np.arange(3 * LANES, dtype=LANE).reshape(3, LANES)
    assert found.on_results(2, exponent, lanes[1:2])[0] == 1
    assert found.on_results(1, exponent, np.where(np.arange(3)[:, None] == 1, -1, lanes).astype(LANE))[0] == 2
    assert found.is_done()
    assert found.integers()[0].tolist() == list(range(VALUES)), "what was known stays as it was"


@pytest.mark.parametrize(
    ("first", "arrivals", "exponent", "finest"),
    [
        ("scale 0", ("scale 0", "data 0: fine"), GATHERED - 3, GATHERED),
        ("scale 0", ("scale 0: zeros",), 127, 130),
        ("history", ("data 0: fine",), PREDICTED, PREDICTED + 3),
        ("history", ("data 0: just fine",), PREDICTED, PREDICTED + 3),  # its finest allows no more
        ("history", ("data 0: large",), PREDICTED - 4, PREDICTED + 3),
        ("history", ("data 0: poison", "scale 1", "data 1: fine"), GATHERED - 3, GATHERED),
        ("history", ("data 0: too coarse", "scale 1: zeros"), 127, 130),
    ],
)
def test_history_comes_from_the_last_stage(first: str, arrivals: tuple[str, ...], exponent: int, finest: int) -> None:
    found, _, used = at(first)
    for name in arrivals:
        ARRIVALS[name](found, used)
    assert found.is_done()
    found.key, found._histories = "key", {}
    found.save_history()
    (told,) = found._histories["key"].tolist()
    assert told[:2] == (exponent, finest)


def test_the_error_names_ranks_and_values_that_do_not_fit() -> None:
    found, _, _ = at("data 1")
    with pytest.raises(Changed) as changed:
        data(found, 1, POISON, GATHERED, lane=0)
    assert (changed.value.contributions, changed.value.first_value, changed.value.end_value) == ([0], 128, VALUES)
    found, _, _ = at("scale 0")
    with pytest.raises(NotFinite) as infinite:
        scale(found, 0, CODE_NOT_FINITE)
    assert (infinite.value.contributions, infinite.value.chunk) == ([0, 1], 0)


# --- chunks beside one another
# --------------------------------------------------------------------------------------------


def test_chunks_that_share_a_scale_fragment_go_their_own_ways() -> None:
    found = operation(2 * CHUNK_VALUES + 1)
    sender = group(found)
    assert scale(found, 0, CODE, CODE_ZERO, CODE + 1) == 1
    assert found.exponent.tolist() == [GATHERED, UNKNOWN, GATHERED - 1]
    assert (found.resolved, found.missing) == (1, 257)
    data(found, 0, FINE, GATHERED - 1, chunk=2)
    assert found.resolved == 2
    data(found, 0, POISON, GATHERED)
    assert pending(found) == {found.plan.scale_start(1)}
    assert scale(found, 1, CODE, CODE_NOT_FINITE, CODE_NOT_FINITE) == 1, "of chunks that are over it says nothing"
    first = found.plan.data_start(1)
    assert may_leave(found, sender) == set(range(first, first + 256))
    data(found, 1, FINE, GATHERED)
    assert found.is_done()
    out = np.ones(found.plan.values, np.float32)
    found.result(out)
    assert not out[CHUNK_VALUES : 2 * CHUNK_VALUES].any()
    assert out[CHUNK_VALUES - LANES + 1] == FINE / 2.0**GATHERED


def test_chunks_that_share_a_scale_fragment_are_not_gathered_by_that_of_the_other_attempt() -> None:
    found = operation(2 * CHUNK_VALUES)
    data(found, 0, POISON, GATHERED, chunk=0)  # the others have gathered; we have not heard it of the other chunk
    assert pending(found) == {0, found.plan.scale_start(1)}
    assert scale(found, 1, CODE, CODE_NOT_FINITE) == 1
    assert found.exponent.tolist() == [GATHERED, UNKNOWN]
    assert 0 in pending(found)


def test_a_scale_fragment_is_needed_as_long_as_one_of_its_chunks_waits_for_it() -> None:
    found = operation(2 * CHUNK_VALUES)
    data(found, 0, FINE, GATHERED, chunk=0, only=1)
    assert 0 in pending(found)
    data(found, 0, FINE, GATHERED, chunk=1, only=1)
    assert 0 not in pending(found)
