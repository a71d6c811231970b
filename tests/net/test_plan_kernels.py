"""The ledger's kernels, compiled, against the same functions in plain Python."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sa_atp.net.loop.compiled import plan_kernels
from sa_atp.protocol.help import plan
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.believing import NEVER_US
from sa_atp.protocol.help.ledger import Ledger
from sa_atp.protocol.help.plan import PLAIN, Machine
from sa_atp.protocol.packets.help_messages import Offer, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.records import Records

TIME_US = st.integers(0, 1000)


@st.composite
def beliefs(draw: st.DrawFn) -> Belief:
    held = draw(st.integers(0, 8))
    return Belief(
        each_us=draw(st.one_of(st.integers(0, 300), st.floats(0, 300))),
        is_measured=draw(st.booleans()),
        weight=draw(st.integers(1, 3)),
        held=held,
        begun=draw(st.integers(0, held)),
        free=draw(st.integers(0, 4)),
        is_idle=draw(st.booleans()),
        holds_nothing=draw(st.booleans()),
        is_ended=draw(st.booleans()),
        is_overdue=draw(st.booleans()),
        has_reported=draw(st.booleans()),
        newest_us=draw(TIME_US),
        due_us=draw(TIME_US),
        lot_us=draw(TIME_US),
        has_lot=draw(st.booleans()),
        link_us=draw(st.sampled_from((0, 50, 300))),
        slow_link_us=draw(st.sampled_from((0, 50, 300))),
        link_free_us=draw(TIME_US),
        answer_us=draw(st.integers(0, 100)),
        asks_again_us=draw(TIME_US),
        behind_us=draw(st.one_of(st.just(-NEVER_US), TIME_US)),
        patience_us=draw(st.sampled_from((50, 200))),
    )


@given(st.lists(beliefs(), min_size=1, max_size=6), st.data())
def test_compiled_kernels_decide_as_plain_ones(known: list[Belief], data: st.DataObject) -> None:
    count, compiled = len(known), plan_kernels()
    records = Records(Belief, count)
    for rank, each in enumerate(known):
        records.write(rank, each)
    rank, now_us = data.draw(st.integers(0, count - 1)), data.draw(TIME_US)
    for asks in (-1, rank):
        until_us = data.draw(st.one_of(st.just(NEVER_US), TIME_US))
        plain, movable = plan.machines(known, asks, until_us, now_us)
        found, movable_too = plan.machines(records.array, asks, until_us, now_us, compiled)
        assert isinstance(found, np.ndarray)
        assert [dataclasses.astuple(m) for m in plain] == found.tolist()
        assert (movable, plan.held_of(plain)) == (movable_too, plan.held_of(found))
        helpers = np.array(data.draw(st.lists(st.booleans(), min_size=count**2, max_size=count**2)))
        may = helpers.reshape(count, count) | np.eye(count, dtype=np.bool_)
        made = plan.make(plain, helpers=may)
        assert made == plan.make(found, helpers=may, kernels=compiled)
        assert made == plan.make(plain, helpers=may, kernels=compiled)
    first = data.draw(st.integers(0, count))
    assert PLAIN.next_late(known, rank, first, now_us) == compiled.next_late(records.array, rank, first, now_us)
    assert PLAIN.next_overdue(known, rank, first, now_us) == compiled.next_overdue(records.array, rank, first, now_us)
    assert PLAIN.ask_again_us(known, rank, now_us) == compiled.ask_again_us(records.array, rank, now_us)


def test_a_machine_is_given_to_the_planner_field_by_field() -> None:
    found = [Machine(0, 10, held=10), Machine(0, 12, held=10)]
    assert plan.make(found, kernels=plan_kernels()) == plan.make(found)


LONGEST_US, HEAVIEST = 1 << 40, 1 << 30  # of a report (packets/help_messages.py)
SPANS_US = st.one_of(st.integers(0, 300_000), st.sampled_from((0, 1, LONGEST_US)))
PIECES = 3
OFFERS = st.builds(
    Offer, missing=st.integers(0, (1 << 4 * PIECES) - 1), busy_us=SPANS_US,
    pending=st.one_of(st.none(), st.integers(0, 1000)), given=st.integers(0, (1 << 4 * PIECES) - 1),
)  # fmt: skip


@st.composite
def reports(draw: st.DrawFn) -> tuple[int, WorkReport]:
    """A rank, and a report of it in step 0."""
    begun, held = sorted(draw(st.tuples(st.integers(0, PIECES), st.integers(0, PIECES))))
    return draw(st.integers(0, 3)), WorkReport(
        step=0, begun=begun, held=held, since_us=draw(st.none() | SPANS_US), offer=draw(st.none() | OFFERS),
        took_us=draw(SPANS_US), spent_us=draw(SPANS_US), answer_us=draw(SPANS_US), sent_us=draw(SPANS_US),
        weight=draw(st.sampled_from((1, 2, HEAVIEST))),
    )  # fmt: skip


@given(st.lists(st.tuples(reports(), st.integers(0, 100_000)), min_size=1, max_size=12))
def test_ledgers_answer_alike_whatever_workers_report(said: list[tuple[tuple[int, WorkReport], int]]) -> None:
    plain, compiled = (Ledger(4, PIECES, HelpGrade.STEAL, kernels) for kernels in (PLAIN, plan_kernels()))
    now_us = 0
    for number, ((rank, report), later_us) in enumerate(said):
        now_us += later_us
        report = replace(report, step=number // 4)
        assert plain.report(rank, report, now_us) == compiled.report(rank, report, now_us)
        assert plain.advice(rank) == compiled.advice(rank)
        assert plain.unasked == compiled.unasked
