"""A stream that flows: kernels go on with a connection by themselves, while nothing else happens. (protocol section 5.8)

A stream flows if there is one operation under way, with contributions of our own, at exponents that a history foretells;
what was lost has been sent again, and nobody has asked for anything. Then a turn of the connection is always the same, and
kernels do one after the other (steady_kernels.py), until something is not as it should be. The rules go on from there.
"""

import numpy as np

from sa_atp.basics.arrays import ByteRows, Values
from sa_atp.protocol.packets.header import first_byte, size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.compiled.common_case import CommonCase
from sa_atp.protocol.rank.compiled.kernels import Stream
from sa_atp.protocol.rank.compiled.steady_kernels import MOST_ASKED, Flow, State
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.pace.receiving import Receiver
from sa_atp.protocol.rank.recovery.asking import Asked
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.records import Record

LEAST_MISSING = 16  # fragments: for fewer it is not worth while
NO_VALUES: Values = np.zeros((0, 0), np.float32)


class Steady:
    """Copies a connection into a Flow for kernels, and back. Between `enter` and `leave` nobody else may use it."""

    def __init__(self, connection: Connection, prober: Prober, receiver: Receiver, common: CommonCase) -> None:
        member = connection.membership
        self._operations, self._under_way = connection.operations, connection.under_way
        self._round_trip, self._window = connection.round_trip, connection.window
        self._probe_timer, self._stats = connection.probe_timer, connection.stats
        self._prober, self._receiver, self._common = prober, receiver, common
        self._window_log = connection.window_log
        self._operation: Operation | None = None
        self._flow: Flow | None = None
        self._size, self._is_flat = size_of(Kind.DATA, member.lanes, member.contribution_bits), member.levels <= 1
        self._record = Record(Flow)
        self._known = 0  # questions in State.asked that the rules have asked
        self.state: State | None = None
        """The operation's state for kernels; None: no stream has flowed yet."""
        self.values: Values = NO_VALUES
        """float32[parts, values]: what is contributed, as kernels read it."""

    def enter(self, due_us: int, said_place: int, tell: int, now_us: int) -> bool:
        """Writes what the connection knows into `state`, if a stream flows. Returns: whether one does.

        Args:
            due_us: when somebody else's timer is due.
            said_place, tell: how far we were when the parameter server was told, and after how many more it is told anew.
        """
        active = self._operations.active()
        if len(active) != 1 or self._prober.packets:
            return False
        operation = next(iter(active))
        if operation.missing < LEAST_MISSING or len(operation.groups) != 1 or self._probe_timer.timeouts:
            return False
        group, under_way = operation.groups[0], self._under_way
        if (
            operation.missing != under_way.missing
            or group.in_flight != under_way.in_flight
            or not group.is_steady
            or not operation.is_foretold
            or self._round_trip.some_go_by_server(now_us)
        ):
            return False
        if operation is not self._operation and not self._begin(operation, group):
            return False
        assert self.state is not None
        questions = self._prober.questions.open_of(operation)
        self._known = 0 if questions is None else min(len(questions), MOST_ASKED // 2)
        if questions and self._known:
            self.state.asked[: self._known] = questions[: self._known]
        fresh_first, fresh_end = group.fresh_range
        self._flow = Flow(
            self._window, self._round_trip, under_way, self._probe_timer, self._prober.asking, operation, group,
            fresh_first=fresh_first, fresh_end=fresh_end, sending_last_us=group.sending[-1][1],
            data_fragments=operation.plan.data_fragments, size=self._size, place=operation.place, said_place=said_place,
            tell_after=tell, opens_at=self._operations.opens_at(), due_us=due_us, reply=first_byte(Kind.PROBE_REPLY),
            is_flat=self._is_flat, asked=self._known, waiting=len(self._prober.questions),
            last_asked=self._prober.questions.last_of(operation), newest=self._prober.newest_of(operation),
            others_wait=questions is None or self._known < len(questions),
            asks_when_left=self._prober.asks_when_left(operation),
        )  # fmt: skip
        self._record.write(self._flow)
        return True

    def _begin(self, operation: Operation, group: ContributionGroup) -> bool:
        """Prepares what stays the same while an operation lasts. Returns: whether the operation is of the common case."""
        state = self._common.state(self._record.array, operation, group)
        if state is None:
            return False
        self._operation, self.state, self.values = operation, state, group.joined()
        return True

    @property
    def question(self) -> ByteRows:
        """uint8[1, bytes of a header]: what leaves behind what a kernel has written, where it says so."""
        assert self.state is not None
        question: ByteRows = self.state.question.view(np.uint8).reshape(1, -1)
        return question

    def leave(self, now_us: int) -> None:
        """Writes what kernels have changed back, and finishes their last stream. Args: now_us: when it came."""
        operation, state, flow = self._operation, self.state, self._flow
        assert operation is not None
        assert state is not None
        assert flow is not None
        (group,), stats, sent = operation.groups, self._stats, self._under_way.sent
        self._record.read(flow)
        if self._window_log is not None:
            self._window_log.note("stream")
        stats.results += flow.results
        stats.congested += flow.congested
        stats.probe_replies += flow.answered
        newly = self._under_way.sent - sent
        if newly:
            stats.fragments_sent += newly
            self._prober.take_sent(operation, flow.newest)
            for end_us, first_us in state.gaps[: flow.gaps].tolist() if flow.gaps else ():
                group.sending[-1] = (group.sending[-1][0], end_us)
                group.sending.append((first_us, first_us))
            group.sending[-1] = (group.sending[-1][0], flow.sending_last_us)
        group.set_fresh_range(flow.fresh_first, flow.fresh_end)
        if flow.asked:
            asked = [Asked(*row) for row in state.asked[: flow.asked].tolist()]
            self._prober.take_questions(operation, asked, self._known)
        if flow.unfinished:
            stream = Stream(*state.rows[flow.unfinished_row].item())
            self._receiver.follow(operation, stream, state.found, state.done, now_us)

    def forget(self, operation: Operation) -> None:
        """Drops the arrays and values of an operation that is over."""
        if operation is self._operation:
            self._operation, self.state, self.values = None, None, NO_VALUES
