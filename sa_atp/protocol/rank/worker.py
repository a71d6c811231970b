"""A worker's connection as packets and time see it: contributions out, sums in. (protocol section 5)

It looks at what arrives and gives it to whom it concerns: results to receiving.py, answers to probes to recovery.py, and
messages of the parameter server to server_link.py. What a program does with the connection is in collectives.py, what
leaves when in sending.py, and how long is too long in probe_timer.py. It knows neither sockets nor clocks.
"""

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from sa_atp.basics.arrays import ByteRows, Headers
from sa_atp.protocol.job.errors import (
    NarrowPathError,
    OperationTimeoutError,
    TransportError,
    describe_ranks,
    narrow_path,
)
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.job.requests import Requests
from sa_atp.protocol.job.standstill import stood_still_us
from sa_atp.protocol.log.event import Log, nobody
from sa_atp.protocol.log.rank_events import Led, Silence, StoodStill, Streamed
from sa_atp.protocol.packets.control import MalformedError, decode_reply
from sa_atp.protocol.packets.datagrams import Address, Burst, merged
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, number_of, size_of
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.rank.collectives import Collectives
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.rank.compiled.steady import Steady
from sa_atp.protocol.rank.connection import Connection
from sa_atp.protocol.rank.events import Event, WaitingFor, WorkerLimits
from sa_atp.protocol.rank.pace.receiving import Receiver
from sa_atp.protocol.rank.pace.sending import MAX_BURST, Sender
from sa_atp.protocol.rank.recovery.fetching import Fetching
from sa_atp.protocol.rank.recovery.probing import Prober
from sa_atp.protocol.rank.recovery.recovery import Recovery
from sa_atp.protocol.rank.server_link import ServerLink
from sa_atp.protocol.rank.sums.under_way import gather_at_most

TIMEOUTS_BEFORE_FETCH = 2  # unanswered waits before the parameter server is asked for results
MOST_DESCRIBED = 8  # operations of which people are told; the others wait for these


class Worker:
    """Calls and order: see the package's docstring. All times are microseconds of one clock that never goes back."""

    def __init__(
        self,
        membership: Membership,
        now_us: int,
        *,
        first_request: int,
        limits: WorkerLimits | None = None,
        kernels: Kernels | None = None,
        log: Log = nobody,
    ) -> None:
        """Args:
        first_request: 32 random bits, so that replies to an earlier connection match nothing.
        kernels: do the common case of packets; None: the rules do that as well, as they do everything else.
        log: is called with each decision.
        """
        connection = Connection(membership, now_us, limits, kernels, log)
        self._log = log
        self.membership, self.limits, self.stats = membership, connection.limits, connection.stats
        self.round_trip, self.window = connection.round_trip, connection.window
        self._operations = connection.operations
        self._probe_timer, self._events = connection.probe_timer, connection.events
        self.waits = connection.waits
        requests = Requests(first_number=first_request)
        self._prober = Prober(connection)
        self._recovery = Recovery(connection, self._prober)
        self._fetching = Fetching(membership, lambda: requests.answer_us, log)
        self._receiver = Receiver(connection, self._prober, self._fetching)
        self._sender = Sender(connection, self._prober, self._recovery)
        common = connection.common
        self._steady = None
        # what is scattered, and what the parameter server sums, is taken by the rules
        if common is not None and not membership.scatters and membership.levels:
            self._steady = Steady(connection, self._prober, self._receiver, common)
        self.server = ServerLink(connection, self._recovery, self._fetching, requests, now_us)
        """Questions to the parameter server and their answers, and how the connection ends."""
        bare = (self._size_of(Kind.PROBE),) if membership.scatters else ()
        self._result_sizes = (self._size_of(Kind.RESULT), *bare)
        self.collectives = Collectives(connection, self._prober, self._fetching, self._receiver, self._steady)
        """The operations that a program begins over the connection, contributes to, and takes."""

    @property
    def error(self) -> TransportError | None:
        """Why the connection has ended; None: it has not."""
        return self.server.error

    # --- settings -----------------------------------------------------------------------------------------------------

    def limit_operations(self, timeout_us: int) -> None:
        """Sets for how long an operation may make no progress before it fails."""
        self.limits.operation_timeout_us = self._probe_timer.longest_us = timeout_us

    def write_over(self, at_once: int = MAX_BURST) -> None:
        """From now on a burst of contributions is written where the one before was: for callers that keep none of them.

        Args: at_once: how many may be in one.
        """
        self._sender.room = np.empty((at_once, self._size_of(Kind.DATA)), np.uint8)

    def hold_window(self, results_bytes: int) -> None:
        """Has no more fragments on the way than results fit into so many bytes."""
        self.window.hold(results_bytes // self._size_of(Kind.DATA))

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        """Takes datagrams; anything that does not belong here is counted and dropped.

        After a failure nothing that arrives has an effect.
        """
        self._look_at_clock(now_us)
        for burst in merged(bursts):
            if self.server.error is not None:
                return
            if burst.address not in (self.membership.data_address, self.membership.server_address):
                self.stats.foreign += len(burst)
            elif burst.data.shape[1] < HEADER_BYTES:
                self.stats.malformed += len(burst)
            else:
                self._receive(burst, now_us)

    def _receive(self, burst: Burst, now_us: int) -> None:
        if self._receiver.take_common(burst.data, now_us):
            self._after_results(now_us)
            return
        size = burst.data.shape[1]
        head = headers(burst.data)
        is_result = (head["first"] == first_byte(Kind.RESULT)) & (size in self._result_sizes)
        ours = (head["job"] == self.membership.job) & (head["epoch"] == self.membership.epoch)
        results = is_result & ours
        if results.all():
            self._on_results(head, burst.data, now_us)
            return
        if results.any():
            self._on_results(head[results], burst.data[results], now_us)
        self.stats.stale += int((is_result & ~ours).sum())
        for i in np.flatnonzero(~is_result):
            self._on_other(head[i], burst, int(i), bool(ours[i]), now_us)

    def _bits_of(self, burst: Burst, row: int) -> int:
        return number_of(bitmaps(burst.data[row : row + 1], self.membership.contribution_bits)[0])

    def _size_of(self, kind: Kind) -> int:
        return size_of(kind, self.membership.lanes, self.membership.contribution_bits)

    def _on_other(self, head: np.void, burst: Burst, row: int, ours: bool, now_us: int) -> None:
        first = int(head["first"])
        if first == first_byte(Kind.PROBE_REPLY) and burst.data.shape[1] == self._size_of(Kind.PROBE_REPLY):
            if ours:
                self.stats.probe_replies += 1
                operation = self._operations.find(int(head["seq"]))
                lead = (
                    None
                    if operation is None
                    else self._recovery.on_answer(head, self._bits_of(burst, row), operation, now_us)
                )
                if lead is not None:
                    self._events.append(lead)
                    if self._log is not nobody:
                        self._log_lead(lead)
            else:
                self.stats.stale += 1
        elif first == first_byte(Kind.CONTROL) and burst.address == self.membership.server_address:
            if not ours:
                self.stats.stale += 1
                return
            try:
                self.server.on_control(int(head["seq"]), decode_reply(burst.data[row].tobytes()), now_us)
            except MalformedError:
                self.stats.malformed += 1
        else:
            self.stats.malformed += 1

    def _log_lead(self, lead: WaitingFor) -> None:
        ranks = self.membership.map.ranks_of(lead.missing_bits)
        self._log(Led(lead.operation, hex(lead.missing_bits), ranks, lead.progress.pending))

    def _on_results(self, head: Headers, packets: ByteRows, now_us: int) -> None:
        self._receiver.take(head, packets, now_us)
        self._after_results(now_us)

    def _after_results(self, now_us: int) -> None:
        if self._receiver.problem is not None:
            self.server.give_up(self._receiver.problem, now_us)

    def path_narrowed(self, to: Address, needed: int, mtu: int, now_us: int) -> None:
        """Our packets do not leave for there any more.

        Args: needed, mtu: bytes of an IP packet, and what the way carries.
        """
        where = "{}:{}".format(*to)
        text = narrow_path(describe_ranks([self.membership.rank]), needed, where, mtu)
        self.server.give_up(NarrowPathError(text, needed=needed, mtu=mtu, to=where), now_us)

    @property
    def answer_us(self) -> int:
        """How long answers of the parameter server take to come; 0: not known."""
        return self.server.requests.answer_us

    # --- streams that flow --------------------------------------------------------------------------------------------

    def steady(self, now_us: int) -> Steady | None:
        """Lends what kernels need to go on with a stream, if one flows. Until `resume` nothing else may be called."""
        due_us = self.server.next_timer_us()
        if (
            self._steady is None or self.server.error is not None or self.server.giving_up is not None
            or self.collectives.to_probe or self._events or self._fetching.packets or due_us <= now_us
            or not self._steady.enter(due_us, self.server.said_place, self.server.tell_after, now_us)
        ):  # fmt: skip
            return None
        return self._steady

    def resume(self, now_us: int) -> None:
        """Takes back what `steady` has lent. Args: when the last of what kernels took came."""
        assert self._steady is not None
        stats, before = self.stats, (self.stats.fragments_sent, self.stats.results, self.stats.probe_replies)
        self._steady.leave(now_us)
        sent, results, answers = before
        self._log(Streamed(stats.fragments_sent - sent, stats.results - results, stats.probe_replies - answers))
        self._after_results(now_us)

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_timer_us(self) -> int | None:
        """When `handle_timer` wants to be called; None: never."""
        if self.server.error is not None:
            return None
        due_us = self.server.next_timer_us()
        if self._operations.oldest is None:
            return due_us
        fetch_us = self._fetch_us
        due_us = due_us if fetch_us is None else min(due_us, fetch_us)
        return min(due_us, self._probe_timer.until_us(self._awaited))

    @property
    def _fetch_us(self) -> int | None:
        """The time to go on asking for a sum that others have, and of which we have asked for results."""
        first = self._operations.oldest
        if first is None or not (self._operations.is_complete(first) or first.held_bits == self.membership.fan_in):
            return None
        return self._fetching.due_us(first)

    def _look_at_clock(self, now_us: int) -> None:
        """Before anything follows from the time: whether we have not run, which counts for nobody."""
        stood_us = stood_still_us(self.server.alive_at_us, now_us)
        if stood_us:
            self._log(StoodStill(stood_us))
            self.server.on_standstill(stood_us, now_us)
            self._probe_timer.on_standstill(stood_us, now_us)

    def handle_timer(self, now_us: int) -> None:
        self._look_at_clock(now_us)
        if self.server.error is None:
            self.server.handle_timer(now_us)
        if self.server.error is None:
            self._look_after_operations(now_us)

    def _look_after_operations(self, now_us: int) -> None:
        """Asks what became of fragments when nothing has come for long; gives up in the end."""
        active = self._operations.active()
        if not active:
            self._probe_timer.on_progress(now_us)
            return
        stuck_us = self._probe_timer.stuck_us(now_us)
        if stuck_us is not None:
            # whose fault it is the parameter server knows: what a slot holds may be a late copy of ours
            first = self._operations.oldest
            assert first is not None
            switch = "{}:{}".format(*self.membership.data_address) if self._probe_timer.is_refused(now_us) else None
            self.server.give_up(OperationTimeoutError(first.index, stuck_us / 1e6, None, switch=switch), now_us)
        fetch_us = self._fetch_us
        if fetch_us is not None and now_us >= fetch_us:
            self._fetching.ask(active, now_us)
        if self._probe_timer.is_over(self._awaited, now_us):
            self._log(Silence(self._probe_timer.timeouts, self._awaited))
            self._prober.ask_around(active, now_us)
            others_go_on = self._awaited and not self._operations.under_way.in_flight
            if self._probe_timer.timeouts >= TIMEOUTS_BEFORE_FETCH or others_go_on:
                # A slot can hold a fragment that is complete elsewhere, claimed anew by a late copy: it would never end.
                self._fetching.ask(active, now_us)

    @property
    def _awaited(self) -> int:
        """Fragments that somebody should have answered: ours, or the rest of a sum that others have begun to complete
        without us. No answer shows what of that is lost.
        """
        first, in_flight = self._operations.oldest, self._operations.under_way.in_flight
        return in_flight or (first.missing if first is not None and first.missing_share < 1 else 0)

    def doubts(self, now_us: int) -> bool:
        """Whether to tell us of hosts that refuse what is sent there: parameter server or switch do not answer."""
        is_silent = self._probe_timer.timeouts >= TIMEOUTS_BEFORE_FETCH
        return self.server.error is None and (is_silent or self.server.is_doubted(now_us))

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """The hosts of these addresses say that no process has the port any more. (section 7.4)"""
        self._look_at_clock(now_us)
        member = self.membership
        if member.server_address in addresses:
            self.server.port_closed(now_us)
        if member.data_address in addresses and member.data_address != member.server_address:
            self._probe_timer.on_refused(now_us)

    def may_gather(self) -> int:
        """How many datagrams may wait for us."""
        return 0 if self._prober.waits_for_answers else gather_at_most(self._operations.under_way)

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> ByteRows | None:
        """The array into which bursts of contributions are written, see `write_over`."""
        return self._sender.room

    def _open(self, now_us: int) -> None:
        """Opens operations whose turn has come, and takes results of them that have come already."""
        if self._operations.queue:
            self.collectives.open_waiting(now_us)
        ahead_to = self._receiver.take_early(now_us)
        if ahead_to is not None:
            self._fetching.ask(self._operations.active(), now_us, before=ahead_to)
            self._after_results(now_us)

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        """Datagrams to send now. Call again until it returns nothing: each call gives a bounded amount.

        Args: budget_bytes: of contributions that may be sent now; None: as many as the windows allow. Control messages are
            always given.
        """
        if self.server.error is None:
            self._open(now_us)
        has_ended = self.server.error is not None
        # requests are few and small, and someone waits for the answer: they go first
        out = [Burst.of(self.membership.server_address, packet) for packet in self.server.due(now_us)]
        if not has_ended:
            burst = self._sender.contributions(budget_bytes, now_us)
            if burst is not None:
                self._probe_timer.on_sent(now_us)
                out.append(burst)
        # what asks after fragments leaves behind them
        if self.collectives.to_probe:
            self.collectives.probe_now(now_us)
        for packets in (self._prober.packets, self._fetching.packets):
            if packets:
                out.extend(packets)
                packets.clear()
        return out

    @property
    def has_more(self) -> bool:
        """Whether there may be more to send at once than `transmit` has just given."""
        return self._sender.has_more

    def describe(self) -> str:
        """Describes the sums, slots and questions that wait, in lines of text for the reader of an error or a log."""
        oldest, waiting = self._operations.oldest_seq(), self._operations.waiting()
        active = len(self._operations.active())
        head = (
            f"rank {self.membership.rank}: window {self.window.limit}, round trip {self.round_trip.smoothed_us} us, "
            f"{self._probe_timer.timeouts} probe time-outs, oldest {oldest}, {active} operations open, {waiting} queued"
        )
        counted = ", ".join(f"{name} {value}" for name, value in self.stats.as_dict().items() if value)
        first = [operation.describe() for operation in itertools.islice(self._operations.active(), MOST_DESCRIBED)]
        return "\n".join([head, *first, f"  {counted}"])

    # --- events -------------------------------------------------------------------------------------------------------

    def next_event(self) -> Event | None:
        return self._events.popleft() if self._events else None
