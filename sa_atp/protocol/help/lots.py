"""What helpers are given: their parts of a plan, copies of what is late, whole shards. (protocol section 10.3)"""

import math
from collections import deque
from collections.abc import Sequence

from sa_atp.protocol.help.believing import NEVER_US, expected_us, held_until_us, is_behind
from sa_atp.protocol.help.plan import Plan
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.help.rules import Rule
from sa_atp.protocol.help.silence import Silence
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.help_messages import Assignment

LONGEST_POLL_US = 50_000  # between two offers of a leader for which there is no work
RAREST_POLL_US = 10_000_000  # ... where all is computed, and only data can be late
CALLS = Rule("calls", "Who waits for work is sent its part of the plan as soon as there is one, without asking again.")
COPIES = Rule("copies", "What is late is computed a second time, by whoever finishes it first.")


class Lots:
    """Gives helpers work, and notes what that changes."""

    def __init__(
        self,
        workers: Sequence[Worker],
        contributions: ContributionMap,
        projection: Projection,
        racks: Racks,
        silence: Silence,
    ) -> None:
        self._workers, self._map, self._projection = workers, contributions, projection
        self._racks, self._silence = racks, silence
        self.unasked: deque[tuple[int, Assignment]] = deque()
        """Assignments to send, once, to workers that have not asked just now, as (rank, assignment)."""
        self.helped_micro_batches = 0
        """Micro-batches that helpers were given, without copies."""
        self.backups = 0
        """Micro-batches that helpers were given to copy."""

    # --- parts of a plan ----------------------------------------------------------------------------------------------

    def give(self, state: Step, rank: int, part: dict[int, int], now_us: int, done_us: int, *, is_busy: bool) -> int:
        """Gives a helper the last free micro-batches in its part of a plan, of one shard after the other, as many as it
        computes while an answer travels.

        Args: part: micro-batches by shard. done_us: when its present work will be done. is_busy: it still computes its
            last lot, or has not sent it.
        Returns: contributions, as a bitmap; 0: nothing of its part is free.
        """
        course, answer_us = state.courses[rank], self._workers[rank].answer_us
        left, given, until_us = dict(part), 0, done_us
        while not given or until_us < done_us + answer_us:
            bits = self._of_one_shard(state, rank, left, now_us, until_us, is_busy=is_busy or given > 0)
            if not bits:
                break
            given, until_us = given | bits, course.lot_until_us
        if given and self._is_any_free(state):  # what others may leave: it asks when it begins with these
            course.asks_again_us, course.offered_us = done_us + answer_us // 2, None
        elif given:
            course.asks_again_us, course.offered_us = 0, until_us
            self._projection.note_sending(state, rank)
        state.news.add(rank)
        return given

    def _of_one_shard(
        self, state: Step, rank: int, part: dict[int, int], now_us: int, done_us: int, *, is_busy: bool
    ) -> int:
        """As `give`, of one shard. Args: part: what is given is taken out."""
        course = state.courses[rank]
        beliefs = self._projection.beliefs(state)
        shards = [
            (b.is_ended, count, shard)
            for shard, count in part.items()
            if count and (b := beliefs[shard]).free and not is_behind(b, now_us)
        ]
        if not shards:
            return 0
        _, count, shard = max(shards)
        b, each_us = beliefs[rank], expected_us(beliefs[rank], beliefs[shard])
        is_early = is_busy and not b.is_idle and b.slow_link_us > 0
        if is_early and not course.joins_lot and self._racks.are_summed_together(state, rank, shard):
            course.joins_lot, course.own_in_lot = True, state.held(rank)
            course.lot = [(rank, m) for m in range(course.own_in_lot)]
        most = max(1, math.ceil(b.answer_us / each_us))
        lot: list[int] = []
        while len(lot) < min(count, most) and state.free(shard):
            tail = state.last_free(shard)
            state.owner[shard][tail] = rank
            lot.append(tail)
        part[shard] = count - len(lot)
        course.lot = [*(course.lot if is_busy else ()), *((shard, m) for m in lot)]
        course.is_gathering = True
        course.lot_until_us = done_us + len(lot) * each_us
        state.news |= {rank, shard}
        if shard != rank:
            self._racks.note_assignment(state, rank, shard)
            self.helped_micro_batches += len(lot)
        bits = sum(self._map.bit(shard, m) for m in lot)
        course.given |= bits
        return bits

    @CALLS.or_else(False)
    def may_call(self, state: Step) -> bool:
        """Whether micro-batches are free, and helpers wait who have offered to work."""
        return any(c.offered_us is not None for c in state.courses) and self._is_any_free(state)

    def call(self, state: Step, best: Plan, now_us: int) -> None:
        """Calls each worker that has offered to help, for its part of a plan, because some micro-batches have no owner."""
        for rank, course in enumerate(state.courses):
            if course.offered_us is None:
                continue
            told_us = now_us + self._workers[rank].answer_us // 2
            is_busy, done_us = course.offered_us > told_us, max(course.offered_us, told_us)
            work = self.give(state, rank, best.parts[rank], now_us, done_us, is_busy=is_busy)
            if work:
                self._call(state, rank, now_us)

    def _call(self, state: Step, rank: int, now_us: int) -> None:
        """Sends a worker what it was given, with all that it has not said to know of: an earlier call may be lost, and
        this one may say that there is nothing to ask for.
        """
        course = state.courses[rank]
        state.is_helped, course.called_us = True, now_us
        work, copies = self.again(state, rank, course.given & ~course.known)
        again_us = self.again_us(state, rank, now_us)
        self.unasked.append((rank, Assignment(step=state.number, work=work, copies=copies, again_us=again_us)))

    def again(self, state: Step, rank: int, given: int) -> tuple[int, int]:
        """Repeats a call to a helper that was lost. Args: given: contributions that it does not know of, a bitmap.

        Returns: the work among them, and the copies.
        """
        of_shards = self._map.micro_batches_of(given).items()
        held = ((shard, m) for shard, lost in of_shards for m in lost if state.owner[shard][m] == rank)
        work = sum(self._map.bit(shard, m) for shard, m in held)
        return work, given & ~work

    def again_us(self, state: Step, rank: int, now_us: int) -> int:
        """After how long a leader should offer again, if it is not called before: when that may change something. 0: when
        it begins with what it was given.
        """
        if state.courses[rank].offered_us is None:
            return 0
        again_us = self._projection.ask_again_us(state, rank, now_us)
        if again_us == NEVER_US:  # all others have computed all that they have: the sum will come
            return RAREST_POLL_US
        # its question is here as long after that as an answer takes, half on the way there and half on the way back
        return min(max(0, again_us - self._workers[rank].answer_us), LONGEST_POLL_US)

    def _is_any_free(self, state: Step) -> bool:
        return any(map(state.free, range(self._map.world_size)))

    # --- others' work a second time ----------------------------------------------------------------------------------

    @COPIES.or_else(0)
    def copy(self, state: Step, rank: int, missing: int, now_us: int) -> int:
        """Gives copies of what silent workers hold to all leaders who wait, each to the one that finishes it first. Others
        than the one that asks are called.

        Args: rank: of the leader that asks. missing: contributions that its sums lack (a bitmap).
        Returns: copies for that leader, as a bitmap.
        """
        beliefs = self._projection.beliefs(state)
        late = self._silence.late(state, rank, missing, now_us)
        if not late:
            return 0
        ready_us = {
            r: max(c.offered_us or 0, now_us + beliefs[r].answer_us // 2)
            for r, c in enumerate(state.courses)
            if r == rank or c.offered_us is not None
        }
        may = {r: set(self._silence.late(state, r, missing, now_us)) for r in ready_us}
        parts = dict.fromkeys(ready_us, 0)
        for shard, m in late:
            each_us = {r: expected_us(beliefs[r], beliefs[shard]) for r in ready_us if (shard, m) in may[r]}
            by = min(each_us, key=lambda r: ready_us[r] + each_us[r])
            soon = max(1, math.ceil(beliefs[by].answer_us / each_us[by]))
            if parts[by].bit_count() == soon:
                break  # it asks for more when it begins with these
            ready_us[by] += each_us[by]
            parts[by] |= self._map.bit(shard, m)
            state.copied.add((shard, m))
            self._racks.note_assignment(state, by, shard)
            self.backups += 1
        for r, copies in parts.items():
            if copies and r != rank:
                state.courses[r].offered_us = None  # it offers anew when it begins with these
                state.courses[r].given |= copies
                self._call(state, r, now_us)
        return parts[rank]

    def clone(self, state: Step, rank: int, missing: int, free_us: int, now_us: int) -> int:
        """Gives a helper the whole shard that would be finished last and has no clone yet. Args: missing: contributions
        that its sums lack, a bitmap; free_us: when it can begin.
        """
        beliefs = self._projection.beliefs(state)
        finish = {s: held_until_us(b, now_us) for s, b in enumerate(beliefs)}
        for shard in sorted(finish, key=lambda s: -finish[s]):
            if shard == rank or shard in state.cloned_by or not missing & self._map.bits_of(shard):
                continue
            if is_behind(beliefs[shard], now_us):
                continue
            each_us = expected_us(beliefs[rank], beliefs[shard])
            ready_us = max(free_us + self._map.micro_batches * each_us, state.courses[rank].link_until_us)
            leaf, soonest_us, costs_us = self._racks.leaf_of(shard), float(finish[shard]), each_us / 2
            if leaf and rank not in leaf:
                others = [r for r in leaf if r != shard]
                whole_us = [self._map.micro_batches * expected_us(beliefs[r], beliefs[shard]) for r in others]
                soonest_us = min([soonest_us, *(finish[r] + us for r, us in zip(others, whole_us, strict=True))])
                costs_us += self._racks.cost_us(leaf)
            if ready_us + costs_us < soonest_us:
                state.cloned_by[shard] = rank
                self._racks.note_assignment(state, rank, shard)
                self.helped_micro_batches += self._map.micro_batches
                return self._map.bits_of(shard)
        return 0
