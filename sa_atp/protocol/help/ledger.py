"""The ledger: who owns each micro-batch of each shard in a step. (protocol section 10.2)

The parameter server keeps one for each job. Every micro-batch has at most one owner, so nothing is computed twice, with
two deliberate exceptions: `clone`, where a helper computes a straggler's whole shard beside it, and backup, where the
owner of a micro-batch has been silent for far longer than the work should take. There the contribution bitmap decides:
the copy that reaches a sum first is in it, the other one is dropped.

At the beginning of a step each rank owns its own shard, and need not ask. A micro-batch can go to somebody else once
its owner has said that it does not hold it: because of earlier advice, or in answer to a revocation.
"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.advice import Advice
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.believing import ASK_AGAIN_US, NEVER_US
from sa_atp.protocol.help.lots import LONGEST_POLL_US, Lots
from sa_atp.protocol.help.plan import PLAIN, Kernels, Plan
from sa_atp.protocol.help.progress import NOBODY, Course, SendProgress, Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.help.silence import Silence
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.help_messages import Assignment, Offer, WorkReport
from sa_atp.protocol.packets.message_fields import HelpGrade

__all__ = ["Ledger", "SendProgress"]

STEPS_KEPT = 4  # leaders may run ahead of a straggler whose work they do
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
        self.unasked = self.lots.unasked
        self._advice = Advice(self._workers, micro_batches, self._projection, self.racks, kernels)

    # --- what workers say ---------------------------------------------------------------------------------------------

    def report(self, rank: int, said: WorkReport, now_us: int) -> Assignment:
        """Takes a worker's report, with its progress in its own shard, and perhaps an offer to compute for others.

        Returns: how much of its own shard it holds from now on, and what else it is to do.
        """
        state, sent_us = self._hear(rank, said, now_us)
        held = self._note_progress(state, rank, said, sent_us, now_us)
        offer = said.offer
        if self._is_over(said.step):
            if said.done if offer is None else not offer.busy_us:
                self._workers[rank].waited_us = now_us
            return Assignment(step=said.step, until=held, over=True, again_us=LONGEST_POLL_US)
        work, copies, again_us = 0, 0, 0 if offer is None else LONGEST_POLL_US
        if self.grade is HelpGrade.STEAL:
            until = self._keep(state, rank, said, held, now_us)
        else:
            until = self._grant(state, rank, held, self.micro_batches)
        if offer is not None and self.grade is not HelpGrade.NONE:
            work, copies = self._offered(state, rank, offer, said, sent_us, now_us)
            again_us = self.lots.again_us(state, rank, now_us)
        elif self.grade is HelpGrade.STEAL and self.lots.may_call(state):
            _, best = self._plan(state, now_us)
            self.lots.call(state, best, now_us)
        is_over = rank in state.ended or (self.grade is not HelpGrade.STEAL and until < self.micro_batches)
        return Assignment(step=said.step, until=until, over=is_over, work=work, copies=copies, again_us=again_us)

    def _note_progress(self, state: Step, rank: int, said: WorkReport, sent_us: int, now_us: int) -> int:
        """Notes a worker's progress in its own shard. Returns: how much of it the worker holds."""
        course = state.courses[rank]
        course.begun, course.granted = said.begun, 0
        course.granted_us = now_us + said.answer_us // 2
        course.is_computing = said.since_us is not None
        course.newest_us = sent_us - (said.since_us or 0)
        course.was_overdue = self._is_overdue(state, rank, said)
        if said.done and course.idle_us is None:
            course.idle_us = sent_us
        owners = state.owner[rank]
        held = min(said.held, state.held(rank))  # reports may arrive out of order
        course.trim_lot(rank, held)
        for m in range(held, self.micro_batches):
            # what it was given as a helper, it may be computing
            if owners[m] == rank and (rank, m) not in course.lot and not course.given & self._map.bit(rank, m):
                owners[m] = NOBODY
        return held

    def _keep(self, state: Step, rank: int, said: WorkReport, held: int, now_us: int) -> int:
        """Grants an owner what the plan has for it. Returns: how many of its own micro-batches it holds then."""
        course = state.courses[rank]
        if not said.begun and said.since_us is None and not said.spent_us:
            return held  # it is not in this step yet
        is_own = held < self.micro_batches or said.offer is None
        if is_own and rank not in state.ended and course.idle_us is None:
            held = self._grant_more(state, rank, said.begun, held, now_us)
        if rank in state.ended and not course.was_overdue and course.idle_us is None and said.offer is None:
            course.offered_us = self._projection.beliefs(state)[rank].due_us  # it can help
        return held

    def _offered(
        self, state: Step, rank: int, offer: Offer, said: WorkReport, sent_us: int, now_us: int
    ) -> tuple[int, int]:
        """Takes a worker's offer to compute for others. Returns: what it is to compute, and copy, as bitmaps."""
        course = state.courses[rank]
        free_us = sent_us + offer.busy_us
        course.known = offer.given
        unknown = course.given & ~course.known
        if unknown and now_us - course.called_us >= said.answer_us:
            return self.lots.again(state, rank, unknown)  # a call was lost
        if unknown:  # it is under way
            free_us = max(free_us, course.lot_until_us)
        course.asks_again_us, course.offered_us = 0, None
        state.news.add(rank)
        is_busy = free_us > sent_us
        done_us = max(free_us, now_us + said.answer_us // 2)
        work, copies = self._choose(state, rank, offer, done_us, now_us, is_busy=is_busy)
        state.is_helped |= bool(work | copies)
        if not work | copies:
            self._projection.note_sending(state, rank)
            course.offered_us = free_us
        return work, copies

    def note_overtaken(self, rank: int, said: WorkReport) -> None:
        """Takes the speed from a report that a newer one has overtaken; the rest of it no longer counts."""
        self._workers[rank].note_duration(said)
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
    def _is_overdue(self, state: Step, rank: int, said: WorkReport) -> bool:
        """Whether what an owner is at takes longer than usual. One that has begun none of its work may have stopped before
        the first micro-batch.
        """
        at_it_us = said.spent_us if said.begun == 0 < state.held(rank) else said.since_us or 0
        return at_it_us > (self._projection.duration(state, rank) or NEVER_US)

    # --- an owner's own shard -----------------------------------------------------------------------------------------

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
        soon = math.ceil(2 * answer_us / each_us)  # what it computes until its next report can be answered
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
        self, state: Step, rank: int, offer: Offer, done_us: int, now_us: int, *, is_busy: bool
    ) -> tuple[int, int]:
        """Chooses a leader's part of the plan, as far as that is free; or copies. Where the plan has moved what owners
        hold, these are asked to give it up.

        Args: done_us: when it will be done with its present work, and can know of more. is_busy: it still computes that.
        """
        if self.grade is HelpGrade.CLONE:
            copies = 0 if is_busy else self.lots.clone(state, rank, offer.missing, done_us, now_us)
            if copies:
                return 0, copies
        else:
            to_begin, best = self._plan(state, now_us, rank, done_us)
            work = self.lots.give(state, rank, best.parts[rank], now_us, done_us, is_busy=is_busy)
            if work:
                return work, 0
            if self.lots.may_call(state):
                self.lots.call(state, best, now_us)  # else each would leave it to the others
            for shard, count in enumerate(to_begin):
                if shard != rank and best.own[shard] < count:
                    self._ask_back(state, shard, now_us)
        for owner in self._projection.overdue(state, rank, now_us):
            self._ask_back(state, owner, now_us)
        is_silent = offer.pending in (None, 1000)  # else some sums are complete: every worker has sent something
        if is_busy or not is_silent or self.grade is HelpGrade.CLONE:
            return 0, 0
        return 0, self.lots.copy(state, rank, offer.missing, now_us)

    @REVOCATIONS.or_else(None)
    def _ask_back(self, state: Step, rank: int, now_us: int) -> None:
        """Revokes what an owner need not hold, unless it was asked so recently that there can be no news."""
        course = state.courses[rank]
        again_us = max(ASK_AGAIN_US, 2 * self._workers[rank].answer_us)
        if course.asked_us is not None and now_us - course.asked_us < again_us:
            return
        course.asked_us = now_us
        self.unasked.append((rank, Assignment(step=state.number, revokes=state.held(rank))))

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _hear(self, rank: int, said: WorkReport, now_us: int) -> tuple[Step, int]:
        """Notes a report. Returns: its step, and when it was sent."""
        self._workers[rank].learn(said)
        sent_us = now_us - said.answer_us // 2
        state = self._step(said.step, sent_us - said.spent_us)
        course: Course = state.courses[rank]
        course.learn(said, sent_us)
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
