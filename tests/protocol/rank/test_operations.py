"""The book of operations against plain lists: who is open, whose numbers are whose, and that none waits without need."""

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.job.serial import SEQ_MASK
from sa_atp.protocol.numbers.fragments import Plan
from sa_atp.protocol.packets.header import LANE
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import UNKNOWN, Operation
from sa_atp.protocol.rank.sums.operations import Operations

LANES, SLOTS = 64, 16
KEYS = (None, None, None, "a", "a")


class Book(RuleBasedStateMachine):
    """Lists beside the book: of each operation its place and key, and how far it has come."""

    @initialize(first_seq=st.sampled_from((0, 77, SEQ_MASK - 20, SEQ_MASK // 2 - 9)))
    def begin_the_job(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.book = Operations(
            Membership(
                job=1, epoch=1, rank=0, world_size=2, micro_batches=1, lanes=LANES, slot_base=0, slot_count=SLOTS,
                first_seq=first_seq, data_address=("", 1), server_address=("", 2), alive_every_us=1,
            )
        )  # fmt: skip
        self.places: list[int] = []
        self.plans: list[Plan] = []
        self.keys: list[str | None] = []
        self.groups: list[ContributionGroup | None] = []
        self.done: set[int] = set()
        self.taken: set[int] = set()
        self.opened = 0  # so many have been
        self.end = 0

    def _seq(self, place: int) -> int:
        return (self.first_seq + place) & SEQ_MASK

    def _owner(self, place: int) -> int:
        return max(n for n, start in enumerate(self.places) if start <= place)

    def _active(self) -> list[int]:
        return [n for n in range(self.opened) if n not in self.done]

    def _open(self, below: int) -> None:
        """In order, as far as that, and up to the first whose key is in use."""
        while self.opened < len(self.places) and self.places[self.opened] < below:
            key = self.keys[self.opened]
            if key is not None and key in [self.keys[n] for n in self._active()]:
                break
            self.opened += 1

    def _oldest_place(self) -> int:
        active = self._active()
        if active:
            found = self.book[active[0]]
            return self.places[active[0]] + int(found.pending.argmax())
        return self.places[self.opened] if self.opened < len(self.places) else self.end

    @rule(values=st.sampled_from((1, 64, 65, 300)), key=st.sampled_from(KEYS))
    def begin(self, values: int, key: str | None) -> None:
        index, seq = self.book.begin(values, key)
        assert (index, seq) == (len(self.places), self._seq(self.end)), "numbers follow one another without gaps"
        self.places.append(self.end)
        self.plans.append(Plan(values, LANES))
        self.keys.append(key)
        self.groups.append(None)
        self.end += self.plans[-1].span

    @rule()
    def those_whose_turn_has_come(self) -> None:
        before = self.opened
        self._open(self._oldest_place() + SLOTS)
        assert self.book.open_waiting() == (self.opened > before)

    @precondition(lambda self: len(self.taken) < len(self.places))
    @rule(data=st.data())
    def contribute(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from([n for n in range(len(self.places)) if n not in self.taken]))
        plan = self.book.plan_of(index)
        assert plan == (None if index in self.done else self.plans[index])
        if plan is None or self.groups[index] is not None:
            return
        group = ContributionGroup(
            plan, 1, [np.ones(plan.values, np.float32)], 2, on_behalf=False, under_way=self.book.under_way
        )
        self.groups[index] = group
        self.book.add(index, group)

    @precondition(lambda self: self._active())
    @rule(data=st.data())
    def sums_come(self, data: st.DataObject) -> None:
        """All zeros: of the scale, or where that is predicted, of the data."""
        index = data.draw(st.sampled_from(self._active()))
        found = self.book[index]
        assert found.key == self.keys[index]
        while not found.is_done():
            local = int(found.pending.argmax())
            exponent = int(found.exponent[0])
            found.on_results(local, 0 if exponent == UNKNOWN else exponent, np.zeros((1, LANES), LANE))
        self.book.finish(found)
        self.done.add(index)

    @precondition(lambda self: self.done - self.taken)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.done - self.taken)))
        out = np.ones(self.plans[index].values, np.float32)
        assert self.book.take(index, out).index == index
        assert not out.any()
        self.taken.add(index)

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def a_result_comes(self, data: st.DataObject) -> None:
        """Also of what has not been opened: others have done it without us."""
        place = data.draw(st.integers(0, self.end + 3))
        found, following = self.book.reach(self._seq(place))
        self._open(place + 1)
        assert self.book.has_begun(self._seq(place)) == (place < self.end)
        assert self.book.find(self._seq(place)) is found
        if place >= self.end:
            assert found is None
            return
        owner = self._owner(place)
        if found is None:
            assert owner in self.taken or owner >= self.opened
        else:
            assert (found.index, found.first_seq) == (owner, self._seq(self.places[owner]))
            assert following == self.places[owner] + self.plans[owner].span - place
        assert following >= 1
        known: list[Operation] = [self.book[n] for n in range(self.opened) if n not in self.taken]
        ends = [end for end in (*self.places, self.end) if end > place]
        end = data.draw(st.one_of(st.sampled_from(ends), st.integers(place + 1, place + 60)))
        inside = [
            o for o in known if self.places[o.index] < end and place < self.places[o.index] + self.plans[o.index].span
        ]
        assert self.book.overlapping(self._seq(place), end - place) == inside

    @invariant()
    def the_book_is_right(self) -> None:
        if not hasattr(self, "book"):
            return
        active = self._active()
        assert [operation.index for operation in self.book.active()] == active
        assert [operation.key for operation in self.book.active()] == [self.keys[n] for n in active]
        assert self.book.waiting() == len(self.places) - self.opened
        assert self.book.oldest_place() == self._oldest_place()
        assert self.book.oldest_seq() == self._seq(self._oldest_place())
        oldest = self.book.oldest
        assert (oldest and oldest.index) == (active[0] if active else None)
        for n in range(len(self.places)):
            found = self.book.get(n)
            assert (found is not None) == (n < self.opened and n not in self.taken)
            if found is not None and n not in self.done:
                assert found.groups == [g for g in [self.groups[n]] if g], "what was given while it waited is there"
                known = any(self.keys[m] == self.keys[n] and self.plans[m].chunks == 1 for m in range(n))
                assert found.foretold == (self.keys[n] is not None and known)
        assert self.book.under_way.missing == sum(operation.missing for operation in self.book.active())

    def teardown(self) -> None:
        """None waits for ever."""
        if not hasattr(self, "book"):
            return
        for _ in range(len(self.places) + 1):
            self.book.open_waiting()
            for found in list(self.book.active()):
                while not found.is_done():
                    local = int(found.pending.argmax())
                    exponent = int(found.exponent[0])
                    found.on_results(local, 0 if exponent == UNKNOWN else exponent, np.zeros((1, LANES), LANE))
                self.book.finish(found)
        assert self.book.waiting() == 0
        assert self.book.oldest_place() == self.end


TestBook = Book.TestCase
TestBook.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, phases=[Phase.generate], report_multiple_bugs=False
)
