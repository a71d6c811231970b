"""When everything is as it should be: what a connection knows is lent to kernels, which go on by themselves. (protocol 5.8)

A stream flows if there is one operation under way, with contributions of our own that have never been sent twice, at
exponents that a history foretells; results come in, nothing was lost lately, and nobody has asked for anything. Then a turn
of the connection is always the same, and kernels do one after the other (steady_kernels.py), until something is not as it
should be. The rules go on from there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import ByteRows, Values
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.header import first_byte, header_bytes, size_of
from sa_atp.protocol.packets.spec import Kind
from sa_atp.protocol.rank.compiled import steady_kernels as s
from sa_atp.protocol.rank.compiled.common_case import CommonCase
from sa_atp.protocol.rank.events import WorkerStats
from sa_atp.protocol.rank.pace.probe_timer import ProbeTimer
from sa_atp.protocol.rank.pace.receiving import Receiver
from sa_atp.protocol.rank.pace.timing import RoundTrip
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.recovery.recovery import Recovery
from sa_atp.protocol.rank.sums.contribution_group import ContributionGroup
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.operations import Operations
from sa_atp.protocol.rank.sums.stamp import probes

LEAST_MISSING = 256  # fragments: for fewer it is not worth while


class Steady:
    """Of one connection. Between `enter` and `leave` nothing of the connection may be asked or told."""

    def __init__(
        self,
        membership: Membership,
        operations: Operations,
        round_trip: RoundTrip,
        window: Window,
        probe_timer: ProbeTimer,
        recovery: Recovery,
        receiver: Receiver,
        stats: WorkerStats,
        common: CommonCase,
    ) -> None:
        self._member = membership
        self._operations = operations
        self._round_trip = round_trip
        self._window = window
        self._probe_timer = probe_timer
        self._recovery = recovery
        self._receiver = receiver
        self._stats = stats
        self._common = common
        self._operation: Operation | None = None
        self._numbers = np.zeros(s.N_ITEMS, np.int64)
        self._numbers[s.N_SLOT_COUNT] = membership.slot_count
        self._numbers[s.N_SIZE] = size_of(Kind.DATA, membership.lanes, membership.contribution_bits)
        self._numbers[s.N_REPLY], self._numbers[s.N_IS_FLAT] = first_byte(Kind.PROBE_REPLY), membership.levels <= 1
        self._reals = np.zeros(s.R_ITEMS)
        self._asked = np.zeros((s.MOST_ASKED, s.Q_ITEMS), np.int64)
        self._known = 0  # questions of these that the rules have asked
        self._gaps = np.zeros((s.MOST_GAPS, 2), np.int64)
        self.question: ByteRows = np.zeros((1, header_bytes(membership.contribution_bits)), np.uint8)
        """uint8[1, bytes of a header]: what leaves behind what a kernel has written, where it says so."""
        self.state: tuple[NDArray[Any], ...] = ()
        """What kernels are given of the operation: see `Operation.lent`, in the order in which `receive` takes it apart."""
        self.values: Values = np.zeros(0, np.float32)
        """float32[values]: what is contributed."""

    def enter(self, due_us: int, said_place: int, tell: int, now_us: int) -> bool:
        """Lends what the connection knows, if a stream flows.

        Args:
            due_us: when somebody else's timer is due.
            said_place, tell: how far we were when the parameter server was told, and after how many more it is told anew.
        """
        active = self._operations.active()
        if len(active) != 1 or self._operations.waiting() or not self._recovery.is_calm(now_us):
            return False
        operation = next(iter(active))
        if operation.missing < LEAST_MISSING or len(operation.groups) != 1 or self._probe_timer.timeouts:
            return False
        group, under_way = operation.groups[0], self._operations.under_way
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
        numbers, (first, end) = self._numbers, group.fresh_range
        numbers[: s.N_IN_FLIGHT] = *self._window.counted(), *self._round_trip.counted()
        numbers[s.N_IN_FLIGHT : s.N_LOW] = under_way.in_flight, under_way.missing, under_way.sent, under_way.out
        numbers[s.N_LOW : s.N_FRESH_FIRST] = *operation.counted(), *group.counted()
        numbers[s.N_FRESH_FIRST : s.N_FIRST_SEQ] = first, end, group.sending[-1][1]
        numbers[s.N_SAID_PLACE], numbers[s.N_TELL], numbers[s.N_DUE] = said_place, tell, due_us
        numbers[s.N_SINCE : s.N_DUE] = *self._probe_timer.counted(), *self._recovery.counted()
        numbers[s.N_RESULTS] = numbers[s.N_CONGESTED] = numbers[s.N_PART] = 0
        numbers[s.N_ASKED : s.N_LAST_ASKED] = numbers[s.N_GAPS] = 0
        numbers[s.N_LAST_ASKED], waiting = self._recovery.asked_of(operation)
        self._known = 0 if waiting is None else min(len(waiting), s.MOST_ASKED // 2)
        numbers[s.N_OTHERS_WAIT], numbers[s.N_ASKED] = waiting is None or self._known < len(waiting), self._known
        if waiting and self._known:
            self._asked[: self._known, : s.Q_IS_ANSWERED] = waiting[: self._known]
            self._asked[: self._known, s.Q_IS_ANSWERED] = 0
        self._reals[:] = self._window.sizes()
        return True

    def _begin(self, operation: Operation, group: ContributionGroup) -> bool:
        """Looks at what does not change as long as an operation lasts. Returns: whether that is common."""
        lent = self._common.lent(operation, group)
        if lent is None:
            return False
        self._operation = operation
        self.question[:] = probes(self._member, operation, [operation.plan.data_start(0)], [0])
        words = self.question.view(np.uint32)[0]
        self.state = (
            self._numbers, self._reals, *lent, group.ask_again_us, group.held, self._asked, self._gaps, words,
        )  # fmt: skip
        self.values = group.parts[0]
        self._numbers[s.N_FIRST_SEQ], self._numbers[s.N_TAG] = operation.first_seq, operation.tag
        self._numbers[s.N_PLACE] = self._operations.place_of(operation)
        return True

    @property
    def data_fragments(self) -> int:
        assert self._operation is not None
        return self._operation.plan.data_fragments

    def leave(self, now_us: int) -> None:
        """Takes back what was lent, as it is now, and does what is the rules' of the last stream. Args: when it came."""
        operation, numbers = self._operation, self._numbers.tolist()
        assert operation is not None
        (group,), under_way, stats = operation.groups, self._operations.under_way, self._stats
        stats.fragments_sent += numbers[s.N_SENT] - under_way.sent
        stats.results += numbers[s.N_RESULTS]
        stats.congested += numbers[s.N_CONGESTED]
        self._window.set_counted(numbers[: s.N_SMOOTHED], self._reals.tolist())
        self._round_trip.set_counted(numbers[s.N_SMOOTHED : s.N_IN_FLIGHT])
        if numbers[s.N_SENT] > under_way.sent:
            self._recovery.has_sent(operation, numbers[s.N_HIGH] - 1)
            for end_us, first_us in self._gaps[: numbers[s.N_GAPS]].tolist():
                group.sending[-1] = (group.sending[-1][0], end_us)
                group.sending.append((first_us, first_us))
            group.sending[-1] = (group.sending[-1][0], numbers[s.N_SENDING_LAST])
        under_way.in_flight, under_way.missing, under_way.sent, under_way.out = numbers[s.N_IN_FLIGHT : s.N_LOW]
        operation.set_counted(*numbers[s.N_LOW : s.N_HIGH], missing=under_way.missing)
        group.set_counted(numbers[s.N_HIGH : s.N_FRESH_FIRST], under_way.in_flight)
        group.set_fresh_range(numbers[s.N_FRESH_FIRST], numbers[s.N_FRESH_END])
        self._probe_timer.set_counted(*numbers[s.N_SINCE : s.N_RESULTS_US])
        self._recovery.on_results(numbers[s.N_RESULTS_US])
        if numbers[s.N_ASKED]:
            self._recovery.has_asked(operation, self._asked[: numbers[s.N_ASKED]].tolist(), self._known)
        stats.probe_replies += numbers[s.N_ANSWERED]
        self._round_trip.has_answered(numbers[s.N_ANSWERED])
        if numbers[s.N_PART]:
            stream = self.state[s.A_ROWS][numbers[s.N_PART_ROW]].tolist()
            self._receiver.follow(operation, stream, self.state[s.A_FOUND], self.state[s.A_DONE], now_us)

    def forget(self, operation: Operation) -> None:
        """It is over: its arrays and its values are not ours any more."""
        if operation is self._operation:
            self._operation, self.state, self.values = None, (), np.zeros(0, np.float32)
