"""A contribution group's ranges against sets: what may leave, what is under way, what was lost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_atp.protocol.numbers.fragments import Plan
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.numbers.scaling import POISON
from sa_atp.protocol.packets.header import LANE
from sa_atp.protocol.rank.sums import rounded_values
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.under_way import UnderWay

LANES = 64
ANSWER_US = 100


class Group(RuleBasedStateMachine):
    """Sets of fragments beside the ranges: `allowed` may leave for the first time, `flying` is under way, `lost` waits."""

    @initialize(values=st.sampled_from((1, 64, 65, 700, 16_384, 40_000)), parts=st.integers(1, 3))
    def begin(self, values: int, parts: int) -> None:
        self.plan = Plan(values, LANES)
        self.under_way = UnderWay()
        self.group = ContributionGroup(
            self.plan,
            (1 << parts) - 1,
            [np.ones(values, np.float32)] * parts,
            4,
            on_behalf=False,
            under_way=self.under_way,
        )
        self.pending = np.zeros(self.plan.span, bool)
        self.allowed: set[int] = set()
        self.flying: set[int] = set()
        self.lost: set[int] = set()
        self.sent: set[int] = set()
        self.ever: set[int] = set()  # that were allowed to leave; nothing is allowed to twice
        self.now_us = 1

    def _over(self, first: int, end: int) -> None:
        self.pending[first:end] = False
        self.group.on_done(first, end)
        for gone in (self.flying, self.lost, self.allowed):
            gone -= set(range(first, end))

    def _allow(self, first: int, end: int) -> None:
        self.pending[first:end] = True
        self.allowed |= set(range(first, end))
        self.ever |= set(range(first, end))

    @rule(data=st.data())
    def a_chunk_may_leave(self, data: st.DataObject) -> None:
        attempt, chunk = data.draw(st.integers(0, 1)), data.draw(st.integers(0, self.plan.chunks - 1))
        first, end = (self.plan.data_start(attempt) + f for f in self.plan.fragments_of(chunk))
        if not self.ever.isdisjoint(range(first, end)):
            return
        self.group.allow_chunk(attempt, chunk)
        self._allow(first, end)

    @rule(data=st.data())
    def a_scale_may_leave(self, data: st.DataObject) -> None:
        attempt, fragment = data.draw(st.integers(0, 1)), data.draw(st.integers(0, self.plan.scale_fragments - 1))
        first = self.plan.scale_start(attempt) + fragment
        if first not in self.ever:
            self.group.allow_scale(attempt, fragment)
            self._allow(first, first + 1)

    @precondition(lambda self: self.group.has_work)
    @rule(window=st.integers(1, 400), most=st.integers(1, 300), below=st.integers(0, 700))
    def take(self, window: int, most: int, below: int) -> None:
        ranges = self.group.take(window, most, below, self.pending)
        taken = [local for first, end in ranges for local in range(first, end)]
        assert len(taken) == len(set(taken)) <= most
        for local in taken:
            assert self.pending[local], "nobody needs it"
            assert local in self.lost or (local in self.allowed and local < below), "it was not to leave"
            assert local not in self.flying, "it is under way"
            older = sum(1 for other in self.flying if other < local)
            assert older < window, "the window was full of older ones"
        self.allowed -= set(taken)
        self.lost -= set(taken)
        self.now_us += 1
        for first, end in ranges:
            self.group.on_sent(first, end, self.now_us, ANSWER_US)
        self.flying |= set(taken)
        self.sent |= set(taken)

    @precondition(lambda self: self.pending.any())
    @rule(data=st.data())
    def sums_come(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(np.flatnonzero(self.pending).tolist()))
        end = first + 1
        while end < self.plan.span and self.pending[end] and end - first < data.draw(st.integers(1, 50)):
            end += 1
        self._over(first, end)

    @precondition(lambda self: bool(self.flying))
    @rule(data=st.data())
    def some_are_lost(self, data: st.DataObject) -> None:
        before_us = data.draw(st.integers(1, self.now_us + 1))
        waiting = self.group.waiting(self.pending, 0, before_us)
        assert set(waiting.tolist()) <= self.sent
        news = self.group.mark_lost(waiting)
        assert news == len(set(waiting.tolist()) & self.flying)
        assert self.group.mark_lost(waiting) == 0, "lost once is lost"
        self.flying -= set(waiting.tolist())
        self.lost |= set(waiting.tolist())

    @precondition(lambda self: self.pending.any())
    @rule(data=st.data())
    def some_are_late(self, data: st.DataObject) -> None:
        """Those that are found where all are looked through."""
        before_us = data.draw(st.integers(0, self.now_us + 1))
        up_to = data.draw(st.integers(0, self.under_way.sent))
        asked = self.pending, int(self.pending.argmax()), before_us, up_to, self.now_us
        found, is_in_order = self.group.unknown(*asked).tolist(), self.group.in_order
        self.group.in_order = False
        assert found == self.group.unknown(*asked).tolist()
        self.group.in_order = is_in_order

    @rule(data=st.data())
    def a_chunk_is_over(self, data: st.DataObject) -> None:
        attempt, chunk = data.draw(st.integers(0, 1)), data.draw(st.integers(0, self.plan.chunks - 1))
        first, end = (self.plan.data_start(attempt) + f for f in self.plan.fragments_of(chunk))
        for local in (first + np.flatnonzero(self.pending[first:end])).tolist():
            self._over(local, local + 1)
        self.group.forget_chunk(attempt, chunk)
        assert not any(first <= local < end for start, stop in self.group._fresh for local in range(start, stop))

    @rule(data=st.data(), held=st.integers(0, 15))
    def somebody_holds(self, data: st.DataObject, held: int) -> None:
        local = data.draw(st.integers(0, self.plan.span - 1))
        partly = held & self.group.bits not in (0, self.group.bits) and len(self.group.parts) > 1
        before = self.group.excluded.get(local)
        assert self.group.exclude(local, held) == (partly and before != held & self.group.bits)
        assert self.group.excluded.get(local) == (held & self.group.bits if partly else None)

    @invariant()
    def the_counts_are_right(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.group.in_flight == self.under_way.in_flight == len(self.flying)
        assert self.group.fresh >= len(self.allowed)  # what is over is left out when its turn comes
        assert self.group.high == max(self.sent, default=-1) + 1

    def teardown(self) -> None:
        """With room for all, everything that may leave does."""
        if not hasattr(self, "group"):
            return
        everything = self.plan.span + 1
        ranges = self.group.take(10 * everything, everything, everything, self.pending) if self.group.has_work else []
        taken = {local for first, end in ranges for local in range(first, end)}
        assert taken == {local for local in self.allowed | self.lost if self.pending[local]}


TestGroup = Group.TestCase
TestGroup.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, phases=[Phase.generate], report_multiple_bugs=False
)


def test_what_was_sent_again_hides_nothing_behind_it() -> None:
    """The oldest that is missing was sent last."""
    plan = Plan(700, LANES)
    group = ContributionGroup(plan, 1, [np.ones(700, np.float32)], 4, on_behalf=False, under_way=UnderWay())
    pending = np.ones(plan.span, bool)
    first = plan.data_start(0)
    group.allow_chunk(0, 0)
    for now_us in (10, 20):
        ((begin, end),) = group.take(100, 4, plan.span, pending)
        group.on_sent(begin, end, now_us, ANSWER_US)
    assert group.unknown(pending, first, 10, 0, 30).tolist() == []
    assert group.unknown(pending, first, 20, 0, 30).tolist() == list(range(first, first + 4))
    group.mark_lost(np.array([first]))
    group.on_sent(*group.take(100, 1, plan.span, pending)[0], 30, ANSWER_US)
    assert group.unknown(pending, first, 25, 0, 40).tolist() == list(range(first + 1, first + 8))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("values", [16_384, 3 * 16_384 + 700])
def test_what_grew_out_of_its_exponent_costs_a_chunk_not_a_fragment(
    parts: int, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its magnitude has grown all of a tensor is poisoned. Each part is rounded once more, to say whose it is."""
    calls = 0

    def counted(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        return quantise(*arguments)

    monkeypatch.setattr(rounded_values, "quantise", counted)
    rng = np.random.default_rng(3)
    arrays = [
        rng.choice(np.array([1.0, 1e6, np.nan], np.float32), values, p=[0.99, 0.005, 0.005]) for _ in range(parts)
    ]
    plan = Plan(values, LANES)
    group = ContributionGroup(plan, (1 << parts) - 1, arrays, 4, on_behalf=False, under_way=UnderWay())
    for chunk in range(plan.chunks):
        group.allow_chunk(0, chunk)
    for run in plan.runs(plan.data_start(0), plan.data_start(0) + plan.data_fragments):
        lanes, bits = np.empty((len(run), LANES), LANE), np.empty((len(run), 1), ">u8")
        group.write_lanes(run, 20, bits, lanes)
        for row, fragment in enumerate(range(run.fragment, run.end - run.first + run.fragment)):
            span = slice(fragment * LANES, min((fragment + 1) * LANES, values))
            bad = [~(np.abs(part[span]) < 1e5) for part in arrays]
            whose = {0, 1, 2} & {n for n, lane in enumerate(bad) if lane.any()}
            expected = np.zeros(LANES, np.int64)
            known = np.sum([np.where(lane, 0, 1 << 20) for lane in bad], axis=0)
            expected[: len(known)] = np.where(np.logical_or.reduce(bad), 0, known)
            expected[sorted(whose)] = POISON
            np.testing.assert_array_equal(lanes[row], expected)
    assert plan.chunks <= calls <= (1 + parts) * plan.chunks
