"""Choice of the contributions that leave now, and the packets that carry them. (protocol sections 5.2 to 5.5 and 10.5)"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sa_atp.basics.arrays import ByteRows, Numbers
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.rank_events import Resent
from sa_atp.protocol.numbers.fragments import Run
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, lanes_of, size_of
from sa_atp.protocol.packets.spec import Flag, Kind
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.pace.timing import answer_us
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.recovery.recovery import Recovery
from sa_atp.protocol.rank.sums.contribution_group import RESEND_AFTER_TRIES, ContributionGroup
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.stamp import Stamp
from sa_atp.protocol.rank.sums.under_way import in_network

MAX_BURST = 256  # fragments written at once: enough to spread the cost of a batch, few enough to stay in the cache


class _Piece(NamedTuple):
    """Consecutive fragments to send."""

    operation: Operation
    group: ContributionGroup
    first: int
    end: int


class _Rules:
    """Writes packets of any kind of contribution, run by run."""

    def __init__(self, packets: ByteRows, member: Membership) -> None:
        self._head, self._lanes = headers(packets), lanes_of(packets, member.contribution_bits)
        self._bits = bitmaps(packets, member.contribution_bits)
        self._flags, self._stamp = self._head["flags"], Stamp(self._head, member)

    def write(self, at: int, operation: Operation, group: ContributionGroup, run: Run) -> None:
        """Writes the packets of a run, without their flags: these may depend on what is written."""
        rows = slice(at, at + len(run))
        group.write_lanes(run, operation.exponent_of(run), self._bits[rows], self._lanes[rows])
        self._stamp.name(at, operation, run)

    def write_flags(self, at: int, run: Run, flags: Numbers | int) -> None:
        self._flags[at : at + len(run)] = flags

    def finish(self) -> None:
        self._head["first"] = first_byte(Kind.DATA)
        self._stamp.finish()


class Sender:
    """Chooses and writes contributions, of all operations of a connection."""

    def __init__(self, connection: Connection, prober: Prober, recovery: Recovery) -> None:
        self._log = connection.log
        self.room: ByteRows | None = None
        """uint8[most of a burst, size], where each is written over the one before; None: each has its own array."""
        self.has_more = False
        """Whether the last burst was as large as it may be, so that there may be more to send."""
        self._member = member = connection.membership
        self._common = connection.common
        self._leaf, self._operations = connection.leaf, connection.operations
        self._prober, self._recovery = prober, recovery
        self._round_trip, self._window = connection.round_trip, connection.window
        self._under_way, self._stats = connection.under_way, connection.stats
        self._size = size_of(Kind.DATA, member.lanes, member.contribution_bits)

    def contributions(self, budget_bytes: int | None, now_us: int) -> Burst | None:
        """Fragments to send now, as far as the windows allow. Args: budget_bytes: that may be sent; None: any number.

        Returns: one burst, so that many small operations cost no more packets at once than one large one; None: nothing.
        """
        self.has_more = False
        if self._operations.oldest is None:
            return None
        at_most = MAX_BURST if self.room is None else len(self.room)
        if budget_bytes is not None:
            at_most = min(at_most, budget_bytes // self._size)
        active = self._operations.wanting()
        if not active or not at_most:
            return None
        self._recovery.find_losses(active, now_us)
        if self._operations.gathers:
            self._recovery.find_gaps(active, now_us)
        in_window = int(self._window.network) - in_network(self._under_way)
        if in_window <= 0:
            self._prober.on_full_window(active, now_us)
            return None
        until_question = self._prober.until_question(now_us)
        if until_question is not None:
            at_most = min(at_most, until_question)
        at_most = min(at_most, in_window)
        oldest_place = self._operations.oldest_place()
        chosen: list[_Piece] = []
        # The n-th groups of all operations share the slots. If all groups did, they would lock up: what a helper sends
        # for a straggler would wait for room that its own fragments hold, and those wait for the straggler's.
        n, rest, most = 0, True, at_most
        while rest and most > 0:
            window, rest = int(self._window.slots), False
            for operation in active:
                if n >= len(operation.groups):
                    continue
                rest = True
                group = operation.groups[n]
                # A slot serves the fragments whose numbers differ by the quota: the older must be done first.
                below = operation.plan.first_from(oldest_place + self._member.slot_count - operation.place)
                for first, end in group.take(window, most, below, operation.pending) if group.has_work else ():
                    chosen.append(_Piece(operation, group, first, end))
                    most -= end - first
                    window -= end - first  # in flight, as soon as it is written
                window -= group.in_flight
                if window <= 0 or most <= 0:
                    break
            n += 1
        if not chosen:
            self._prober.on_nothing_to_send(now_us)
            return None
        # a window of each group of an operation: one may have been full, and the next one not
        self.has_more = at_most < in_window and most <= 0
        burst = self._burst(chosen, at_most - most, now_us)
        self._prober.on_sent(chosen[-1].operation, chosen[-1].end - 1, now_us)
        return burst

    def _burst(self, chosen: Sequence[_Piece], count: int, now_us: int) -> Burst:
        # helpers send in several windows, together more than there is room for
        if self.room is None or count > len(self.room):
            packets = np.empty((count, self._size), np.uint8)
        else:
            packets = self.room[:count]
        rules: _Rules | None = None
        at = 0
        for operation, group, first, end in chosen:
            place = first
            while place < end:
                if written := self._write_common(packets, at, operation, group, place, end):
                    at, place = at + written, place + written
                    continue
                rules = rules or _Rules(packets, self._member)
                run = next(operation.plan.runs(place, end))
                rules.write(at, operation, group, run)
                rules.write_flags(at, run, self._flags(operation, group, run))
                at, place = at + len(run), run.end
            group.on_sent(first, end, now_us, answer_us(self._round_trip))
            self._stats.on_behalf += end - first if group.on_behalf else 0
        if rules is not None:
            rules.finish()
        return Burst(self._member.data_address, packets)

    def _write_common(
        self, packets: ByteRows, at: int, operation: Operation, group: ContributionGroup, first: int, end: int
    ) -> int:
        """Returns: how many were written, of fragments that have not been sent before."""
        if self._common is None or not group.is_fresh(first, end):
            return 0
        written = self._common.write(packets, at, operation, group, first, end)
        self._stats.fragments_sent += written
        return written

    def _flags(self, operation: Operation, group: ContributionGroup, run: Run) -> Numbers | int:
        """Flags of each fragment of a run, and their counters."""
        flags = int(Flag.ON_BEHALF) if group.bypass_leaf else 0
        if group.rounded.is_poisoned(run):
            flags |= Flag.OVERFLOW
            self._stats.poisoned += len(run)
        tries = group.tries[run.first : run.end]
        if not tries.any():
            self._stats.fragments_sent += len(run)
            return flags
        self._stats.fragments_sent += int((tries == 0).sum())
        again, hand_over = int((tries > 0).sum()), int((tries >= RESEND_AFTER_TRIES).sum())
        self._stats.retransmitted += again
        self._stats.resends += hand_over
        if self._log is not nobody:
            self._log(Resent(operation.index, hex(group.bits), run.first, run.end - 1, again, hand_over))
        return self._leaf.flags(flags, tries, group.flush[run.first : run.end])
