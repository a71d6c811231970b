"""The parameter server's connection: finishes what switches could not, keeps results, answers questions. (section 7)

It serves any number of jobs; how ranks come to be in one is in admission.py. What it cannot do itself, telling switches
about a job, it asks for by an event, and goes on when it is told that this is done.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from sa_atp.basics.arrays import Bitmaps, ByteRows, Headers, Octets
from sa_atp.protocol.job import failures
from sa_atp.protocol.job.errors import describe_ranks, narrow_path
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.packets.control import (
    MAX_BYTES,
    Alive,
    AskStats,
    Describe,
    Failure,
    Fetch,
    JobStats,
    Join,
    Leave,
    Left,
    MalformedError,
    Progress,
    Refused,
    Reply,
    ReportChanged,
    ReportNarrow,
    ReportNotFinite,
    ReportTimeout,
    Request,
    Seated,
    Taken,
    TakeSeat,
    decode_request,
    encode,
    plain,
)
from sa_atp.protocol.packets.datagrams import Address, Burst, merged
from sa_atp.protocol.packets.fitting import fitted
from sa_atp.protocol.packets.header import bitmaps, first_byte, headers, lanes_of, number_of, size_of
from sa_atp.protocol.packets.help_messages import Claim, Idle, Offer
from sa_atp.protocol.packets.lateness_messages import AskLateness
from sa_atp.protocol.packets.message_fields import HelpMode
from sa_atp.protocol.packets.spec import HEADER_BYTES, Flag, Kind
from sa_atp.protocol.rank.compiled.common_case import Kernels, ResultStreams
from sa_atp.protocol.rank.compiled.kernels import ROW_COLLIDED, ROW_END, ROW_EXPONENT, ROW_SEQ, ROW_START, ROW_TAG
from sa_atp.protocol.server import job_status, sums, work_requests
from sa_atp.protocol.server.admission import Admission
from sa_atp.protocol.server.job import REPLIES_KEPT, Job, Member, State
from sa_atp.protocol.server.lookout import Lookout
from sa_atp.protocol.server.outbox import Outbox
from sa_atp.protocol.server.registry import OVER
from sa_atp.protocol.server.server_events import Admit, Retire, ServerEvent, ServerSettings
from sa_atp.protocol.server.serving import Serving

GONE_WITH_SUMS = "not heard of since asking to leave, and others need the sums"
UNASKED_US = 1_000_000  # after a question more are expected for so long
MAX_GATHER = 1024  # copies of results that may wait until they are looked at
KNOWN_KINDS = frozenset({first_byte(k) for k in (Kind.DATA, Kind.RESULT, Kind.PROBE)})


class ParameterServer:
    def __init__(
        self, settings: ServerSettings, random_bits: Callable[[int], int], kernels: Kernels | None = None
    ) -> None:
        """Args:
        random_bits: like random.getrandbits; chooses where epochs and sequence numbers start.
        kernels: do the common case of packets; None: the rules do that as well, as they do everything else.
        """
        self.settings = settings
        self._kernels = kernels
        self._streams: dict[int, ResultStreams] = {}
        self._events: deque[ServerEvent] = deque()
        self._admission = Admission(settings, random_bits, self._events, self._fail)
        self.jobs = self._admission.jobs
        self.own_ip: str | None = None  # where the owner has bound our socket; decides who is on our host
        self.malformed = 0
        self.foreign = 0
        self._out = Outbox()
        self._serving = Serving(self._out, settings.switch_address, aggregates=settings.aggregates)
        self._lookout = Lookout(settings, self.jobs, self._out, self._give_up)
        self._urgent = False  # whether something other than copies of results and signs of life has come lately
        self._asked_us: int | None = None  # when somebody last wanted something of us, beside a sign of our life

    # --- the control plane --------------------------------------------------------------------------------------------

    def admitted(self, event: Admit, now_us: int, leaves: Iterable[Iterable[int]] | None = None) -> None:
        """The switches know the job: its workers may begin. Args: leaves: the ranks below each; None: not known."""
        self._admission.admitted(event, now_us, leaves)
        self._lookout.begin(now_us)

    def refused(self, event: Admit, reason: str) -> None:
        """The job could not be installed."""
        self._admission.refused(event, reason)

    def next_event(self) -> ServerEvent | None:
        return self._events.popleft() if self._events else None

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        self._lookout.look_at_clock(now_us)
        for burst in merged(bursts):
            if burst.data.shape[1] < HEADER_BYTES:
                self.malformed += len(burst)
            elif not self._keep_common(burst):
                self._receive(burst, now_us)

    def _keep_common(self, burst: Burst) -> bool:
        """Keeps copies of results, if there is nothing else among them. Returns: whether that is so."""
        job = None if self._kernels is None else self.jobs.get(int(headers(burst.data[:1])["job"][0]))
        if (
            self._kernels is None or job is None or job.state is not State.RUNNING or job.recalled
            or (burst.address != self.settings.switch_address and job.member_at(burst.address) is None)
        ):  # fmt: skip
            return False
        known = self._streams.get(job.number)
        if known is None or known.epoch != job.epoch:
            known = self._streams[job.number] = ResultStreams(
                self._kernels, job=job.number, epoch=job.epoch, fan_in=job.fan_in, lanes=job.lanes,
                contribution_bits=job.contribution_bits,
            )  # fmt: skip
        streams = known.find(burst.data)
        if streams is None:
            return False
        lanes = lanes_of(burst.data, job.contribution_bits)
        for row in streams.tolist():
            start, end = row[ROW_START], row[ROW_END]
            if not row[ROW_COLLIDED] and job.sums.keep_stream(
                row[ROW_SEQ], row[ROW_EXPONENT], row[ROW_TAG], lanes[start:end]
            ):
                job.stats.results_kept += end - start
            else:
                packets = burst.data[start:end]
                self._on_packets(Kind.RESULT, job.number, headers(packets), packets, burst.address)
        return True

    def _receive(self, burst: Burst, now_us: int) -> None:
        head = headers(burst.data)
        for first in np.unique(head["first"]):
            of_kind = np.flatnonzero(head["first"] == first)
            self._urgent |= first not in (first_byte(Kind.RESULT), first_byte(Kind.CONTROL))
            if first == first_byte(Kind.CONTROL):
                for row in of_kind:
                    self._on_control(head[row], burst.data[row].tobytes(), burst.address, now_us)
                continue
            kind = Kind(int(first) & 15) if int(first) in KNOWN_KINDS else None
            expected = None if kind is None else size_of(kind, self.settings.lanes, self.settings.contribution_bits)
            if kind is None or burst.data.shape[1] != expected:
                self.malformed += len(of_kind)
                continue
            for number in np.unique(head["job"][of_kind]):
                rows = of_kind[head["job"][of_kind] == number]
                self._on_packets(kind, int(number), head[rows], burst.data[rows], burst.address)
            if kind is not Kind.RESULT:
                self._asked_us = now_us

    def _on_packets(self, kind: Kind, number: int, head: Headers, packets: ByteRows, address: Address) -> None:
        job = self.jobs.get(number)
        if job is None or job.state is not State.RUNNING:
            self.foreign += len(head)
            return
        if address != self.settings.switch_address and job.member_at(address) is None:
            job.stats.foreign += len(head)
            return
        current = head["epoch"] == job.epoch
        if not current.all():
            job.stats.stale += int((~current).sum())
            head, packets = head[current], packets[current]
        if kind is Kind.PROBE:
            for row in head:
                self._serving.answer_probe(job, row)
            return
        fan_in = job.sums.fan_in
        bits = bitmaps(packets, job.contribution_bits).astype(np.uint64)
        if kind is Kind.RESULT:
            sound = (bits == fan_in).all(axis=1)
        else:
            sound = bits.any(axis=1) & ~(bits & ~fan_in).any(axis=1)
        if not sound.all():
            job.stats.malformed += int((~sound).sum())
            head, bits, packets = head[sound], bits[sound], packets[sound]
        if not len(head):
            return
        if kind is Kind.RESULT:
            outcome = job.sums.keep(head, lanes_of(packets, job.contribution_bits))
            news = outcome == sums.COMPLETED
            job.stats.results_kept += int(news.sum())
            job.stats.duplicates += int(np.isin(outcome, (sums.KNOWN, sums.PASSED)).sum())
            if job.recalled:
                self._serving.recalled_came(job, head["seq"][news])
        else:
            outcome = job.sums.add(head, bits, lanes_of(packets, job.contribution_bits))
            self._after_adding(job, head, bits, outcome)
        job.stats.beyond += int((outcome == sums.BEYOND).sum())

    def _after_adding(self, job: Job, head: Headers, bits: Bitmaps, outcome: Octets) -> None:
        stats = job.stats
        completed = outcome == sums.COMPLETED
        stats.added += int(((outcome == sums.ADDED) | completed).sum())
        stats.duplicates += int(np.isin(outcome, (sums.DUPLICATE, sums.KNOWN, sums.PASSED)).sum())
        stats.overlaps += int((outcome == sums.OVERLAP).sum())
        if (outcome == sums.MISMATCH).any():
            found = int(np.flatnonzero(outcome == sums.MISMATCH)[0])
            ranks = job.whose([job.map.lowest_rank(number_of(bits[found]))])
            self._fail(
                job, "mismatch", ranks,
                f"{describe_ranks(ranks)} sums something else than the others at fragment {int(head['seq'][found])}: "
                "every rank must run the same operations, with the same sizes and keys, in the same order",
            )  # fmt: skip
            return
        if completed.any():
            stats.finished_here += int(completed.sum())
            self._serving.fan_out(job, job.sums.complete(head["seq"][completed]))
        known = (outcome == sums.KNOWN) & (head["flags"] & Flag.ON_BEHALF == 0)
        if known.any() and not job.seats:  # whose bits do not say who has sent them: it asks, as for any lost result
            # Its sender has not seen the result, or would not send again.
            senders = np.array([job.map.lowest_rank(number_of(b)) for b in bits[known]])
            for rank in np.unique(senders):
                self._serving.serve(job, int(rank), head["seq"][known][senders == rank])

    # --- control messages ---------------------------------------------------------------------------------------------

    def _on_control(self, head: np.void, packet: bytes, address: Address, now_us: int) -> None:
        try:
            request = decode_request(packet)
            if not isinstance(request, Alive):  # behind which nothing else is likely to come
                self._asked_us = now_us
                self._urgent = True
            match request:
                case Join():
                    joined = self._admission.join(request, address, now_us, room=len(packet))
                    sent = self._reply(address, head, joined, len(packet))
                    self.malformed += not sent  # no question of this protocol is so short
                    self._admission.answered(request, address, len(packet) - sent)
                    self._lookout.begin(now_us)
                case Describe():
                    known = job_status.may_ask(self.jobs, self.own_ip, address)
                    answer = job_status.answer(
                        self.jobs, request, len(packet), now_us, known=known, switch=self._switch
                    )
                    sent = self._reply(address, head, answer, len(packet))
                    self.foreign += not known
                    self.malformed += known and not sent
                case _:
                    self._on_request(head, request, address, now_us, room=len(packet))
        except MalformedError as problem:
            self.malformed += 1
            if int(head["seq"]):
                self._reply(address, head, Refused(reason=plain(str(problem))), len(packet))

    def _on_request(self, head: np.void, request: Request, address: Address, now_us: int, *, room: int) -> None:
        """Args: room: bytes of the question. Raises: MalformedError."""
        job = self.jobs.get(int(head["job"]))
        member = None if job is None else job.member_at(address)
        if job is None or member is None or int(head["epoch"]) != job.epoch:
            self.foreign += 1
            if int(head["seq"]):
                known, was_member = (None, False) if job is None else job.failure_of(int(head["epoch"]), address)
                self._reply(address, head, known or Failure(reason="restarted"), None if was_member else room)
            return
        self._on_message(job, member, head, request, now_us)

    def _on_message(self, job: Job, member: Member, head: np.void, request: Request, now_us: int) -> None:
        member.heard_us = now_us
        member.has_spoken = True
        if job.state is State.FAILED and job.failure is not None:
            self._reply(member.address, head, job.failure, None)
            return
        number = int(head["seq"])
        if number and number in member.replies:
            self._out.append(Burst.of(member.address, member.replies[number]))
            return
        reply = self._handle(job, member, number, request, now_us)
        if number and reply is not None:
            packet = encode(reply, request=number, job=job.number, epoch=job.epoch, reply=True)
            member.replies[number] = packet
            if len(member.replies) > REPLIES_KEPT:
                del member.replies[next(iter(member.replies))]
            self._out.append(Burst.of(member.address, packet))

    def _handle(self, job: Job, member: Member, number: int, request: Request, now_us: int) -> Reply | None:
        """Raises: MalformedError."""
        match request:
            case Alive():
                return self._on_alive(job, member, request, now_us)
            case Leave():
                member.left_at, member.leaving = request.oldest, number
                job.progress(member.rank, request.oldest)
                if job.state is State.RUNNING and all(m.left_at is not None for m in job.members.values()):
                    job.end(State.ENDED)
                    self._retire(job)
                self._let_go(job)
                return None
            case ReportNotFinite() | ReportChanged():
                self._fail_for(job, failures.verdict(replace(request, ranks=job.whose(request.ranks)), ()))
                return None  # all have been told
            case ReportNarrow(needed=needed, mtu=mtu, to=to):
                detail = narrow_path(describe_ranks([member.rank]), needed, plain(to), mtu)
                self._fail(job, "narrow", (member.rank,), detail)
                return None
            case ReportTimeout():
                gone = [m.rank for m in job.members.values() if m.leaving and self._lookout.is_silent(m, now_us)]
                if gone and request.switch is None:
                    self._fail(job, "lost", gone, GONE_WITH_SUMS)
                    return None
                self._fail_for(job, failures.verdict(request, job.owing(member), self._unheard(job, member)))
                return None
            case Fetch():
                if job.state is State.RUNNING:  # else it was overtaken, and nobody asks for results any more
                    self._serving.fetch(job, member.rank, request)
                return None
            case AskStats():
                helped = {"helped_micro_batches": job.ledger.helped_micro_batches, "backups": job.ledger.backups}
                return JobStats(**asdict(job.stats), **helped)
            case AskLateness():
                return fitted(job.lateness.told(), MAX_BYTES)
            case Claim() | Offer() | Idle():
                reply = work_requests.answer(job, member, number, request, now_us, levels=self.settings.levels)
                self._out.extend(work_requests.revocations(job))
                return reply
            case TakeSeat(step=step):
                if not job.seats:
                    raise MalformedError("the job has no seats")
                seat = job.seating.take(step, member.rank)
                return Taken() if seat is None else Seated(seat=seat)
            case _:
                raise MalformedError("this asks nothing of a job")

    def _on_alive(self, job: Job, member: Member, sign: Alive, now_us: int) -> Reply | None:
        if (sign.given | (sign.held or 0)) & ~job.fan_in:
            raise MalformedError("given or held has contributions that the job does not have")
        job_status.note(member, sign, now_us)
        job.lateness.take(member.rank, sign.waits)
        disagreement = job.disagreement(member, sign)
        if disagreement is not None:
            self._fail(job, "mismatch", *disagreement)
            return None
        if sign.oldest != member.oldest or not sign.waiting:
            member.waits_us = None
        job.progress(member.rank, sign.oldest)
        for seq in [s for s in job.recalled if serial_distance(s, job.sums.oldest_seq) > 0]:
            del job.recalled[seq]
        departed = job.behind_the_departed(sign.oldest) if sign.waiting else []
        if departed:
            self._fail(job, "lost", departed, "left the job while others still need its contributions")
            return None
        gone = job.waits_for_the_gone(member, now_us, self.settings.dead_after_us) if sign.waiting else []
        if gone:
            self._fail(job, "lost", gone, GONE_WITH_SUMS)
            return None
        self._let_go(job)
        return Progress(passed=job.sums.oldest_seq, ahead=job.ahead)

    def _let_go(self, job: Job) -> None:
        """Answers those who have asked to leave, as soon as nobody needs their sums."""
        for member in job.members.values():
            if member.leaving and job.may_go(member):
                packet = encode(Left(), request=member.leaving, job=job.number, epoch=job.epoch, reply=True)
                self._out.append(Burst.of(member.address, packet))
                member.leaving = 0

    def _reply(self, address: Address, head: np.void, reply: Reply, room: int | None) -> int:
        """Answers a request, in the name of the job and the epoch that it came from.

        Args: room: bytes of the request, which the answer to one who is no member must not exceed; None: it is a member.
        Returns: how many bytes the answer has; 0: not even the least of it fits.
        """
        answer = reply if room is None else fitted(reply, room)
        if answer is None:
            return 0
        packet = encode(answer, request=int(head["seq"]), job=int(head["job"]), epoch=int(head["epoch"]), reply=True)
        self._out.append(Burst.of(address, packet))
        return len(packet)

    # --- failures and time ----------------------------------------------------------------------------------------------

    def _fail(self, job: Job, reason: str, ranks: Sequence[int], detail: str) -> None:
        self._fail_for(job, Failure(reason=reason, ranks=list(ranks), detail=detail))

    def _fail_for(self, job: Job, failure: Failure) -> None:
        """Ends a job's epoch; every member is told at once, and again whenever it says that it is alive.

        Who has not spoken yet asks to join, and is told then: that it is where it seems to be is not known.
        """
        if job.state in OVER:
            return
        job.fail(failure)
        packet = encode(failure, request=0, job=job.number, epoch=job.epoch, reply=True)
        self._out.extend(Burst.of(member.address, packet) for member in job.members.values() if member.has_spoken)
        self._retire(job)

    def _unheard(self, job: Job, waiting: Member) -> str | None:
        """The switch's address, if nobody has had an answer about what a rank waits for.

        Returns: None: somebody has, or the switch is on the way to us.
        """
        is_heard = any(
            m.oldest not in (None, waiting.oldest) or (m.waiting and m.held is not None) for m in job.members.values()
        )
        return None if is_heard else self._switch or None

    @property
    def _switch(self) -> str:
        """Where contributions go, if that is not here."""
        return "{}:{}".format(*self.settings.switch_address) if self.settings.switch_address else ""

    def path_narrowed(self, to: Address, needed: int, mtu: int) -> None:
        """Results do not leave for there any more. Args: needed, mtu: bytes of an IP packet, and what the way carries."""
        detail = narrow_path("the parameter server", needed, "{}:{}".format(*to), mtu)
        for job in self.jobs.values():
            member = job.member_at(to)
            if job.state is State.RUNNING and (member is not None or to == self.settings.switch_address):
                self._fail(job, "narrow", () if member is None else (member.rank,), detail)

    def _retire(self, job: Job) -> None:
        """An epoch is over: for switches, and for results that have not left yet."""
        self._out.forget(job.number, job.epoch)
        self._events.append(Retire(job.number, job.epoch))

    def _give_up(self, job: Job, ranks: Sequence[int], why: str) -> None:
        """Goes on without ranks that are gone: with the others, as far as the job does not run yet."""
        if job.state is State.RUNNING:
            self._fail(job, "lost", ranks, why)
        else:
            self._admission.drop(job, ranks)

    def next_timer_us(self) -> int | None:
        return self._lookout.next_timer_us()

    def handle_timer(self, now_us: int) -> None:
        """Looks for workers that have fallen silent."""
        self._lookout.handle_timer(now_us)

    def doubts(self, now_us: int) -> bool:
        """Whether to tell us of hosts that refuse what is sent there."""
        return self._lookout.doubts and self.next_timer_us() is not None

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """Nobody has these ports any more, their hosts say. (section 7.4)"""
        self._lookout.ports_closed(addresses, now_us)

    @property
    def has_more(self) -> bool:
        """Whether results wait that the budget had no room for."""
        return self._out.has_results

    def may_gather(self) -> int:
        """How many datagrams may wait for us: copies of results as many as come, where nobody has asked for anything."""
        urgent, self._urgent = self._urgent, False
        return 0 if urgent else MAX_GATHER

    def is_unasked(self, now_us: int) -> bool:
        """Whether nobody has wanted anything for a while, and nobody is likely to wait for an answer soon: nothing is lost,
        and no ranks help one another.
        """
        asks = any(
            job.help_mode is not HelpMode.NONE or job.seats for job in self.jobs.values() if job.state not in OVER
        )
        return not asks and (self._asked_us is None or now_us - self._asked_us > UNASKED_US)

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        """Datagrams to send now. Args: budget_bytes: of results; messages do not wait for room."""
        return self._out.take(budget_bytes)
