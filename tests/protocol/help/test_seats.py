"""Seats: the first ranks get one each, no rank gets two, and a repeated question gets the same answer."""

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.help.seats import STEPS_KEPT, Seats

QUESTIONS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=120)


@given(st.integers(1, 6), QUESTIONS)
def test_the_first_get_a_seat_each(seats: int, questions: list[tuple[int, int]]) -> None:
    ledger = Seats(seats)
    given: dict[int, dict[int, int]] = {}  # step: rank: seat
    newest = -1
    for step, rank in questions:
        seat = ledger.take(step, rank)
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
    assert [ledger.take(0, rank) for rank in (3, 1, 0)] == [0, 1, None]
    assert ledger.ranks_of([0, 1, 5]) == [1, 3]
    ledger.take(1, 2)
    assert ledger.ranks_of([0, 1]) == [2]


def test_a_job_without_seats_gives_none() -> None:
    assert Seats(0).take(0, 0) is None
