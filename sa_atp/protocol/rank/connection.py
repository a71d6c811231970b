"""The state that the parts of one connection share: membership, sums, the network's state, counters, events."""

from collections import deque
from dataclasses import replace

from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.rank.compiled.common_case import CommonCase, Kernels
from sa_atp.protocol.rank.events import Event, WorkerLimits, WorkerStats
from sa_atp.protocol.rank.pace.probe_timer import ProbeTimer
from sa_atp.protocol.rank.pace.timing import MAX_TIMEOUT_US, RoundTrip
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.pace.window_log import WindowLog
from sa_atp.protocol.rank.recovery.leaf_bypass import LeafBypass
from sa_atp.protocol.rank.sums.operations import Operations
from sa_atp.protocol.rank.waits import Waits


class Connection:
    def __init__(
        self,
        membership: Membership,
        now_us: int,
        limits: WorkerLimits | None = None,
        kernels: Kernels | None = None,
        log: Log = nobody,
    ) -> None:
        """Args:
        kernels: do the common case of packets; None: nothing is compiled here.
        log: is called with each decision.
        """
        self.log = log
        self.membership = membership
        self.limits = replace(limits or WorkerLimits())  # of our own: they may change
        self.common = None if kernels is None else CommonCase(kernels, membership)
        self.operations = Operations(membership, log)
        self.under_way = self.operations.under_way
        self.leaf = LeafBypass(membership)
        self.round_trip = RoundTrip()
        self.window = Window(membership.slot_count)
        self.window_log = None if log is nobody else WindowLog(self.window, log)
        self.probe_timer = ProbeTimer(
            self.round_trip,
            self.limits.operation_timeout_us,
            now_us,
            longest_refused_us=self.limits.server_timeout_us,
            most_us=MAX_TIMEOUT_US + membership.stagger_us(MAX_TIMEOUT_US),
        )
        self.stats = WorkerStats()
        self.waits = Waits(now_us)
        self.events: deque[Event] = deque()
