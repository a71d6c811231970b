"""Probes: which questions about fragments leave, when, and which are unanswered. (protocol sections 5.2 to 5.4)

A probe leaves behind data while no results come: its answer shows that the data has left the network, so that more may
leave. After a silence probes ask for the oldest fragments.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.rank_events import FragmentsAsked
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.question_numbers import question_number
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.pace.timing import answer_us
from sa_atp.protocol.rank.recovery.asking import (
    Asked,
    Asking,
    is_answer_late,
    is_due_while_results_flow,
    is_lossy,
    question_every,
    results_flow,
    room_for_questions,
    unasked,
    until_question,
    waits_for_answers,
)
from sa_atp.protocol.rank.recovery.questions import Questions
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.stamp import probes
from sa_atp.protocol.rank.sums.under_way import in_network

MAX_QUESTIONS = 64  # asked for one silence: when the oldest are known those behind them have their turn
LOSSY_TRANSMISSIONS = 4096  # after a loss, in which more of them are expected


class Prober:
    """Asks what the switch holds of fragments, of all operations of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._log, self._member = connection.log, connection.membership
        self._round_trip, self._window = connection.round_trip, connection.window
        self._under_way, self._stats = connection.under_way, connection.stats
        self.packets: deque[Burst] = deque()
        """Probes to send."""
        self.questions = Questions()
        """The unanswered questions."""
        self.asking = Asking()
        self._newest: tuple[Operation, int] | None = None  # the fragment that left last

    # --- what the network is like -------------------------------------------------------------------------------------

    def expect_losses(self) -> None:
        """Something was lost: probes follow closer on what is sent next."""
        self.asking.lossy_until = self._under_way.sent + LOSSY_TRANSMISSIONS

    @property
    def expects_losses(self) -> bool:
        """Whether something was lost among the latest transmissions."""
        return is_lossy(self.asking, self._under_way.sent)

    def results_flow(self, now_us: int) -> bool:
        """Whether results come so often that they show what leaves the network."""
        return results_flow(self.asking, self._round_trip, now_us)

    # --- asking -------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of questions about late fragments that may still be asked; 0 or less: none."""
        return room_for_questions(self._window, len(self.questions))

    def ask(self, operation: Operation, local: int, now_us: int) -> None:
        """Asks which contributions to a fragment the switch holds, and which ranks its sum waits for."""
        self.ask_for(operation, [local], now_us, tells=True)

    def ask_for(self, operation: Operation, locals_: Sequence[int], now_us: int, *, tells: bool = False) -> None:
        """Asks for some fragments of an operation. Args: tells: whether to say which ranks the first sum waits for."""
        sent = self._under_way.sent
        numbers = [self.questions.ask(operation, local, now_us, sent, tells=tells) for local in locals_]
        for group in operation.groups:
            group.ask_again_us[locals_] = now_us + answer_us(self._round_trip)
        self.asking.asked_us, self.asking.behind = now_us, max(self.asking.behind, sent)
        self._stats.probes += len(locals_)
        if self._log is not nobody:
            self._log(FragmentsAsked(operation.index, min(locals_), max(locals_), len(locals_), tells))
        self.packets.append(Burst(self._member.data_address, probes(self._member, operation, locals_, numbers)))

    def until_question(self, now_us: int) -> int | None:
        """Number of fragments that may leave before a question has to follow them; None: results show what arrives."""
        if self.results_flow(now_us):
            return None
        return until_question(self.asking, self._window, self._under_way)

    def on_sent(self, operation: Operation, local: int, now_us: int) -> None:
        """Notes that fragments have left, up to this one. Where no results come, a question follows them."""
        self._newest = operation, local
        under_way = self._under_way
        if self.results_flow(now_us):
            network, lossy = in_network(under_way), self.expects_losses
            due = is_due_while_results_flow(
                self.asking, self._window, under_way.in_flight, network, under_way.out, lossy, now_us
            )
        else:
            due = unasked(self.asking, under_way.sent, under_way.out) >= question_every(self._window)
        if not self._ask_when_left(operation, local, now_us) and due:
            self._ask_behind(now_us)

    def _ask_when_left(self, operation: Operation, local: int, now_us: int) -> bool:
        """Asks once in an operation, when all of our first contribution has left: the answer shows when it has arrived,
        and help is planned with that time. No question is needed where results show it. Returns: whether it asked.
        """
        if not self.asks_when_left(operation) or not operation.groups:
            return False
        operation.has_left = not any(group.has_work for group in operation.groups)
        if not operation.has_left or self.results_flow(now_us) or not operation.pending[local]:
            return False
        self.ask(operation, local, now_us)
        return True

    def on_full_window(self, operations: Iterable[Operation], now_us: int) -> None:
        """Asks again while the window is full, if an answer is late: nothing can leave before arrivals are known, the
        question behind the window's last fragment may be lost, and results of other operations keep the probe timer
        from expiring.

        Args: operations: the operations that are not done, in order.
        """
        lossy, in_flight = self.expects_losses, self._under_way.in_flight
        if not is_answer_late(
            self.asking, self._round_trip, self._window, in_flight, len(self.questions), lossy, now_us
        ):
            return
        for operation in operations:
            oldest = operation.oldest_pending()
            if oldest is not None:
                self.ask_for(operation, [oldest], now_us)
                return

    def on_nothing_to_send(self, now_us: int) -> None:
        """Asks for the fragment that was sent last, if losses are expected: no later fragment will show whether it is
        lost. Also asks when all of a contribution has left, if kernels have sent it: they do not ask.
        """
        if self._newest is None:
            return
        operation, local = self._newest
        self._ask_when_left(operation, local, now_us)
        ends = not self.results_flow(now_us) or not any(group.has_work for group in operation.groups)
        under_way = self._under_way
        if self.expects_losses and ends and unasked(self.asking, under_way.sent, under_way.out) > 0:
            self._ask_behind(now_us)

    def _ask_behind(self, now_us: int) -> None:
        """Asks for the fragment that was sent last, unless an answer about it may be on its way."""
        assert self._newest is not None
        operation, local = self._newest
        if operation.pending[local] and all(group.ask_again_us[local] <= now_us for group in operation.groups):
            self.ask_for(operation, [local], now_us)

    @property
    def waits_for_answers(self) -> bool:
        """Whether questions are unanswered, and no results have come since they left."""
        return waits_for_answers(self.asking, len(self.questions))

    def ask_around(self, operations: Iterable[Operation], now_us: int) -> None:
        """Asks after a silence for the oldest missing fragment, and for fragments that the oldest operations have sent.

        An operation with nothing in flight is left out, unless it is the oldest: all others wait for that one.

        Args: operations: the operations that are not done, in order.
        """
        left = MAX_QUESTIONS
        for n, operation in enumerate(operations):
            if n and not any(group.in_flight for group in operation.groups):
                continue
            oldest = operation.oldest_pending()
            if oldest is None:
                continue
            asked = {oldest}
            for group in operation.groups:
                waiting = group.waiting(operation.pending, oldest, now_us + 1)
                if len(waiting):
                    asked.update((int(waiting[0]), int(waiting[-1])))
            for local in asked:
                self.ask(operation, local, now_us)
            left -= len(asked)
            if left <= 0:
                return

    def forget(self, operation: Operation) -> None:
        """Drops open questions about an operation that is over. Their answers were lost, or results came in their place."""
        self.questions.forget(operation)
        if self._newest is not None and self._newest[0] is operation:
            self._newest = None

    # --- for kernels (steady_kernels.py) ------------------------------------------------------------------------------

    def asks_when_left(self, operation: Operation) -> bool:
        """Whether a question follows the last of our first contribution, if no results come then."""
        return not operation.has_left and self._member.help_grade is not HelpGrade.NONE

    def newest_of(self, operation: Operation) -> int:
        """The fragment of an operation that left last; -1: that was one of another operation."""
        return self._newest[1] if self._newest is not None and self._newest[0] is operation else -1

    def take_questions(self, operation: Operation, asked: Sequence[Asked], known: int) -> None:
        """Takes over questions of the kernels that have left, each the first about its fragment, or were answered.

        Args: known: number of questions, the first in `asked`, that had left before the kernels began.
        """
        for n, question in enumerate(asked):
            if n >= known:
                self.questions.ask(operation, question.local, question.asked_us, question.behind, tells=False)
                self._stats.probes += 1
            if question.is_answered:
                self.questions.answered(operation, question.local, question_number(question.flags))

    def take_sent(self, operation: Operation, local: int) -> None:
        """Notes that kernels have sent fragments, up to this one; no question follows them."""
        self._newest = operation, local
