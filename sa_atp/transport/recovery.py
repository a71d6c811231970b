"""What became of fragments whose sum does not come: lost, still waiting for others, or in the way. (sections 5.3 to 5.6)

Three signs. A fragment sent later is complete: this one is lost. The switch, when asked by a probe, holds a fragment
without our contributions: they are lost. It holds some of them and not others: someone else has contributed a part of
what we wanted to add, so we add the rest by itself.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from sa_atp.spec import Flag
from sa_atp.straggler.ledger import SendProgress
from sa_atp.transport.contribution_group import NEVER, ContributionGroup
from sa_atp.transport.events import WaitingFor, WorkerStats
from sa_atp.transport.leaf_bypass import LeafBypass
from sa_atp.transport.membership import Membership
from sa_atp.transport.operation import Operation
from sa_atp.transport.probe_timer import ProbeTimer
from sa_atp.transport.serial import SEQ_MASK
from sa_atp.transport.stamp import probe
from sa_atp.transport.timing import RoundTrip
from sa_atp.transport.window import Window
from sa_atp.wire.datagrams import Burst

MAX_PROBES = 256  # asked at once, where each fragment may be in a different state
MAX_QUESTIONS = 64  # asked for one silence: when the oldest are known those behind them have their turn


class Recovery:
    """Finds what must be sent again; shares the connection's windows, round trip, silence and counters."""

    def __init__(
        self,
        membership: Membership,
        leaf: LeafBypass,
        round_trip: RoundTrip,
        window: Window,
        probe_timer: ProbeTimer,
        stats: WorkerStats,
    ) -> None:
        self.packets: deque[Burst] = deque()
        """Probes to send."""
        self._member = membership
        self._leaf = leaf
        self._round_trip = round_trip
        self._window = window
        self._probe_timer = probe_timer
        self._stats = stats
        self._asked_us: dict[int, dict[int, int]] = {}  # operation: of its fragments, when they were probed

    # --- by order -----------------------------------------------------------------------------------------------------

    def find_losses(self, operations: Iterable[Operation], now_us: int) -> None:
        """A fragment is thought lost when one sent sufficiently later is complete (after RFC 8985). (section 5.3)

        Only within a group: that a helper's late fragments are complete says nothing of its own earlier ones.
        """
        lost = 0
        reordering_us = self._round_trip.reordering_us(now_us)
        for operation in operations:
            for group in operation.groups:
                before = group.newest_done_us - reordering_us
                if group.in_flight and before > group.losses_found_before_us:
                    group.losses_found_before_us = before
                    oldest = operation.oldest_pending() or 0
                    lost += group.mark_lost(group.waiting(operation.pending, oldest, before))
        if lost:
            self._stats.lost_by_order += lost
            self._window.on_loss(now_us, self._round_trip.smoothed_us)

    # --- by asking ----------------------------------------------------------------------------------------------------

    def ask(self, operation: Operation, local: int, now_us: int) -> None:
        """Asks what is held of a fragment."""
        self._asked_us.setdefault(operation.index, {})[local] = now_us
        self._stats.probes += 1
        self.packets.append(Burst(self._member.data_address, probe(self._member, operation, local)))

    def ask_around(self, operations: Iterable[Operation], now_us: int) -> None:
        """After a silence: asks for the oldest fragment that is missing, and for what the oldest operations have sent.

        Of an operation of which nothing is in flight there is nothing to be found out, unless it is the one that all
        others wait for. Args: operations: those that are not done, in order.
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

    def on_answer(self, head: np.void, operation: Operation, now_us: int) -> WaitingFor | None:
        """Takes what is held of a fragment of an operation.

        Returns: that we lead, if all that is missing is others' work.
        """
        local = (int(head["seq"]) - operation.first_seq) & SEQ_MASK
        asked_us = self._asked_us.get(operation.index, {}).pop(local, None)
        if asked_us is None:
            return None
        from_server = bool(int(head["flags"]) & Flag.FROM_PS)
        if not from_server:
            self._round_trip.answer(now_us - asked_us)
        if not operation.pending[local]:
            return None
        return self._on_held(operation, local, int(head["bits"]), asked_us, from_server, now_us)

    def _on_held(
        self, operation: Operation, local: int, bits: int, asked_us: int, from_server: bool, now_us: int
    ) -> WaitingFor | None:
        lost = 0
        held = True
        oldest = operation.oldest_pending() or 0
        same = bits == operation.held_bits
        in_leaf = not from_server and self._leaf.may_be_leaf(bits)
        for group in operation.groups:
            if in_leaf and self._leaf.says_nothing_of(group, bits, self._probe_timer.timeouts):
                continue
            if not NEVER < group.sent_us[local] < asked_us:
                held = False  # it was not there to be seen
            elif bits & group.bits != group.bits or bits == self._member.fan_in:
                held = False
                if group.exclude(local, bits):
                    lost += group.mark_lost(np.array([local]))
                    self._ask_each(operation, group, oldest, now_us)
                else:
                    # Not there, or complete without us having seen it: whatever happened to it happened to what was
                    # sent around it. Sending a fragment twice does no harm.
                    lost += group.mark_lost(group.waiting(operation.pending, oldest, asked_us))
            elif in_leaf and self._leaf.must_flush(group, bits, self._probe_timer.timeouts, same=same):
                waiting = group.waiting(operation.pending, oldest, asked_us)
                group.flush_leaf(self._leaf.to_flush(group, waiting, self._probe_timer.timeouts))
        if lost:
            self._stats.lost_by_probe += lost
            self._window.on_loss(now_us, self._round_trip.smoothed_us)
            self._probe_timer.on_loss()
        operation.held_bits = bits
        missing = self._member.fan_in & ~bits
        if not held or not operation.groups or not missing:
            return None
        sent_us = operation.groups[0].sent_us
        sent_us = sent_us[(sent_us != NEVER) & (sent_us < asked_us)]
        total = operation.plan.data_fragments
        # a few fragments tell no pace: the first of a chunk wait for what others have not computed yet
        send_us = (now_us - int(sent_us.min())) * total // len(sent_us) if len(sent_us) > total // 8 else 0
        return WaitingFor(operation.index, missing, SendProgress(min(1.0, operation.missing / total), send_us))

    def forget(self, operation: Operation) -> None:
        """The operation is over: answers that have not come are not waited for. Some were lost, or came as results."""
        self._asked_us.pop(operation.index, None)

    # --- two levels (section 10.5) ------------------------------------------------------------------------------------

    def leave_leaf(self, operation: Operation, now_us: int) -> None:
        """Our leaf will not complete this operation: what is sent from now on passes it, and what it holds it must pass on.

        Who has it do that follows from what it holds.
        """
        oldest = operation.oldest_pending()
        for group in operation.groups:
            if group.bypass_leaf or oldest is None:
                continue
            group.bypass_leaf = True
            waiting = group.waiting(operation.pending, oldest, now_us + 1)
            if len(waiting):
                self.ask(operation, int(waiting[0]), now_us)

    def _ask_each(self, operation: Operation, group: ContributionGroup, oldest: int, now_us: int) -> None:
        """Where others contribute a part of what we do, fragments differ in whose came first: ask for each.

        Only on news: answers that change nothing would otherwise bring on one another, for ever.
        """
        since_us = now_us - self._round_trip.timeout_us
        for local in group.waiting(operation.pending, oldest, now_us + 1)[:MAX_PROBES].tolist():
            if self._asked_us.get(operation.index, {}).get(local, NEVER) <= since_us:
                self.ask(operation, local, now_us)
