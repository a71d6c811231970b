"""Seats: the first ranks get one each, no rank gets two, a repeated question has the same answer, a cut-off closes them."""

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.seats import STEPS_KEPT, Seats
from sa_atp.protocol.packets.control import CutOff, Seated

QUESTIONS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=120)


@given(st.integers(1, 6), QUESTIONS)
def test_the_first_get_a_seat_each(seats: int, questions: list[tuple[int, int]]) -> None:
    ledger = Seats(seats)
    given: dict[int, dict[int, int]] = {}  # step: rank: seat
    newest = -1
    for step, rank in questions:
        seated = ledger.take(step, rank, 0)
        seat = None if seated is None else seated.seat
        assert seated is None or (seated.empty, seated.again_us) == (0, 0)
        holders = given.setdefault(step, {})
        if step <= newest - STEPS_KEPT:
            assert seat is None
        elif rank in holders:
            assert seat == holders[rank]
        elif len(holders) == seats:
            assert seat is None
        else:
            assert seat == len(holders)
            holders[rank] = seat
        newest = max(newest, step)
    for holders in given.values():
        assert sorted(holders.values()) == list(range(len(holders)))
    if newest >= 0:
        assert dict(zip(ledger.newest, range(seats), strict=False)) == given[newest]


def test_seats_name_their_ranks() -> None:
    ledger = Seats(2)
    assert ledger.ranks_of([0]) == []
    assert [ledger.take(0, rank, 0) for rank in (3, 1, 0)] == [Seated(seat=0), Seated(seat=1), None]
    assert ledger.ranks_of([0, 1, 5]) == [1, 3]
    ledger.take(1, 2, 0)
    assert ledger.ranks_of([0, 1]) == [2]


def test_a_job_without_seats_gives_none() -> None:
    assert Seats(0).take(0, 0, 0) is None


@given(
    st.integers(1, 6), st.integers(0, 50), st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=60),
)  # fmt: skip
def test_seats_close_and_one_rank_fills_those_that_are_empty(
    seats: int, after_us: int, least: int, questions: list[tuple[int, int]]
) -> None:
    least = min(least, seats)
    ledger = Seats(seats, CutOff(after_us, least))
    holders: dict[int, int] = {}
    filled: dict[int, int] = {}  # rank: empty seats
    now_us = opened_us = 0
    for later_us, rank in questions:
        now_us += later_us
        opened_us = opened_us if holders else now_us
        was_closed = bool(filled)
        seated = ledger.take(0, rank, now_us)
        if rank not in holders and seated is not None:
            assert not was_closed, "nobody gets a seat in a sum whose empty seats are filled"
            holders[rank] = seated.seat
        assert (seated is None) == (rank not in holders)
        if seated is None:
            assert was_closed or len(holders) == seats
            continue
        is_over = now_us >= opened_us + after_us
        assert seated.again_us == (0 if is_over or len(holders) == seats else opened_us + after_us - now_us)
        if seated.empty:
            assert is_over
            assert len(holders) >= least
            assert filled.setdefault(rank, seated.empty) == seated.empty, "a repeated question has the same answer"
        elif is_over and len(holders) >= least:
            assert len(holders) == seats or (filled and rank not in filled), "the first that asks fills them"
    assert len(filled) <= 1
    for rank, empty in filled.items():
        assert sum(1 << seat for seat in holders.values()) ^ empty == (1 << seats) - 1, "each seat has one contribution"
        assert set(ledger.newest) == set(holders)
        assert ledger.newest.count(rank) == 1 + empty.bit_count()
