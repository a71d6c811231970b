"""Which work the ledger gives to helpers below one leaf and across racks. (protocol sections 10.3 and 10.5)"""

import pytest
from helpers.work import About, Books, Given, told

from sa_atp.protocol.packets.control import Terms
from sa_atp.protocol.packets.help_messages import WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.server.job import Job

FAST_US = 1_000
SLOW_US = 8 * FAST_US
ALL = (1 << 64) - 1
SLOW = 7  # below the first leaf, with 1, 3 and 5
LEAVES = (frozenset({1, 3, 5, 7}), frozenset({0, 2, 4, 6}))
PIECES = 8
BEGAN_US = 1_000_000


def ledger_of(leaves: tuple[frozenset[int], ...], send_us: int, grade: HelpGrade = HelpGrade.STEAL) -> Books:
    """Eight workers whose contributions take `send_us` to leave; one is slow, and has given up all but its first piece."""
    ledger = Books(8, PIECES, grade)
    ledger.racks.leaves = leaves
    for rank in range(8):
        each_us = SLOW_US if rank == SLOW else FAST_US
        ledger.idle(0, rank, About(each_us, PIECES * each_us, sent_us=send_us), PIECES * each_us)
    for rank in range(7):
        ledger.idle(1, rank, About(FAST_US, PIECES * FAST_US, sent_us=send_us), BEGAN_US + PIECES * FAST_US)
    report = About(SLOW_US, SLOW_US, sent_us=send_us)
    ledger.claim(1, SLOW, 1, 1, None, report, BEGAN_US + SLOW_US)
    return ledger


def ask(ledger: Books, rank: int, missing: int = ALL, pending: float | None = None, after_us: int = 0) -> Given | None:
    report = About(0, PIECES * FAST_US + after_us)
    return ledger.ask(1, rank, missing, report, 0, BEGAN_US + PIECES * FAST_US + after_us, pending)


def test_help_below_the_same_leaf_is_summed_there() -> None:
    ledger = ledger_of(LEAVES, send_us=1)
    work = ask(ledger, 1)
    assert told(work)[0] == SLOW
    assert ledger.crossed(1) == []


def test_help_across_racks_passes_the_leaf() -> None:
    ledger = ledger_of(LEAVES, send_us=1)
    work = ask(ledger, 2)
    assert told(work)[0] == SLOW
    assert ledger.crossed(1) == [SLOW]


def test_nobody_helps_across_racks_where_the_trunk_would_be_busier_than_that_saves() -> None:
    """Three others below the leaf do the rest in three of their micro-batches' time, all seven in one or two."""
    ledger = ledger_of(LEAVES, send_us=FAST_US)
    assert ask(ledger, 2) is None
    assert ask(ledger, 3) is not None
    assert ledger.crossed(1) == []


def test_clones_are_made_below_the_same_leaf_where_crossing_costs_more_than_it_saves() -> None:
    ledger = ledger_of(LEAVES, FAST_US, HelpGrade.CLONE)
    assert ask(ledger, 2) is None
    work = ask(ledger, 3)
    assert told(work)[:2] == (SLOW, tuple(range(PIECES)))
    assert ledger.crossed(1) == []


def test_once_a_rack_is_crossed_everybody_may_help_in_it() -> None:
    ledger = ledger_of(LEAVES, send_us=1)
    assert ask(ledger, 2) is not None
    for rank in range(8):
        ledger.idle(1, rank, About(sent_us=10 * FAST_US), BEGAN_US + PIECES * FAST_US)
    assert ask(ledger, 4) is not None


def test_before_anybody_has_said_how_long_sending_takes_racks_help_themselves() -> None:
    ledger = ledger_of(LEAVES, send_us=0)
    assert ask(ledger, 2) is None
    assert ask(ledger, 3) is not None


def test_work_summed_below_another_leaf_does_not_leave_with_ones_own() -> None:
    ledger = ledger_of(LEAVES, send_us=1)
    state = ledger._step(1, 0)
    assert ledger.racks.are_summed_together(state, 1, SLOW)
    assert not ledger.racks.are_summed_together(state, 2, SLOW)
    assert ask(ledger, 2) is not None
    assert not ledger.racks.are_summed_together(state, 1, SLOW), "the leaf does not complete the sum any more"
    assert ledger_of((), send_us=1).racks.are_summed_together(state, 2, SLOW)


@pytest.mark.parametrize("leaves", [(), (frozenset(range(8)),)])
def test_with_one_switch_everybody_helps(leaves: tuple[frozenset[int], ...]) -> None:
    ledger = ledger_of(leaves, send_us=FAST_US)
    assert ask(ledger, 2) is not None


def test_where_the_leaves_are_not_known_all_help_passes_them() -> None:
    ledger = ledger_of((), send_us=1)
    assert ask(ledger, 2) is not None
    assert ledger.crossed(1) == [SLOW]


SEND_US = 20_000
OVERDUE_US = FAST_US + 50_000  # its one piece, and the least silence


def four_in_two_racks(send_us: int = SEND_US) -> Books:
    """Four workers with one piece each that have reported their sending time; in the second step one is silent."""
    ledger = Books(4, 1, HelpGrade.STEAL)
    ledger.racks.leaves = (frozenset({0, 2}), frozenset({1, 3}))
    for rank in range(4):
        ledger.idle(0, rank, About(FAST_US, FAST_US, sent_us=send_us), FAST_US)
    for rank in range(3):
        ledger.idle(1, rank, About(FAST_US, FAST_US, sent_us=send_us), BEGAN_US + FAST_US)
    return ledger


@pytest.mark.parametrize(("send_us", "cost_us"), [(SEND_US, 2 * SEND_US), (0, 2 * 50_000)])
def test_a_silent_owner_is_left_to_its_rack_for_as_long_as_crossing_costs(send_us: int, cost_us: int) -> None:
    for rank, late_us, is_given in (
        (1, OVERDUE_US, True), (0, OVERDUE_US, False), (0, OVERDUE_US + cost_us - 1, False),
        (0, OVERDUE_US + cost_us, True),
    ):  # fmt: skip
        ledger = four_in_two_racks(send_us)
        work = ledger.ask(1, rank, 0b1010, About(0, late_us), 0, BEGAN_US + late_us)
        assert (work is not None and work.backup) == is_given, (rank, late_us)
        assert ledger.crossed(1) == ([3] if is_given and rank == 0 else [])


def test_a_helpers_lot_is_backed_up_only_below_its_leaf() -> None:
    """The lot may have arrived in that leaf, which waits for its last worker: at the root all of it is missing."""

    def with_a_lot_that_is_late() -> Books:
        ledger = ledger_of(LEAVES, send_us=FAST_US)
        assert ask(ledger, 3) is not None  # below the slow one's leaf
        return ledger

    late_us = 10_000_000
    for rank, is_given in ((2, False), (1, True)):
        ledger = with_a_lot_that_is_late()
        ledger.idle(1, SLOW, About(0, 2 * SLOW_US, sent_us=FAST_US), BEGAN_US + 2 * SLOW_US)
        found = [ask(ledger, rank, after_us=late_us + n) for n in range(PIECES + 1)]
        assert any(work is not None and work.backup for work in found) == is_given
        assert ledger.crossed(1) == []


def test_a_leaf_may_have_none_of_a_jobs_ranks() -> None:
    """Other jobs' ranks may be below it: the control plane names all leaves for every job."""
    job = Job(
        name="one rack of two", number=1, epoch=0, terms=Terms(8, PIECES, HelpGrade.STEAL), lanes=64, slot_base=0,
        slot_count=64, first_seq=0,
    )  # fmt: skip
    job.attach((frozenset(range(8)), frozenset()))
    for step in range(3):
        for rank in range(8):
            said = WorkReport(
                step=step, begun=PIECES, held=PIECES, took_us=FAST_US, spent_us=PIECES * FAST_US, sent_us=FAST_US
            )
            job.ledger.report(rank, said, (step + 1) * BEGAN_US)
            job.ledger.advice(rank)
    assert job.leaves == (frozenset(range(8)),)
