"""What the ledger believes of each worker now: when it is free, and how long work takes it. (protocol section 10.3)

All times are microseconds of the parameter server's clock.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.believing import LONGEST_US, NEVER_US, REPEATED
from sa_atp.protocol.help.plan import PLAIN, Kernels, Machines
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.records import Records

LEAST_SENDING_US = 50_000  # a link on which a contribution takes less is not slow: a busy host may be the reason
WRITTEN_AHEAD_US = 25_000  # a host writes packets ahead for so much of its link's time (net.loop.send_pacer)
FIRST_PATIENCE = 4  # times as long must a silence be in the first step
BEHIND = 2  # steps: the sum of one step may still come down a slow link while the others are in the next
HEARD_US = 150_000  # a worker that waits for an old sum makes three offers in this time (lots.LONGEST_POLL_US)
LINKS = Rule("links", "Plans know slow links, on which work for others leaves together with one's own.")
SPARING = Rule("sparing", "Workers that still receive sums of earlier steps, down a slow link, keep their work.")


class Projection:
    def __init__(self, workers: Sequence[Worker], kernels: Kernels = PLAIN) -> None:
        """Args: workers: what is known of each, by rank. kernels: for questions about all of them, compiled or not."""
        self._workers = workers
        self._kernels = kernels

    def beliefs(self, state: Step) -> list[Belief]:
        """The belief about each worker, by rank: worked out anew where there is news. It is not changed elsewhere."""
        if state.records is None and self._kernels is not PLAIN:
            state.records = Records(Belief, len(self._workers))
        state.news |= state.unmeasured
        for rank in state.news:
            b = state.beliefs[rank] = self.belief(state, rank)
            if state.records is not None:
                state.records.write(rank, b)
            if b.is_measured:
                state.unmeasured.discard(rank)
        state.news.clear()
        return state.beliefs

    def _given(self, state: Step) -> list[Belief] | NDArray[np.void]:
        """The same as kernels take it: objects, or records for compiled ones."""
        beliefs = self.beliefs(state)
        return beliefs if state.records is None else state.records.array

    def machines(self, state: Step, rank: int, busy_until_us: int, now_us: int) -> tuple[Machines, int]:
        """Workers as the planner sees them now. Args, returns: see plan.machines."""
        return plan.machines(self._given(state), rank, busy_until_us, now_us, self._kernels)

    def late(self, state: Step, rank: int, now_us: int) -> Iterator[int]:
        """Workers whose own shard, or lot, a rank may back up."""
        return self._each(self._kernels.next_late, state, rank, now_us)

    def overdue(self, state: Step, rank: int, now_us: int) -> Iterator[int]:
        """Owners other than a rank that should have been done by now, and have not said so."""
        return self._each(self._kernels.next_overdue, state, rank, now_us)

    def _each(self, following: Callable[..., int], state: Step, rank: int, now_us: int) -> Iterator[int]:
        known, found = self._given(state), -1
        while (found := following(known, rank, found + 1, now_us)) >= 0:
            yield found

    def ask_again_us(self, state: Step, rank: int, now_us: int) -> int:
        """After how long a rank should offer again because of what others have not done; NEVER_US: they have done all."""
        return int(self._kernels.ask_again_us(self._given(state), rank, now_us))

    def belief(self, state: Step, rank: int) -> Belief:
        """What is believed of a worker in a step."""
        worker, course = self._workers[rank], state.courses[rank]
        measured_us, held, is_idle = self.measured_us(state, rank), state.held(rank), course.idle_us is not None
        each_us = min((self.typical_us(rank) or 0.0) if measured_us is None else measured_us, LONGEST_US)
        link_us, due_us = self.link_us(rank), self._due_us(state, rank, int(each_us), held)
        own_us = 0 if course.joins_lot or course.idle_us is None or not held else course.idle_us + link_us
        return Belief(
            each_us=float(each_us),
            is_measured=measured_us is not None,
            weight=worker.weight,
            held=held,
            begun=course.begun,
            free=state.free(rank),
            is_idle=is_idle,
            holds_nothing=course.began_us is not None and not held,
            is_ended=rank in state.ended,
            is_overdue=course.was_overdue and course.newest_us is not None,
            has_reported=course.newest_us is not None,
            newest_us=course.newest_us or 0,
            due_us=due_us,
            lot_us=course.lot_until_us,
            has_lot=bool(course.lot),
            link_us=link_us,
            slow_link_us=link_us if self.has_slow_link(rank) else 0,
            link_free_us=max(own_us, course.link_until_us),
            answer_us=worker.answer_us,
            asks_again_us=course.asks_again_us,
            behind_us=self._behind_us(state, worker),
            # in the first step no times are known, and workers that joined late have not begun
            patience_us=(FIRST_PATIENCE if state.is_first else 1) * LEAST_SENDING_US,
        )

    @SPARING.or_else(-NEVER_US)
    def _behind_us(self, state: Step, worker: Worker) -> int:
        """Until when a worker counts as receiving sums of earlier steps."""
        if worker.waited_us is None or state.number - worker.newest_step < BEHIND:
            return -NEVER_US
        return worker.waited_us + HEARD_US + (1 + REPEATED) * worker.answer_us

    def measured_us(self, state: Step, rank: int) -> float | None:
        """The measured time of a worker for a micro-batch of its shard, in this step if possible."""
        return state.courses[rank].micro_batch_us or self._workers[rank].micro_batch_us

    def duration(self, state: Step, rank: int) -> int:
        """`measured_us` in whole microseconds; 0: nothing is measured."""
        return int(self.measured_us(state, rank) or 0)

    def least_us(self, rank: int) -> int:
        """The least that a micro-batch of its own may take a worker in the next step, given how its speed changed so
        far.
        """
        worker, typical_us = self._workers[rank], int(self.typical_us(rank) or 0)
        each_us = worker.micro_batch_us or 0
        return int(max(each_us - worker.unsure_us * worker.weight, min(each_us, typical_us)))

    def typical_us(self, shard: int) -> float | None:
        """The time that the median worker takes for a micro-batch of a shard; None: no speed is known."""
        known = sorted(w.unit_us for w in self._workers if w.unit_us is not None)
        return known[len(known) // 2] * self._workers[shard].weight if known else None

    def _due_us(self, state: Step, rank: int, each_us: int, held: int) -> int:
        """When a worker should be done with what it holds of its own shard."""
        course = state.courses[rank]
        # a worker that has not begun this step may have stopped in the one before: its report tells nothing of its
        # progress
        if course.newest_us is None or course.began_us is None:
            return (state.began_us if course.began_us is None else course.began_us) + held * each_us
        done_us = course.newest_us + (held - course.granted - course.begun + course.is_computing) * each_us
        # a worker that was late at its report still computes, and does not wait for the grant
        is_late = course.is_computing and done_us < course.granted_us - self._workers[rank].answer_us
        begins_us = max(done_us, course.granted_us) if course.granted and not is_late else done_us
        return begins_us + course.granted * each_us

    @LINKS.or_else(False)
    def has_slow_link(self, rank: int) -> bool:
        """Whether a contribution keeps a worker's link busy for longer than a busy host would explain."""
        return self._workers[rank].send_us >= LEAST_SENDING_US

    @LINKS.or_else(0)
    def link_us(self, rank: int) -> int:
        """How long a contribution keeps a worker's link busy: the usual time on a slow link, else the shortest time (a
        busy host may explain the rest), and 0 where writing ahead explains all of it.
        """
        worker = self._workers[rank]
        if self.has_slow_link(rank):
            return worker.send_us
        return worker.least_send_us if worker.least_send_us > WRITTEN_AHEAD_US else 0

    def note_sending(self, state: Step, rank: int) -> None:
        """Notes that a worker sends its lot, because there is no more work for it."""
        course = state.courses[rank]
        if course.is_gathering:
            own_us = 0 if course.joins_lot or course.idle_us is None else course.idle_us + self.link_us(rank)
            begins_us = max(own_us, course.link_until_us, course.lot_until_us)
            course.link_until_us, course.is_gathering = begins_us + self.link_us(rank), False
            state.news.add(rank)
