"""Finds out why the sum of a fragment does not come: it was lost, waits for others, or is in the way. (sections 5.3 to 5.6)

Probes ask the switch what it holds of a fragment (probing.py): here a probe asks if a fragment that was sent later is
complete, because the earlier one may be lost, or wait for another worker's contribution. If the switch holds a fragment
without our contributions, they are lost. If it holds some of them and not others, another worker has contributed a part of
what we wanted to add, so we add the rest by itself.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from sa_atp.basics.arrays import Indices
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.protocol.job.serial import SEQ_MASK
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.rank_events import Answered, LeafLeft, Lost, Overdue
from sa_atp.protocol.packets.question_numbers import question_number
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.events import WaitingFor
from sa_atp.protocol.rank.pace.timing import answer_us
from sa_atp.protocol.rank.recovery.asking import is_late_news, late_before_us, on_left_by_answer
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.recovery.questions import Question
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.progress import NEVER

MAX_PROBES = 256  # asked at once, where each fragment may be in a different state
FOR_EVER = 1 << 62


class Recovery:
    """Finds what must be sent again, of all operations of a connection."""

    def __init__(self, connection: Connection, prober: Prober) -> None:
        self._prober = prober
        self._log, self._window_log = connection.log, connection.window_log
        self._member, self._leaf = connection.membership, connection.leaf
        self._round_trip, self._window = connection.round_trip, connection.window
        self._probe_timer, self._under_way = connection.probe_timer, connection.under_way
        self._stats = connection.stats

    # --- by order -----------------------------------------------------------------------------------------------------

    def find_losses(self, operations: Iterable[Operation], now_us: int) -> None:
        """Asks for fragments that are late: one that was sent sufficiently later is complete (after RFC 8985), or an answer
        has shown a loss, and that they have left the network as well. (section 5.3)

        Fragments are compared within a group: a complete fragment of a helper's late group says nothing of others.
        """
        if not self._under_way.in_flight:
            return
        reordering_us = self._round_trip.reordering_us(now_us)
        for operation in operations:
            for group in operation.groups:
                before_us = late_before_us(group, reordering_us)
                if is_late_news(group, before_us):
                    self._ask_for_late(operation, group, before_us, now_us)

    def find_gaps(self, operations: Iterable[Operation], now_us: int) -> None:
        """Asks for fragments of other ranks that are late: later ones of the same rank are complete. (section 5.10)"""
        reordering_us = self._round_trip.reordering_us(now_us)
        for operation in operations:
            gaps = operation.gaps(now_us, reordering_us)
            if not len(gaps):
                continue
            (group,) = operation.groups
            gaps = gaps[(group.order[gaps] == NEVER) & (group.ask_again_us[gaps] <= now_us)]
            room = self._prober.room
            if len(gaps) and room > 0:
                self._prober.ask_for(operation, gaps[:room].tolist(), now_us)

    def _ask_for_late(self, operation: Operation, group: ContributionGroup, before_us: int, now_us: int) -> None:
        room = self._prober.room
        if room <= 0:
            return
        oldest = operation.oldest_pending() or 0
        late = group.unknown(operation.pending, oldest, before_us, group.late_up_to, now_us)
        if len(late) <= room:
            group.asked_before_us, group.asked_up_to = before_us, group.late_up_to
        if len(late) == 0:
            return
        if self._leaf.hides(group):
            # these were sent past our leaf, and the leaf would answer
            self._on_loss(self._lose_by_order(operation, group, late), now_us)
            return
        if self._prober.results_flow(now_us) and not group.has_work:
            # The group has left: sending these again delays no other fragment, and the sum waits for them.
            at_once = (group.sent_us[late] < before_us) & (group.tries[late] == 1) & ~group.held[late]
            self._lose_by_order(operation, group, late[at_once])
            late = late[~at_once]
        if len(late):
            self._prober.ask_for(operation, late[:room].tolist(), now_us)

    def _lose_by_order(self, operation: Operation, group: ContributionGroup, late: Indices) -> int:
        lost = group.mark_lost(late)
        self._stats.lost_by_order += lost
        if lost:
            self._log(Lost(operation.index, hex(group.bits), "order", int(late[0]), int(late[-1]), lost))
            self._prober.expect_losses()
        return lost

    def _on_loss(self, lost: int, now_us: int) -> None:
        if lost:
            self._prober.expect_losses()
            self._window.on_loss(lost, self._round_trip.empty_share, now_us, self._round_trip.smoothed_us)
            if self._window_log is not None:
                self._window_log.note("loss")

    # --- by answers ---------------------------------------------------------------------------------------------------

    def on_answer(self, head: np.void, bits: int, operation: Operation, now_us: int) -> WaitingFor | None:
        """Takes an answer: which contributions to a fragment the switch or the parameter server holds.

        Args:
        head: the header of the answer.
        bits: the contributions that are held, a bit for each.

        Returns: the contributions that this rank waits for, if the question was for them (`ask`), all of its own are
        held, and others' are missing; else None.
        """
        local = operation.plan.local_of((int(head["seq"]) - operation.first_seq) & SEQ_MASK)
        if local is None:
            return None
        flags = int(head["flags"])
        question = self._prober.questions.answered(operation, local, question_number(flags))
        if question is None:
            return None
        from_server = bool(flags & Flag.FROM_PS)
        elapsed_us = now_us - question.asked_us
        if self._log is not nobody:
            by: Literal["switch", "parameter server"] = "parameter server" if from_server else "switch"
            self._log(Answered(operation.index, local, hex(bits), by, elapsed_us))
        if from_server:
            # where no switch aggregates, contributions take this path as well, so that its answers time them
            path = self._round_trip
            (path.time_server_answer if self._member.levels else path.time_answer)(elapsed_us)
            if not self._member.levels and self._round_trip.is_queue:
                self._window.on_queue()  # nothing on this path marks
        else:
            self._round_trip.time_answer(elapsed_us)
        is_marked = flags & Flag.CONGESTION != 0
        on_left_by_answer(self._under_way, self._window, self._round_trip, question.behind, is_marked, now_us)
        if self._window_log is not None:
            self._window_log.note("mark")
        if not from_server:
            self._find_lost_questions(question, now_us)
        if not operation.pending[local]:
            return None
        return self._on_held(operation, local, bits, question, from_server, now_us)

    def _find_lost_questions(self, answered: Question, now_us: int) -> None:
        """Finds questions that were lost, or whose answers were: a question that was asked later has been answered
        first.

        Questions about a fragment whose sum is known are left out. Its slot may have another owner by now: then the
        parameter server answers, and its answers take longer than the switch's.
        """
        for lost in self._prober.questions.overdue(answered.asked_us - self._round_trip.reordering_us(now_us)):
            operation = lost.operation
            if not operation.pending[lost.local]:
                continue
            self._log(Overdue(operation.index, lost.local, now_us - lost.asked_us))
            self._prober.expect_losses()
            if lost.tells:
                self._prober.ask(operation, lost.local, now_us)
            for group in operation.groups:
                group.ask_again_us[lost.local] = NEVER
                group.late_up_to = max(group.late_up_to, int(group.order[lost.local]))
                group.asked_up_to = NEVER

    def _on_held(
        self, operation: Operation, local: int, bits: int, question: Question, from_server: bool, now_us: int
    ) -> WaitingFor | None:
        lost = not_there = 0
        flows = self._prober.results_flow(now_us)  # then order tells which of the others are late
        held = True
        oldest = operation.oldest_pending() or 0
        same_us = now_us - operation.held_since_us if bits == operation.held_bits else 0
        in_leaf = not from_server and self._leaf.may_be_leaf(bits)
        self._leaf.on_answer(in_leaf)
        in_the_way = in_leaf and any(group.bypass_leaf for group in operation.groups)
        for group in operation.groups:
            if in_leaf and self._leaf.says_nothing_of(group, bits, self._probe_timer.timeouts):
                continue
            if bits == self._member.fan_in and group.may_ask_for(local):
                held = False
                lost += self._lose_by_question(operation, group, np.array([local]))
                not_there += 1  # a result of others is lost: the link on which all results come is full
            elif not NEVER < group.order[local] <= question.behind:
                held = False  # it was not there to be seen
            elif bits & group.bits_at(local) != group.bits_at(local) or bits == self._member.fan_in:
                held = False
                if group.exclude(local, bits):
                    group.resend_next(local)
                    lost += self._lose_by_question(operation, group, np.array([local]))
                    self._ask_each(operation, group, oldest, now_us)
                    continue
                if group.held[local] and bits != self._member.fan_in:
                    group.forget_held()  # it was there: slots have been given up, or a switch has forgotten all
                gone = np.array([local])
                if self._leaf.hides(group):  # asking for the others would not tell what became of them
                    gone = group.unknown(operation.pending, oldest, NEVER, question.behind, FOR_EVER)
                lost += self._lose_by_question(operation, group, gone)
                not_there += bits != self._member.fan_in
                if not flows:  # what happened to it may have happened to others
                    group.late_up_to = max(group.late_up_to, question.behind)
            else:
                group.held[local] = True
                group.ask_again_us[local] = now_us + 2 * answer_us(self._round_trip)
                if self._prober.expects_losses and not (flows and group.has_work):
                    group.late_up_to = max(group.late_up_to, question.behind)
                if in_leaf and self._leaf.must_flush(
                    group, bits, self._probe_timer.timeouts, same_us=same_us, is_in_the_way=in_the_way
                ):
                    waiting = group.waiting(operation.pending, oldest, question.asked_us)
                    group.flush_leaf(self._leaf.to_flush(group, waiting, self._probe_timer.timeouts))
        if lost:
            self._prober.expect_losses()
            self._on_loss(not_there, now_us)
            self._probe_timer.on_loss()
        if not question.tells:
            return None
        if bits != operation.held_bits:
            operation.held_bits, operation.held_since_us = bits, now_us
        missing = self._leaf.missing_of(bits)
        if not held or not operation.groups or not missing:
            return None
        first = operation.groups[0]
        sent_us = first.sent_us[(first.order != NEVER) & (first.order <= question.behind)]
        total = operation.plan.data_fragments
        # a few fragments tell no pace: the first of a chunk wait for what others have not computed yet; nor do fragments of
        # which some were sent again
        tells_pace = len(sent_us) > total // 8 and not (first.tries > 1).any()
        send_us = (now_us - int(sent_us.min())) * total // len(sent_us) if tells_pace else 0
        return WaitingFor(operation.index, missing, SendProgress(operation.missing_share, send_us))

    def _lose_by_question(self, operation: Operation, group: ContributionGroup, gone: Indices) -> int:
        """Gives fragments up for lost that the switch does not hold. Returns: how many were not given up before."""
        lost = group.mark_lost(gone)
        self._stats.lost_by_probe += lost
        if lost:
            self._log(Lost(operation.index, hex(group.bits), "question", int(gone[0]), int(gone[-1]), lost))
        return lost

    # --- two levels (section 10.5) ------------------------------------------------------------------------------------

    def leave_leaf(self, operation: Operation, now_us: int) -> None:
        """Gives up our leaf for an operation that it will not complete: what is sent from now on goes past it.

        The leaf must also pass on what it holds. The answer to the question that is asked here tells which rank has it
        do that.
        """
        oldest = operation.oldest_pending()
        for group in operation.groups:
            if group.bypass_leaf or oldest is None:
                continue
            group.bypass_leaf = True
            self._log(LeafLeft(operation.index, hex(group.bits)))
            waiting = group.waiting(operation.pending, oldest, now_us + 1)
            if len(waiting):
                self._prober.ask(operation, int(waiting[0]), now_us)

    def _ask_each(self, operation: Operation, group: ContributionGroup, oldest: int, now_us: int) -> None:
        """Asks for each fragment of a group to which another rank contributes a part as well: in which came first,
        fragments differ.

        It is called only when an answer has changed something: answers would otherwise bring on one another, for ever.
        """
        waiting = group.waiting(operation.pending, oldest, now_us + 1)[:MAX_PROBES]
        waiting = waiting[group.ask_again_us[waiting] <= now_us]
        if len(waiting):
            self._prober.ask_for(operation, waiting.tolist(), now_us)
