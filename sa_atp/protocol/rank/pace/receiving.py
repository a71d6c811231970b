"""Results: they become sums of their operations, and tell what leaves the network. (protocol sections 5.2 to 5.7)"""

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import ByteRows, Headers, Lanes
from sa_atp.protocol.job.errors import NonFiniteError, ValuesChangedError
from sa_atp.protocol.job.failures import Reportable
from sa_atp.protocol.job.horizon import HORIZON
from sa_atp.protocol.job.serial import SEQ_MASK
from sa_atp.protocol.log.event import nobody
from sa_atp.protocol.log.rank_events import SumDone
from sa_atp.protocol.numbers.fragments import Piece
from sa_atp.protocol.packets.header import bitmaps, header_bytes, headers, lanes_of, words_of
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.rank.compiled.common_case import Taken
from sa_atp.protocol.rank.compiled.kernels import Stream
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.events import OperationDone
from sa_atp.protocol.rank.pace.early import EarlyResults
from sa_atp.protocol.rank.recovery.asking import on_fresh_results
from sa_atp.protocol.rank.recovery.fetching import Fetching
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.sums.operation import Operation
from sa_atp.protocol.rank.sums.progress import NEVER
from sa_atp.protocol.rank.sums.scattered_operation import ScatteredOperation
from sa_atp.protocol.rank.sums.wrong_values import Changed, NotFinite

# flags as plain integers: arithmetic on enum members is slow
_CONGESTION, _COLLISION = int(Flag.CONGESTION), int(Flag.COLLISION)
_FROM_PS, _FINISHED_AT_PS = int(Flag.FROM_PS), int(Flag.FROM_PS | Flag.FAN_OUT)


class Receiver:
    """Takes results, for the connection's operations and for what it knows of the network."""

    def __init__(self, connection: Connection, prober: Prober, fetching: Fetching) -> None:
        self.problem: Reportable | None = None
        """Why there is no going on: the first sum that says so."""
        self._log, self._window_log = connection.log, connection.window_log
        self._member = member = connection.membership
        self._fan_in = words_of(member.fan_in, member.contribution_bits)
        self._common = connection.common
        self._operations, self._under_way = connection.operations, connection.under_way
        self._round_trip, self._window = connection.round_trip, connection.window
        self._probe_timer = connection.probe_timer
        self._stats, self._events = connection.stats, connection.events
        self._prober, self._fetching = prober, fetching
        self._early = EarlyResults()
        self._ahead_to = 0  # the place up to which others have done operations that we had not begun
        self._opened_to = 0  # up to which we have looked for early results

    def take_early(self, now_us: int) -> int | None:
        """Takes the results that came too early of operations that have been opened since the last call.

        Returns: the place up to which others have done them without us; None: they have not.
        """
        looked_to, self._opened_to = self._opened_to, self._operations.opened_to
        if min(self._opened_to, self._ahead_to) <= looked_to:
            return None
        for rows in self._early.take(self._opened_to):
            self._take_complete(headers(rows), rows, now_us, is_early=True)
        return self._ahead_to

    def _keep(self, place: int, results: ByteRows) -> int:
        """Keeps results of operations that we have not begun. Args: place: the first one's. Returns: how many are kept."""
        if place >= self._operations.next_place + HORIZON:
            return 0
        self._ahead_to = max(self._ahead_to, place + len(results))
        return self._early.keep(place, results)

    def take_common(self, packets: ByteRows, now_us: int) -> bool:
        """Takes packets as `take` does, if all are complete results of this job. Returns: whether they are."""
        streams = None if self._common is None or self._member.scatters else self._common.results.find(packets)
        if streams is None or self._common is None:
            return False
        for stream in streams:
            count = stream.end - stream.start
            operation, following = self._operations.reach(stream.seq)
            taken, out = None, self._under_way.out
            if operation is not None and stream.tag == operation.tag and following >= count and not operation.is_done():
                local = (stream.seq - operation.first_seq) & SEQ_MASK
                try:
                    taken = self._common.take(packets, stream, operation, local)
                except (NotFinite, Changed) as problem:
                    self.problem = self.problem or self._explained(operation, problem)
                    self._stats.duplicates += count
                    continue
            if operation is None or taken is None:
                rows = packets[stream.start : stream.end]
                self._take_complete(headers(rows), rows, now_us)
                continue
            self._after_stream(operation, taken, out, stream, now_us)
        return True

    def _after_stream(self, operation: Operation, taken: Taken, out: int, stream: Stream, now_us: int) -> None:
        """Args: out: `UnderWay.out` as it was before."""
        self._after_part(operation, taken.newest_us, now_us)
        self._stats.duplicates += stream.end - stream.start - taken.fresh
        left = self._under_way.out - out
        self._count_news(taken.fresh, stream.marked, stream.collided, left, now_us)

    def follow(
        self, operation: Operation, stream: Stream, found: NDArray[np.void], done: NDArray[np.void], now_us: int
    ) -> None:
        """Finishes a stream that a kernel has put into the sums. Args: found, done: see kernels.take."""
        count, out = stream.end - stream.start, self._under_way.out
        last = ((stream.seq - operation.first_seq) & SEQ_MASK) + count - 1
        try:
            taken = Taken(*operation.after_taken(last, found, done))
        except (NotFinite, Changed) as problem:
            self.problem = self.problem or self._explained(operation, problem)
            self._stats.duplicates += count
            return
        self._after_stream(operation, taken, out, stream, now_us)

    def take(self, head: Headers, packets: ByteRows, now_us: int) -> None:
        """Takes results of this job, which may be bare. Args: HEADER[n]; uint8[n, size]."""
        complete = (bitmaps(packets, self._member.contribution_bits) == self._fan_in).all(axis=1)
        if not complete.all():
            self._stats.malformed += int((~complete).sum())
            head, packets = head[complete], packets[complete]
        self._take_complete(head, packets, now_us)

    def _take_complete(self, head: Headers, packets: ByteRows, now_us: int, *, is_early: bool = False) -> None:
        """Args: is_early: they came before their operations were begun, and tell nothing of the network as it is now."""
        width = self._member.contribution_bits
        lanes = lanes_of(packets, width) if packets.shape[1] > header_bytes(width) else None
        # Consecutive fragments with one exponent and tag go together, of operations that we have begun, or have not.
        seqs = head["seq"].astype(np.int64)
        streams = head["exponent"].astype(np.int64) << 8 | head["tag"]
        is_first = seqs[1:] == self._operations.next_seq
        breaks = np.flatnonzero((np.diff(seqs) != 1) | (np.diff(streams) != 0) | is_first) + 1
        known = 0
        for start, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(seqs)], strict=True):
            if start == end:
                continue
            out = self._under_way.out
            values = None if lanes is None else lanes[start:end]
            fresh = self._take_stream(int(seqs[start]), end - start, head[start], values, now_us)
            known += fresh
            if fresh and is_early:
                self._count_news(fresh, 0, 0, self._under_way.out - out, now_us)
            elif fresh:
                self._count(head[start:end], fresh, self._under_way.out - out, now_us)
            elif (place := self._operations.place_of(int(seqs[start]))) >= self._operations.next_place:
                known += self._keep(place, packets[start:end])
            if not fresh and self._after_stored(head[start:end], now_us):
                self._probe_timer.on_known(now_us)
        self._stats.duplicates += len(head) - known

    # --- sums ---------------------------------------------------------------------------------------------------------

    def _take_stream(self, seq: int, count: int, head: np.void, lanes: Lanes | None, now_us: int) -> int:
        """Takes sums of consecutive numbers. Args: lanes: None: they are bare. Returns: how many were news."""
        news = start = 0
        while start < count:
            operation, following = self._operations.reach((seq + start) & SEQ_MASK)
            # rows of this operation; one that follows it may have the same tag
            end = min(count, start + following)
            if operation is not None and head["tag"] == operation.tag:
                number = (seq + start - operation.first_seq) & SEQ_MASK
                for piece in operation.plan.pieces(number, end - start):
                    if not operation.is_done():
                        rows = slice(start + piece.skip, start + piece.skip + piece.length)
                        values = None if lanes is None else lanes[rows]
                        news += self._take_part(operation, piece, int(head["exponent"]), values, now_us)
            start = end
        return news

    def _take_part(self, operation: Operation, piece: Piece, exponent: int, lanes: Lanes | None, now_us: int) -> int:
        try:
            if lanes is not None:
                fresh, sent_us = operation.on_results(piece.first, exponent, lanes)
            elif isinstance(operation, ScatteredOperation):
                fresh, sent_us = operation.on_bare(piece.first, piece.length, exponent)
            else:
                return 0
        except (NotFinite, Changed) as problem:
            self.problem = self.problem or self._explained(operation, problem)
            return 0
        self._after_part(operation, sent_us, now_us)
        return fresh

    def _after_part(self, operation: Operation, sent_us: int, now_us: int) -> None:
        if sent_us != NEVER:
            self._round_trip.time_result(now_us - sent_us)
        if operation.is_done():
            self._finish(operation)

    def _explained(self, operation: Operation, problem: NotFinite | Changed) -> Reportable:
        ranks = {self._member.map.rank_of(c) for c in problem.contributions}
        if isinstance(problem, Changed):
            return ValuesChangedError(operation.index, ranks, problem.first_value, problem.end_value - 1)
        start, end = operation.plan.described(problem.chunk)
        return NonFiniteError(operation.index, ranks, start, end - 1)

    def _finish(self, operation: Operation) -> None:
        self._operations.finish(operation)
        self._prober.forget(operation)
        redone = operation.redone
        self._stats.chunks_redone += redone
        if self._log is not nobody:
            window, smoothed_us = self._window, self._round_trip.smoothed_us
            self._log(SumDone(operation.index, redone, int(window.network), int(window.slots), smoothed_us))
        self._events.append(OperationDone(operation.index))
        self._operations.open_waiting()

    # --- what they tell of the network --------------------------------------------------------------------------------

    def _count(self, head: Headers, news: int, left: int, now_us: int) -> None:
        """Args: left: fragments of which is known by these results that they are not in the network any more."""
        flags = head["flags"]
        union = int(np.bitwise_or.reduce(flags))
        marked, collided, at_server = (
            int(np.count_nonzero(flags & flag)) if union & flag else 0 for flag in (_CONGESTION, _COLLISION, _FROM_PS)
        )
        finished = int(np.count_nonzero(flags & _FINISHED_AT_PS == _FINISHED_AT_PS)) if at_server else 0
        stored = at_server - finished
        if finished and self._member.levels:  # else all go by the parameter server, and nothing overtakes them
            last = np.flatnonzero(flags & _FINISHED_AT_PS == _FINISHED_AT_PS)[-1]
            self._time_ps_round_trip(int(head["seq"][last]), now_us)
        self._stats.results_from_server += finished
        self._stats.results_fetched += stored
        self._count_news(news, marked, collided, left, now_us)
        if stored:
            # the parameter server has results that we missed, and probably more of them
            self._after_stored(head, now_us)
            first = self._operations.oldest
            by_order = first is not None and not self._operations.is_complete(first)
            self._fetching.ask(self._operations.active(), now_us, by_order=by_order)

    def _after_stored(self, head: Headers, now_us: int) -> bool:
        """Results that we have asked for tell how long that takes, even those that we have by now.

        Returns: whether there were some.
        """
        stored = np.flatnonzero(head["flags"] & _FINISHED_AT_PS == _FROM_PS)
        if len(stored):
            self._fetching.note_coming(int(head["seq"][stored[-1]]), now_us)
        return bool(len(stored))

    def _count_news(self, news: int, marked: int, collided: int, left: int, now_us: int) -> None:
        self._stats.results += news
        self._stats.congested += marked
        on_fresh_results(
            self._prober.asking, self._probe_timer, self._window, self._round_trip, news, marked, collided, left,
            now_us,
        )  # fmt: skip
        if self._window_log is not None:
            self._window_log.note("mark")

    def _time_ps_round_trip(self, seq: int, now_us: int) -> None:
        """How long a sum took that the parameter server has finished."""
        operation = self._operations.find(seq)
        if operation is None:
            return
        local = operation.plan.local_of((seq - operation.first_seq) & SEQ_MASK)
        for group in operation.groups[:1] if local is not None else ():
            # one that overlapped was not waited for, and its tries tell what it has to ask of the slot
            if group.tries[local] and local not in group.excluded:
                # its sender waited for so long before each time that it sent it again
                again_us = self._round_trip.smoothed_us + self._round_trip.reordering_us(now_us)
                before_us = (int(group.tries[local]) - 1) * again_us
                self._round_trip.time_ps_round_trip(now_us - int(group.sent_us[local]) + before_us, now_us)
