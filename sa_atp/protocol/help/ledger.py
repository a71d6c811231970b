"""The ledger of a step: which micro-batch of which shard is whose. (protocol section 10.2)

The parameter server keeps one for each job. Every micro-batch has at most one owner, so nothing is computed twice, with
two exceptions that are meant to be: `clone`, where a helper computes a straggler's whole shard beside it, and backup,
where the owner of a micro-batch has not been heard of for far longer than it should take. There the contribution bitmap
decides: whichever copy reaches a sum first is in it, the other is dropped.

At the beginning of a step every shard is its owner's, who needs to ask for nothing. It becomes somebody else's when the
owner has said that it does not hold it: by itself, where it was advised to, or because it was asked to (`to_revoke`).
"""

import math
from dataclasses import dataclass, field

from sa_atp.protocol.help.advice import Advice
from sa_atp.protocol.help.assignment import should_do, worth_helping
from sa_atp.protocol.help.effect import Effect
from sa_atp.protocol.help.hindsight import Hindsight
from sa_atp.protocol.help.late_data import LateData
from sa_atp.protocol.help.progress import NOBODY, Course, SendProgress, Step, Told, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.revocation import Revocation
from sa_atp.protocol.help.silence import LEAST_POLL_US, Silence
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.message_fields import HelpMode

__all__ = ["Assigned", "Ledger", "SendProgress", "Told"]

STEPS_KEPT = 4  # leaders may run ahead of a straggler whose work they do
LONGEST_POLL_US = 50_000  # between two offers of a leader that was told there is nothing to do
RAREST_POLL_US = 10_000_000  # ... where only data can be late, however slowly it leaves
WAITS = 1.5  # a worker that takes so many times as long as usual is late for that, not for its link
FOREVER_US = 1 << 50


@dataclass(frozen=True, slots=True)
class Assigned:
    """Micro-batches that a helper is to compute."""

    step: int
    shard: int
    micro_batches: tuple[int, ...]
    backup: bool = False  # someone else holds them, but has not been heard of


@dataclass(frozen=True, slots=True)
class Believed:
    """Of each rank: how long a micro-batch takes it, in microseconds (0: not known); how many of its own it has begun,
    and how many are its; how many of its shard are nobody's.
    """

    each_us: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)


class Ledger:
    def __init__(self, world_size: int, micro_batches: int, mode: HelpMode) -> None:
        self.world_size = world_size
        self.micro_batches = micro_batches
        self._map = ContributionMap(world_size, micro_batches)
        self.mode = mode
        self.helped_micro_batches = 0
        self.backups = 0
        self._steps: dict[int, Step] = {}
        self._workers = [Worker() for _ in range(world_size)]
        self._now = Projection(self._workers)
        self.racks = Racks(self._workers, self._now)
        self._late = LateData(self._workers, self._map, self._now, self.racks)
        self._silence = Silence(self._workers, self._map, self._now, self.racks)
        self._revocation = Revocation(self._workers, self._now, self.racks, self._silence)
        self.to_revoke = self._revocation.to_revoke
        """See Revocation."""
        self._effect = Effect()
        self._hindsight = Hindsight(self._steps, self._workers, self._now, self.racks, self._effect)
        self._advice = Advice(self._workers, micro_batches, self._now, self.racks)

    # --- what workers say ---------------------------------------------------------------------------------------------

    def claim(
        self, step: int, rank: int, begun: int, held: int, since_us: int | None, told: Told, now_us: int
    ) -> tuple[int, bool]:
        """A worker says how far it is in its own shard, and what of it it holds; and asks for more.

        Args:
            begun: how many micro-batches it has begun. held: how many are its own, those included.
            since_us: for how long it has been at the last that it has begun; None: that is done.

        Returns: how many are its own from now on; and whether these are the last, the rest is others'.
        """
        state, sent_us = self._hear(step, rank, told, now_us)
        course = state.courses[rank]
        course.begun, course.granted = begun, 0
        course.granted_us = now_us + told.answer_us // 2
        course.is_at_it = since_us is not None
        course.at_us = sent_us - (since_us or 0)
        course.was_overdue = (since_us or 0) > (self._now.duration(state, rank) or FOREVER_US)
        if begun == self.micro_batches and since_us is None and course.idle_us is None:
            course.idle_us = sent_us  # what it says of that may be on its way behind its data
        owners = state.owner[rank]
        held = min(held, state.held(rank))  # of two claims the later may have been asked first
        course.keep_joined(rank, held)
        for m in range(held, self.micro_batches):
            if owners[m] == rank and (rank, m) not in course.lot:
                owners[m] = NOBODY
        if rank in state.ended or self._is_over(step):
            return held, True
        if self.mode is not HelpMode.STEAL or not self._effect.is_on(step):
            until = self._grant(state, rank, held, self.micro_batches)
            return until, until < self.micro_batches
        if begun == 0 and since_us is None and told.spent_us == 0:
            self._leave_its_own(state, step, rank, now_us)
            return held, False  # it is not in this step yet
        course.waits_until_us = 0
        return self._grant_more(state, rank, begun, held, now_us)

    def ask(
        self,
        step: int,
        rank: int,
        missing: int,
        told: Told,
        busy_us: int,
        now_us: int,
        pending: float | None = None,
    ) -> Assigned | None:
        """A leader offers to work.

        Args:
            missing: contributions that it misses (a bitmap).
            busy_us: for how long it will still be at what it has to do before; 0: it is idle.
            pending: share of the sums that it misses, where that is known.
        """
        state, sent_us = self._hear(step, rank, told, now_us)
        state.courses[rank].hears_us = 0
        if not busy_us:
            self._workers[rank].waited_us = now_us
        if self.mode is HelpMode.NONE or self._is_over(step):
            return None
        work = self._choose(state, step, rank, missing, told, sent_us + busy_us, busy_us, now_us, pending)
        state.is_helped |= work is not None
        if work is None:
            self._now.sends(state, rank, sent_us + busy_us)
        return work

    def ask_again_us(self, step: int, rank: int, now_us: int) -> int:
        """After how long a leader that got nothing should ask again: when something may have changed. Nobody counts on it
        before that.
        """
        again_us = self._when_to_ask(self._steps[step], step, rank, now_us)
        self._steps[step].courses[rank].hears_us = now_us + again_us + self._workers[rank].answer_us
        return again_us

    def _when_to_ask(self, state: Step, step: int, rank: int, now_us: int) -> int:
        if self._is_over(step):
            return LONGEST_POLL_US
        times: list[int] = []
        for other, course in enumerate(state.courses):
            if other == rank:
                continue
            answer_us = (course.asked_us or 0) + self._workers[other].answer_us
            if course.revoked_us is not None and now_us <= answer_us:
                # so that the question is there when the answer is
                return max(0, answer_us - now_us - self._workers[rank].answer_us)
            times += self._silence.news_us(state, rank, other, now_us, is_on=self._effect.is_on(step))
        others = [course for other, course in enumerate(state.courses) if other != rank]
        if all(course.idle_us is not None and not course.lot for course in others):
            # they have computed their own, and nothing else, and the sum comes, if no data is late
            late_us = self._late.ask_at_us(state, step, rank) - now_us
            return min(max(late_us, LEAST_POLL_US), RAREST_POLL_US)
        return min(max(min(times, default=0), LEAST_POLL_US), LONGEST_POLL_US)

    def idle(self, step: int, rank: int, told: Told, now_us: int) -> None:
        """A worker is done with what it held, and sends what it has computed."""
        state, sent_us = self._hear(step, rank, told, now_us)
        state.courses[rank].idle_us = sent_us
        self._workers[rank].waited_us = now_us

    def heard_late(self, step: int, rank: int, told: Told) -> None:
        """A worker has said how long one of its micro-batches took, and something newer has overtaken that."""
        self._workers[rank].took(step, told)

    def crossed(self, step: int) -> list[int]:
        """The shards of a step that their owner's leaf will not complete: somebody who is not below it computes a part of
        them. (protocol section 10.5)
        """
        state = self._steps.get(step)
        return [] if state is None else sorted(state.crossed)

    def copied(self, step: int, rank: int, now_us: int) -> int:
        """What a worker holds that somebody else backs up (a bitmap), and should have computed when what the worker sends
        on hearing of that has left: the two would meet on the way, and overlap in some sums and not in others.
        """
        state = self._steps.get(step)
        if state is None:
            return 0
        left_us = now_us + self._workers[rank].answer_us // 2 + self._workers[rank].send_us
        return sum(
            self._map.bit(shard, m)
            for (shard, m), done_us in state.copied_us.items()
            if done_us <= left_us and state.owner[shard][m] == rank
        )

    def believed(self, step: int) -> Believed:
        """What is taken to be true of a step, for people; nothing, of one that is over or has not begun."""
        state = self._steps.get(step)
        if state is None:
            return Believed()
        ranks = range(self.world_size)
        return Believed(
            each_us=[self._now.duration(state, rank) or 0 for rank in ranks],
            begun=[course.begun for course in state.courses],
            held=[state.held(rank) for rank in ranks],
            free=[state.free(rank) for rank in ranks],
        )

    def advice(self, rank: int) -> tuple[int, bool]:
        """See Advice.of."""
        is_on = self.mode is HelpMode.STEAL and self._effect.is_on(max(self._steps, default=-1) + 1)
        return self._advice.of(rank) if is_on else (self.micro_batches, False)

    def _is_over(self, step: int) -> bool:
        """Whether somebody is in a later one: then all sums of this one are there, and who is late has but to take them."""
        return any(
            later > step and any(course.began_us is not None for course in state.courses)
            for later, state in self._steps.items()
        )

    # --- an owner's own -----------------------------------------------------------------------------------------------

    def _leave_its_own(self, state: Step, step: int, rank: int, now_us: int) -> None:
        """A worker that is not in this step yet may wait for the sum of the one before: it was lost, or comes down a slow
        link. Who did its work would make the next one late for it as well. So nobody does, for a while.
        """
        course, before = state.courses[rank], self._steps.get(step - 1)
        is_done = before is not None and before.courses[rank].idle_us is not None
        each_us, usual_us = self._now.mine(state, rank, rank), self._now.typical(rank) or 0
        if is_done and course.waits_until_us is None and each_us <= WAITS * usual_us:
            worker = self._workers[rank]
            whole_us = self.micro_batches * each_us + worker.send_us
            course.waits_until_us = now_us + 2 * max(whole_us, worker.lag_us, 2 * worker.answer_us)

    def _grant_more(self, state: Step, rank: int, begun: int, held: int, now_us: int) -> tuple[int, bool]:
        """Gives an owner what it would do soonest, a part of that at a time: what was not given can still be others'."""
        mine = self._now.duration(state, rank)
        if mine is None:
            until = self._grant(state, rank, held, held + 1)
            if until == held < self.micro_batches:
                state.ended.add(rank)  # others are at the rest
            return until, rank in state.ended
        answer_us = self._workers[rank].answer_us
        left_us = (held - begun) * mine
        begin_us = max(self._now.held_until(state, rank, now_us), now_us + answer_us // 2)
        helpers = self.racks.helpers_of(state, rank, now_us)
        others = self._now.others(state, rank, rank, helpers, now_us)
        wanted, most = self._now.wanted(state, rank, helpers), held
        while most < self.micro_batches and state.owner[rank][most] == NOBODY:
            finish_us = begin_us + (most - held + 1) * mine + self._now.link_us(rank)
            # as fast as the others but for what a busy host does to measurements: what is sent anew costs more than that
            if not should_do(finish_us - mine // 8, wanted - (most - held), others):
                break
            most += 1
        if most == held:
            if left_us > 2 * answer_us + mine:
                return held, False  # it is early: it will ask again
            state.ended.add(rank)
            return held, True
        soon = math.ceil(2 * answer_us / mine)  # what it needs until it can have asked again
        return self._grant(state, rank, held, min(most, held + max(1, soon, (most - held) // 2))), False

    def _grant(self, state: Step, rank: int, held: int, until: int) -> int:
        owners, course = state.owner[rank], state.courses[rank]
        while held < min(until, self.micro_batches) and owners[held] in (NOBODY, rank):
            owners[held] = rank
            held += 1
            course.granted += 1
        return held

    # --- help ---------------------------------------------------------------------------------------------------------

    def _choose(
        self,
        state: Step,
        step: int,
        rank: int,
        missing: int,
        told: Told,
        idle_us: int,
        busy_us: int,
        now_us: int,
        pending: float | None,
    ) -> Assigned | None:
        """What a leader is to do. Args: idle_us: when it will have done what it has to do before."""
        free_us = max(idle_us, now_us + told.answer_us // 2)
        work: Assigned | None = None
        if self._effect.is_on(step):
            if self.mode is HelpMode.CLONE:
                work = None if busy_us else self._clone(state, step, rank, missing, free_us, now_us)
                if work is None:
                    self._revocation.from_the_silent(state, step, rank, now_us)
                return work
            work = self._steal(state, step, rank, now_us, free_us, is_busy=busy_us > 0)
            if work is None:
                self._revocation.from_the_last(state, step, rank, free_us, now_us)
        if work is not None or busy_us:
            return work
        is_silent = pending is None or pending == 1  # else everybody's have been seen, for some fragments
        work = self._back_up(state, step, rank, missing, now_us) if is_silent else None
        if work is None and self._effect.is_on(step):
            work = self._resend_speculatively(state, step, rank, missing, told, now_us, pending)
        return work

    def _steal(self, state: Step, step: int, rank: int, now_us: int, free_us: int, *, is_busy: bool) -> Assigned | None:
        """The last free micro-batches of the shard that would be finished last, if this worker is the one for them.

        Args: is_busy: it is at what it was given before, or has not sent that.
        """
        course = state.courses[rank]
        begin_us, link_free_us = free_us, self._now.link_free_us(state, rank, free_us)
        # what is given to it before its own is computed leaves with that, if it goes the same way
        is_early = is_busy and course.idle_us is None and self._now.has_slow_link(rank)

        def finish_us(shard: int, number: int) -> int:
            """When so many of a shard's would have left it."""
            joins = is_early and self.racks.are_together(state, rank, shard)
            stays_us = max(number * self._now.mine(state, rank, shard), self._now.waits_us(rank))
            return max(begin_us + stays_us, 0 if joins else link_free_us) + self._now.link_us(rank)

        candidates = [
            (shard in state.ended, self._now.finish_us(state, shard, now_us), shard)
            for shard in range(self.world_size)
            if state.free(shard)
            and now_us >= (state.courses[shard].waits_until_us or 0)
            and not self._silence.is_behind(step, shard, now_us)
            and (shard != rank or shard in state.ended)  # else it claims them
            and self._is_the_one(state, rank, shard, finish_us(shard, 1), now_us)
        ]
        if not candidates:
            return None
        _, _, shard = max(candidates)
        mine = self._now.mine(state, rank, shard)
        if is_early and not course.joins and self.racks.are_together(state, rank, shard):
            course.joins, course.joined = True, state.held(rank)
            course.lot = [(rank, m) for m in range(course.joined)]
        most = max(1, math.ceil(self._workers[rank].answer_us / mine), state.free(shard) // (2 * self.world_size))
        lot: list[int] = []
        while len(lot) < most and state.free(shard):
            if lot and not self._is_the_one(state, rank, shard, finish_us(shard, len(lot) + 1), now_us):
                break
            tail = state.last_free(shard)
            state.owner[shard][tail] = rank
            lot.append(tail)
        course.lot = [*(course.lot if is_busy else ()), *((shard, m) for m in lot)]
        course.gathers = True
        course.lot_from_us = begin_us
        course.lot_until_us = begin_us + len(lot) * mine
        if shard != rank:
            self.racks.note(state, rank, shard)
            self.helped_micro_batches += len(lot)
        return Assigned(step, shard, tuple(lot))

    def _is_the_one(self, state: Step, rank: int, shard: int, finish_us: int, now_us: int) -> bool:
        """Whether a helper should do one of a shard's free micro-batches.

        Args: finish_us: when it would have left it.
        """
        mine = self._now.mine(state, rank, shard)
        owner_us = self._now.finish_us(state, shard, now_us) + self._now.link_us(shard)
        if shard not in state.ended and not worth_helping(finish_us, owner_us, mine):
            return False
        # it is here, and the others are not: a little later than they could is as good
        helpers = self.racks.helpers_of(state, shard, now_us)
        if rank not in helpers:
            return False
        others = self._now.others(state, rank, shard, helpers, now_us)
        return should_do(finish_us - mine // 8, self._now.wanted(state, shard, helpers), others)

    def _back_up(self, state: Step, step: int, rank: int, missing: int, now_us: int) -> Assigned | None:
        """Micro-batches whose holder has fallen silent."""
        found = self._silence.find(state, step, rank, missing, now_us, is_on=self._effect.is_on(step))
        if found is None:
            return None
        shard, micro_batches = found
        done_us = now_us + self._workers[rank].answer_us // 2 + len(micro_batches) * self._now.mine(state, rank, shard)
        state.copied_us.update({(shard, m): done_us for m in micro_batches})
        self.racks.note(state, rank, shard)
        self.backups += len(micro_batches)
        return Assigned(step, shard, tuple(micro_batches), backup=True)

    def _resend_speculatively(
        self, state: Step, step: int, rank: int, missing: int, told: Told, now_us: int, pending: float | None
    ) -> Assigned | None:
        """All that another worker is so slow to send that computing and sending it anew is faster."""
        found = None if pending is None else self._late.find(state, step, rank, missing, told, now_us, pending)
        if found is None:
            return None
        shard, micro_batches = found
        state.resent.add(shard)
        self.racks.note(state, rank, shard)
        self._workers[shard].resent_in = step
        self.backups += len(micro_batches)
        return Assigned(step, shard, micro_batches, backup=True)

    def _clone(self, state: Step, step: int, rank: int, missing: int, free_us: int, now_us: int) -> Assigned | None:
        """The whole shard of the worker that would be finished last, unless another helper has it."""
        finish = {s: self._now.held_until(state, s, now_us) for s in range(self.world_size)}
        for shard in sorted(finish, key=lambda s: -finish[s]):
            if shard == rank or shard in state.cloned_by or not missing & self._map.bits_of(shard):
                continue
            if self._silence.is_behind(step, shard, now_us):
                continue
            mine = self._now.mine(state, rank, shard)
            ready_us = max(free_us + self.micro_batches * mine, self._now.link_free_us(state, rank, now_us))
            is_sooner = worth_helping(ready_us, finish[shard], mine // 2)
            if is_sooner and rank in self.racks.helpers_of(state, shard, now_us):
                state.cloned_by[shard] = rank
                self.racks.note(state, rank, shard)
                self.helped_micro_batches += self.micro_batches
                return Assigned(step, shard, tuple(range(self.micro_batches)), backup=True)
        return None

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _hear(self, step: int, rank: int, told: Told, now_us: int) -> tuple[Step, int]:
        """Notes what a worker says of itself. Returns: the step; and when it said so."""
        self._workers[rank].learn(step, told)
        sent_us = now_us - told.answer_us // 2
        state = self._step(step, sent_us - told.spent_us)
        course: Course = state.courses[rank]
        if told.spent_us and course.began_us is None:
            self._workers[rank].lagged(step, sent_us - told.spent_us - state.began_us)
        course.learn(told, sent_us)
        course.revoked_us = None
        return state, sent_us

    def _step(self, step: int, began_us: int) -> Step:
        if step not in self._steps:
            self._steps[step] = Step.begin(self.world_size, self.micro_batches, began_us, step)
            self._hindsight.judge(step - 1, began_us)
            for old in [s for s in self._steps if s <= step - STEPS_KEPT]:
                del self._steps[old]
        return self._steps[step]
