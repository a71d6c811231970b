"""The ledger: who owns each micro-batch of each shard in a step. (protocol section 10.2)

The parameter server keeps one for each job. Every micro-batch has at most one owner, so nothing is computed twice, with
two deliberate exceptions: `clone`, where a helper computes a straggler's whole shard beside it, and backup, where the
owner of a micro-batch has been silent for far longer than the work should take. There the contribution bitmap decides:
the copy that reaches a sum first is in it, the other one is dropped.

At the beginning of a step each rank owns its own shard, and need not ask. A micro-batch can go to somebody else once
its owner has said that it does not hold it: because of earlier advice, or in answer to a revocation (`to_revoke`).
"""

import math
from collections import deque
from collections.abc import Sequence

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.advice import Advice
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.believing import ASK_AGAIN_US, NEVER_US, expected_us
from sa_atp.protocol.help.lots import LONGEST_POLL_US, Lots
from sa_atp.protocol.help.plan import PLAIN, Kernels, Plan
from sa_atp.protocol.help.progress import NOBODY, Assigned, Course, SendProgress, Step, Worker, WorkerReport
from sa_atp.protocol.help.projection import SPARING, Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.help.silence import Silence
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.message_fields import HelpGrade

__all__ = ["Assigned", "Ledger", "SendProgress", "WorkerReport"]

STEPS_KEPT = 4  # leaders may run ahead of a straggler whose work they do
WAITS = 1.5  # a worker that takes so many times as long as usual is late because of its device, not of its link
LATE = Rule("late workers' word", "A worker that says it has not got on, after its work was due, is believed at once.")
REVOCATIONS = Rule("revocations", "Owners are asked for pieces that the plan has for others, or that are late.")


class Ledger:
    def __init__(self, world_size: int, micro_batches: int, grade: HelpGrade, kernels: Kernels = PLAIN) -> None:
        """Args: kernels: for plans, compiled or not."""
        self.world_size = world_size
        self.micro_batches = micro_batches
        self._map = ContributionMap(world_size, micro_batches)
        self.grade = grade
        self._steps: dict[int, Step] = {}
        self._workers = [Worker() for _ in range(world_size)]
        self._projection = Projection(self._workers, kernels)
        self.racks = Racks(self._workers, kernels)
        silence = Silence(self._map, self._projection, self.racks)
        self.lots = Lots(self._workers, self._map, self._projection, self.racks, silence)
        self.to_revoke: deque[tuple[int, int, int]] = deque()
        """Revocations to send, as (rank, step, held). held: how much of its own shard the owner is thought to hold."""
        self._advice = Advice(self._workers, micro_batches, self._projection, self.racks, kernels)

    # --- what workers say ---------------------------------------------------------------------------------------------

    def claim(
        self, step: int, rank: int, begun: int, held: int, since_us: int | None, report: WorkerReport, now_us: int
    ) -> tuple[int, bool]:
        """Takes a worker's claim: its progress in its own shard, how much of that it holds, and a request for more.

        Args:
            begun: how many micro-batches it has begun.
            held: how many it holds, those included.
            since_us: for how long it has computed the last one that it has begun; None: that one is done.

        Returns: how many it holds from now on; and whether it gets no more.
        """
        state, sent_us = self._hear(step, rank, report, now_us)
        course = state.courses[rank]
        course.begun, course.granted = begun, 0
        course.granted_us = now_us + report.answer_us // 2
        course.is_computing = since_us is not None
        course.newest_us = sent_us - (since_us or 0)
        course.was_overdue = self._is_overdue(state, rank, begun, since_us, report)
        if begun == self.micro_batches and since_us is None and course.idle_us is None:
            course.idle_us = sent_us  # its Idle message may be queued behind its data
        owners = state.owner[rank]
        held = min(held, state.held(rank))  # claims may arrive out of order
        course.trim_lot(rank, held)
        for m in range(held, self.micro_batches):
            # what it was given as a helper, it may be computing
            if owners[m] == rank and (rank, m) not in course.lot and not course.given & self._map.bit(rank, m):
                owners[m] = NOBODY
        if self._is_over(step):
            return held, True
        if self.grade is not HelpGrade.STEAL:
            until = self._grant(state, rank, held, self.micro_batches)
            return until, until < self.micro_batches
        if begun == 0 and since_us is None and report.spent_us == 0:
            self._leave_alone(state, step, rank, now_us)  # it is not in this step yet
        else:
            course.left_alone_until_us = 0
            if rank not in state.ended:
                held = self._grant_more(state, rank, begun, held, now_us)
            if rank in state.ended and not course.was_overdue:
                course.offered_us = self._projection.beliefs(state)[rank].due_us  # it can help
        if self.lots.may_call(state):
            _, best = self._plan(state, now_us)
            self.lots.call(state, best, now_us)
        return held, rank in state.ended

    def ask(
        self,
        step: int,
        rank: int,
        missing: int,
        report: WorkerReport,
        busy_us: int,
        now_us: int,
        pending: float | None = None,
        given: int | None = None,
    ) -> Assigned | None:
        """Takes a leader's offer to work. Returns: what it is to do; None: nothing.

        Args:
            missing: contributions that its sums lack (a bitmap).
            busy_us: for how long its present work will still take; 0: it is idle.
            pending: share of the fragments whose sum it lacks; None: not known.
            given: contributions that it was given to compute in this step (a bitmap); None: all that it was.
        """
        state, sent_us = self._hear(step, rank, report, now_us)
        course = state.courses[rank]
        free_us = sent_us + busy_us
        if not busy_us and self._is_over(step):
            self._workers[rank].waited_us = now_us
        if self.grade is HelpGrade.NONE or self._is_over(step):
            return None
        unknown = 0 if given is None else course.given & ~given
        if unknown and now_us - course.called_us >= report.answer_us:
            return self.lots.again(state, rank, unknown)  # a call was lost
        if unknown:  # it is under way
            free_us = max(free_us, course.lot_until_us)
        course.asks_again_us, course.offered_us = 0, None
        work = self._choose(state, step, rank, missing, report, free_us, max(0, free_us - sent_us), now_us, pending)
        state.is_helped |= work is not None
        if work is None:
            self._projection.note_sending(state, rank)
            course.offered_us = free_us
        return work

    def ask_again_us(self, step: int, rank: int, now_us: int) -> int:
        """After how long a leader that got no work should ask again, if it is not called before: when its question may
        change something.
        """
        if self._is_over(step):
            return LONGEST_POLL_US
        return self.lots.again_us(self._steps[step], rank, now_us)

    def idle(self, step: int, rank: int, report: WorkerReport, now_us: int) -> None:
        """Notes that a worker has computed all that it held, and sends it."""
        state, sent_us = self._hear(step, rank, report, now_us)
        state.courses[rank].idle_us = sent_us
        if self._is_over(step):
            self._workers[rank].waited_us = now_us

    def note_overtaken(self, step: int, rank: int, report: WorkerReport) -> None:
        """Takes the speed from a report that a newer one has overtaken; the rest of it no longer counts."""
        self._workers[rank].note_duration(step, report)
        self._note_news(rank)

    def crossed(self, step: int) -> list[int]:
        """Shards of a step with a helper below another leaf than their owner's. (protocol section 10.5)"""
        state = self._steps.get(step)
        return [] if state is None else sorted(state.crossed)

    def beliefs(self, step: int) -> Sequence[Belief]:
        """What is believed of each rank, for people; nothing, of a step that is over or has not begun."""
        state = self._steps.get(step)
        return () if state is None else self._projection.beliefs(state)

    def advice(self, rank: int) -> tuple[int, bool]:
        """Advice for the steps to come; see Advice.of."""
        if self.grade is not HelpGrade.STEAL:
            return self.micro_batches, False
        helped = sum(state.is_helped for state in self._steps.values())
        return self._advice.of(rank, is_usual=2 * helped > len(self._steps))

    def _is_over(self, step: int) -> bool:
        """Whether some worker has begun a later step: then all sums of this one exist, and late workers only fetch
        them.
        """
        return any(
            later > step and any(course.began_us is not None for course in state.courses)
            for later, state in self._steps.items()
        )

    @LATE.or_else(False)
    def _is_overdue(self, state: Step, rank: int, begun: int, since_us: int | None, report: WorkerReport) -> bool:
        """Whether what an owner is at takes longer than usual. One that has begun none of its work may have stopped before
        the first micro-batch.
        """
        at_it_us = report.spent_us if begun == 0 < state.held(rank) else since_us or 0
        return at_it_us > (self._projection.duration(state, rank) or NEVER_US)

    # --- an owner's own shard -----------------------------------------------------------------------------------------

    @SPARING.or_else(None)
    def _leave_alone(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """Leaves a worker that has not begun this step its own work for a while, if it waits for the sum of the step
        before.

        That sum was lost, or comes down a slow link; helping such a worker would make the next sum late for it as well.
        """
        course, before = state.courses[rank], self._steps.get(step - 1)
        is_done = before is not None and before.courses[rank].idle_us is not None
        b, usual_us = self._projection.beliefs(state)[rank], self._projection.typical_us(rank) or 0
        each_us = expected_us(b, b)
        if is_done and course.left_alone_until_us is None and each_us <= WAITS * usual_us:
            worker = self._workers[rank]
            whole_us = self.micro_batches * each_us + worker.send_us
            course.left_alone_until_us = now_us + 2 * max(whole_us, worker.lag_us, 2 * worker.answer_us)
            state.news.add(rank)

    def _plan(
        self, state: Step, now_us: int, rank: int = NOBODY, busy_until_us: int = NEVER_US
    ) -> tuple[list[int], Plan]:
        """Makes the best plan for the rest of a step.

        Args: busy_until_us: when the worker that asks says that it will be free.
        Returns: how many micro-batches of its own each worker holds that it should not have begun; the plan.
        """
        machines, movable = self._projection.machines(state, rank, busy_until_us, now_us)
        held = plan.held_of(machines)
        if not movable:
            return held, Plan(0.0, held, [{}] * len(held))
        return held, self.racks.plan(state.crossed, machines)

    def _grant_more(self, state: Step, rank: int, begun: int, held: int, now_us: int) -> int:
        """Grants an owner the micro-batches that the plan has for it, a part at a time: what is not granted yet can still
        go to a helper. Returns: how many it holds then.
        """
        each_us = self._projection.duration(state, rank)
        if not each_us:
            until = self._grant(state, rank, held, held + 1)
            if until == held < self.micro_batches:
                self._end(state, rank)
            return until
        answer_us, more = self._workers[rank].answer_us, 0
        if state.free(rank):
            to_begin, best = self._plan(state, now_us)
            more = best.own[rank] - to_begin[rank]
        if more <= 0:
            if (held - begun) * each_us > 2 * answer_us + each_us:
                return held  # it still has work, and will ask again
            self._end(state, rank)
            return held
        soon = math.ceil(2 * answer_us / each_us)  # what it computes until its next claim can be answered
        until = self._grant(state, rank, held, held + min(more, max(1, soon, more // 2)))
        if until < self.micro_batches and not state.free(rank):
            self._end(state, rank)  # helpers have the rest
        return until

    def _grant(self, state: Step, rank: int, held: int, until: int) -> int:
        owners, course = state.owner[rank], state.courses[rank]
        while held < min(until, self.micro_batches) and owners[held] in (NOBODY, rank):
            owners[held] = rank
            held += 1
            course.granted += 1
        state.news.add(rank)
        return held

    def _end(self, state: Step, rank: int) -> None:
        """Tells an owner that it gets no more of its shard."""
        state.ended.add(rank)
        state.news.add(rank)

    # --- help ---------------------------------------------------------------------------------------------------------

    def _choose(
        self,
        state: Step,
        step: int,
        rank: int,
        missing: int,
        report: WorkerReport,
        idle_us: int,
        busy_us: int,
        now_us: int,
        pending: float | None,
    ) -> Assigned | None:
        """Chooses work for a leader. Args: idle_us: when its present work will be done."""
        free_us = max(idle_us, now_us + report.answer_us // 2)
        if self.grade is HelpGrade.CLONE:
            work = None if busy_us else self.lots.clone(state, rank, missing, free_us, now_us)
            if work is None:
                self._ask_overdue(state, step, rank, now_us)
            return work
        work = self._help(state, step, rank, now_us, free_us, is_busy=busy_us > 0)
        if work is not None or busy_us:
            return work
        is_silent = pending is None or pending == 1  # else some sums are complete: every worker has sent something
        return self.lots.copy(state, rank, missing, now_us) if is_silent else None

    def _help(self, state: Step, step: int, rank: int, now_us: int, done_us: int, *, is_busy: bool) -> Assigned | None:
        """Gives a helper its part of the plan: the last free micro-batches of a shard. Where the plan has moved what
        owners hold, these are asked to give it up.

        Args: done_us: when its present work will be done. is_busy: it still computes its last lot, or has not sent it.
        """
        to_begin, best = self._plan(state, now_us, rank, done_us)
        work = self.lots.give(state, rank, best.parts[rank], now_us, done_us, is_busy=is_busy)
        if work is None and self.lots.may_call(state):
            self.lots.call(state, best, now_us)  # else each would leave it to the others
        if work is None:
            for shard, count in enumerate(to_begin):
                if shard != rank and best.own[shard] < count:
                    self._ask_back(state, step, shard, now_us)
            self._ask_overdue(state, step, rank, now_us)
        return work

    def _ask_overdue(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """Asks owners that should have been done by now for their progress."""
        for owner in self._projection.overdue(state, rank, now_us):
            self._ask_back(state, step, owner, now_us)

    @REVOCATIONS.or_else(None)
    def _ask_back(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """Revokes what an owner need not hold, unless it was asked so recently that there can be no news."""
        course = state.courses[rank]
        # an owner that has answered has no news before it has had time for a micro-batch
        usual_us = self._projection.duration(state, rank) if course.revoked_us is None else ASK_AGAIN_US
        if course.asked_us is not None and now_us - course.asked_us < max(usual_us, 2 * self._workers[rank].answer_us):
            return
        if course.revoked_us is None:
            course.revoked_us = now_us
        course.asked_us = now_us
        self.to_revoke.append((rank, step, state.held(rank)))

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _hear(self, step: int, rank: int, report: WorkerReport, now_us: int) -> tuple[Step, int]:
        """Notes a report. Returns: its step, and when it was sent."""
        self._workers[rank].learn(step, report)
        sent_us = now_us - report.answer_us // 2
        state = self._step(step, sent_us - report.spent_us)
        course: Course = state.courses[rank]
        if report.spent_us and course.began_us is None:
            self._workers[rank].note_lag(sent_us - report.spent_us - state.began_us)
        course.learn(report, sent_us)
        course.revoked_us = None
        self._note_news(rank)
        return state, sent_us

    def _note_news(self, rank: int) -> None:
        for state in self._steps.values():
            state.news.add(rank)

    def _step(self, step: int, began_us: int) -> Step:
        if step not in self._steps:
            self._steps[step] = Step.begin(self.world_size, self.micro_batches, began_us, step)
            before = self._steps.get(step - 1)
            if before is not None and step > 1:  # in the first step everything takes longer
                self.racks.learn(before, began_us - before.began_us)
            for old in [s for s in self._steps if s <= step - STEPS_KEPT]:
                del self._steps[old]
        return self._steps[step]
