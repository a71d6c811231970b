"""The parameter server's connection: finishes sums that switches could not, keeps results, answers. (section 7)

It serves any number of jobs; `admission` admits their ranks. It asks the control plane by an event to configure
switches for a job, and goes on when `on_admitted` or `on_refused` is called.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from sa_atp.protocol.help.plan import PLAIN
from sa_atp.protocol.help.plan import Kernels as PlanKernels
from sa_atp.protocol.job import failures
from sa_atp.protocol.job.errors import describe_ranks, narrow_path
from sa_atp.protocol.job.serial import serial_distance
from sa_atp.protocol.log.event import Log, of_nobody
from sa_atp.protocol.log.server_events import (
    Fetched,
    JobEnded,
    JobFailed,
    LeaveAsked,
    LetGo,
    Removed,
    Seat,
    SwitchRestarted,
)
from sa_atp.protocol.packets.control import (
    MAX_BYTES,
    Alive,
    Failure,
    Fetch,
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
    Taken,
    TakeSeat,
    decode_request,
    encode,
    plain,
)
from sa_atp.protocol.packets.datagrams import Address, Burst, merged
from sa_atp.protocol.packets.fitting import fitted
from sa_atp.protocol.packets.header import first_byte, headers, size_of
from sa_atp.protocol.packets.help_messages import WorkReport
from sa_atp.protocol.packets.lateness_messages import AskLateness
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind
from sa_atp.protocol.packets.status_messages import AskStats, Describe, JobStats
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.server import job_status, work_requests
from sa_atp.protocol.server.admission import Admission
from sa_atp.protocol.server.data_packets import DataPackets
from sa_atp.protocol.server.job import REPLIES_KEPT, Job, Member, State
from sa_atp.protocol.server.lookout import Lookout
from sa_atp.protocol.server.outbox import Outbox
from sa_atp.protocol.server.registry import OVER
from sa_atp.protocol.server.server_events import Admit, HostLeaf, Retire, ServerEvent, ServerSettings
from sa_atp.protocol.server.serving import Serving

GONE_WITH_SUMS = "not heard of since asking to leave, and others need the sums"
UNASKED_US = 1_000_000  # for so long after a request more are expected
MAX_GATHER = 1024  # copies of results that may wait unread in the socket
KNOWN_KINDS = frozenset({first_byte(k) for k in (Kind.DATA, Kind.RESULT, Kind.PROBE)})


class ParameterServer:
    def __init__(
        self,
        settings: ServerSettings,
        random_bits: Callable[[int], int],
        kernels: Kernels | None = None,
        log_of: Callable[[str], Log] = of_nobody,
        plan_kernels: PlanKernels = PLAIN,
    ) -> None:
        """Args:
        random_bits: like random.getrandbits; chooses where epochs and sequence numbers start.
        kernels: compiled code for the common case; None: the rules in Python handle every packet.
        log_of: returns, for a job's name, the log that is called with each decision about the job.
        plan_kernels: of the jobs' ledgers, compiled or not.
        """
        self.settings = settings
        self._events: deque[ServerEvent] = deque()
        self._admission = Admission(settings, random_bits, self._events, self._fail, log_of, plan_kernels)
        self.jobs = self._admission.jobs
        self.is_here: Callable[[str], bool] = lambda ip: False
        """Tells the addresses of the server's host, on which tools may ask for its jobs."""
        self.malformed = 0
        self._foreign = 0
        self._out = Outbox()
        self._serving = Serving(self._out, settings.switch_address, aggregates=settings.aggregates)
        self._data = DataPackets(settings, self.jobs, self._serving, kernels, self._fail)
        self._lookout = Lookout(settings, self.jobs, self._out, self._give_up)
        self._urgent = False  # whether anything but copies of results and signs of life has come since `may_gather`
        self._asked_us: int | None = None  # when the newest request other than a sign of life came

    @property
    def foreign(self) -> int:
        """Datagrams and requests of senders that are members of no job, or of an epoch that is over."""
        return self._foreign + self._data.foreign

    @property
    def has_bare_results(self) -> bool:
        """Whether the switches' programs can leave the values out of results. (section 5.9)"""
        return self._admission.has_bare_results

    @has_bare_results.setter
    def has_bare_results(self, has: bool) -> None:
        self._admission.has_bare_results = has

    # --- the control plane --------------------------------------------------------------------------------------------

    def on_admitted(self, event: Admit, now_us: int, leaves: Iterable[Iterable[int]] | None = None) -> None:
        """Takes the control plane's word that the switches know a job: its workers may begin.

        Args: leaves: the ranks below each leaf; None: not known.
        """
        self._admission.on_admitted(event, now_us, leaves)
        self._lookout.begin(now_us)

    def on_refused(self, event: Admit, reason: str, leaf: HostLeaf | None = None) -> None:
        """Takes the control plane's word that the job could not be installed, and why.

        Args: leaf: the one that could not take it, which will not be used again; None: another switch could not.
        """
        self._admission.on_refused(event, reason, leaf)

    def switch_restarted(self, what: str) -> None:
        """Logs that a switch had to be set up again. Args: what: description of what was found."""
        for job in self.jobs.values():
            if job.state not in OVER:
                job.log(SwitchRestarted(what))

    def next_event(self) -> ServerEvent | None:
        return self._events.popleft() if self._events else None

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        self._lookout.look_at_clock(now_us)
        for burst in merged(bursts):
            if burst.data.shape[1] < HEADER_BYTES:
                self.malformed += len(burst)
            elif not self._data.keep_common(burst):
                self._receive(burst, now_us)

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
                self._data.take(kind, int(number), head[rows], burst.data[rows], burst.address)
            if kind is not Kind.RESULT:
                self._asked_us = now_us

    # --- control messages ---------------------------------------------------------------------------------------------

    def _on_control(self, head: np.void, packet: bytes, address: Address, now_us: int) -> None:
        try:
            request = decode_request(packet)
            if not isinstance(request, Alive):  # signs of life are seldom followed by more requests
                self._asked_us = now_us
                self._urgent = True
            match request:
                case Join():
                    joined = self._admission.join(request, address, now_us, room=len(packet))
                    sent = self._reply(address, head, joined, len(packet))
                    self.malformed += not sent  # a valid Join is long enough for some answer
                    self._admission.note_answer(request, address, len(packet) - sent)
                    self._lookout.begin(now_us)
                case Describe():
                    known = job_status.may_ask(self.jobs, self.is_here, address)
                    answer = job_status.answer(
                        self.jobs, request, len(packet), now_us, known=known, switch=self._switch
                    )
                    sent = self._reply(address, head, answer, len(packet))
                    self._foreign += not known
                    self.malformed += known and not sent
                case _:
                    self._on_request(head, request, address, now_us, room=len(packet))
        except MalformedError as problem:
            self.malformed += 1
            if int(head["seq"]):
                self._reply(address, head, Refused(reason=plain(str(problem))), len(packet))

    def _on_request(self, head: np.void, request: Request, address: Address, now_us: int, *, room: int) -> None:
        """Handles a request of a job's member. Args: room: bytes of the request. Raises: MalformedError."""
        job = self.jobs.get(int(head["job"]))
        member = None if job is None else job.member_at(address)
        # a server that was restarted may have begun at the number that the epoch had before: one time in 256
        is_earlier = job is not None and isinstance(request, Alive) and not job.sums.reaches(request.oldest)
        if job is None or member is None or int(head["epoch"]) != job.epoch or is_earlier:
            self._foreign += 1
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
                job.log(LeaveAsked(member.rank, request.oldest))
                job.note_progress(member.rank, request.oldest)
                if job.state is State.RUNNING and all(m.left_at is not None for m in job.members.values()):
                    job.end(State.ENDED)
                    job.log(JobEnded(job.epoch))
                    self._retire(job)
                self._answer_leavers(job)
                return None
            case ReportNotFinite() | ReportChanged():
                self._fail_for(job, failures.verdict(replace(request, ranks=job.ranks_behind(request.ranks)), ()))
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
                job.log(Fetched(member.rank, request.first, request.count))
                if job.state is State.RUNNING:  # else the request was overtaken by the end of the job
                    self._serving.fetch(job, member.rank, request)
                return None
            case AskStats():
                helped = {
                    "helped_micro_batches": job.ledger.lots.helped_micro_batches,
                    "backups": job.ledger.lots.backups,
                }
                return JobStats(**asdict(job.stats), **helped)
            case AskLateness():
                return fitted(job.lateness.told(), MAX_BYTES)
            case WorkReport():
                reply = work_requests.answer(job, member, number, request, now_us, levels=job.levels)
                self._out.extend(work_requests.unasked(job))
                return reply
            case TakeSeat(step=step):
                if not job.seats:
                    raise MalformedError("the job has no seats")
                seated = job.seating.take(step, member.rank, now_us)
                job.log(Seat(step, member.rank, *(() if seated is None else (seated.seat, seated.empty or None))))
                return seated or Taken()
            case _:
                raise MalformedError("not a request to a job")

    def _on_alive(self, job: Job, member: Member, sign: Alive, now_us: int) -> Reply | None:
        if (sign.given | (sign.held or 0)) & ~job.fan_in:
            raise MalformedError("given or held has contributions that the job does not have")
        job_status.note_sign_of_life(member, sign, now_us)
        job.lateness.take(member.rank, sign.waits, now_us)
        disagreement = job.check_position(member, sign)
        if disagreement is not None:
            self._fail(job, "mismatch", *disagreement)
            return None
        if sign.oldest != member.oldest or not sign.waiting:
            member.waits_us = None
        job.note_progress(member.rank, sign.oldest)
        for seq in [s for s in job.recalled if serial_distance(s, job.sums.oldest_seq) > 0]:
            del job.recalled[seq]
        departed = job.departed_before(sign.oldest) if sign.waiting else []
        if departed:
            self._fail(job, "lost", departed, "left the job while others still need its contributions")
            return None
        gone = job.silent_holders(member, now_us, self.settings.dead_after_us) if sign.waiting else []
        if gone:
            self._fail(job, "lost", gone, GONE_WITH_SUMS)
            return None
        self._answer_leavers(job)
        return Progress(passed=job.sums.oldest_seq, ahead=job.ahead)

    def _answer_leavers(self, job: Job) -> None:
        """Answers ranks that have asked to leave, as soon as no other rank needs their sums."""
        for member in job.members.values():
            if member.leaving and job.may_leave(member):
                packet = encode(Left(), request=member.leaving, job=job.number, epoch=job.epoch, reply=True)
                self._out.append(Burst.of(member.address, packet))
                member.leaving = 0
                job.log(LetGo(member.rank))

    def _reply(self, address: Address, head: np.void, reply: Reply, room: int | None) -> int:
        """Answers a request with the job and epoch of its header.

        Args: room: bytes of a request from a sender that is no member, which the answer must not exceed; None: a
            member.
        Returns: bytes of the answer; 0: it could not be cut to `room`.
        """
        answer = reply if room is None else fitted(reply, room)
        if answer is None:
            return 0
        packet = encode(answer, request=int(head["seq"]), job=int(head["job"]), epoch=int(head["epoch"]), reply=True)
        self._out.append(Burst.of(address, packet))
        return len(packet)

    # --- failures and time
    # ----------------------------------------------------------------------------------------------

    def _fail(self, job: Job, reason: str, ranks: Sequence[int], detail: str) -> None:
        self._fail_for(job, Failure(reason=reason, ranks=list(ranks), detail=detail))

    def _fail_for(self, job: Job, failure: Failure) -> None:
        """Ends a job's epoch; tells every member at once, and again in answer to its requests.

        A member that has not spoken yet is told when it next asks to join, because its address is not proven.
        """
        if job.state in OVER:
            return
        job.fail(failure)
        job.log(JobFailed(job.epoch, failure.reason, list(failure.ranks), failure.detail))
        packet = encode(failure, request=0, job=job.number, epoch=job.epoch, reply=True)
        self._out.extend(Burst.of(member.address, packet) for member in job.members.values() if member.has_spoken)
        self._retire(job)

    def _unheard(self, job: Job, waiting: Member) -> str | None:
        """The switch's address, if no rank has had an answer from it about the fragment that a rank waits for.

        Returns: None: some rank has, or the switch is on the way to the server.
        """
        is_heard = any(
            m.oldest not in (None, waiting.oldest) or (m.waiting and m.held is not None) for m in job.members.values()
        )
        return None if is_heard else self._switch or None

    @property
    def _switch(self) -> str:
        """The address for contributions, HOST:PORT; "": the server's own."""
        return "{}:{}".format(*self.settings.switch_address) if self.settings.switch_address else ""

    def path_narrowed(self, to: Address, needed: int, mtu: int) -> None:
        """Fails jobs whose results do not leave for `to` any more.

        Args: needed: bytes of an IP packet; mtu: of the path.
        """
        detail = narrow_path("the parameter server", needed, "{}:{}".format(*to), mtu)
        for job in self.jobs.values():
            member = job.member_at(to)
            if job.state is State.RUNNING and (member is not None or to == self.settings.switch_address):
                self._fail(job, "narrow", () if member is None else (member.rank,), detail)

    def _retire(self, job: Job) -> None:
        """Drops results of an epoch that is over, and has switches forget it."""
        self._out.forget(job.number, job.epoch)
        job.log(Removed(job.epoch))
        self._events.append(Retire(job.number, job.epoch))

    def _give_up(self, job: Job, ranks: Sequence[int], why: str) -> None:
        """Fails a running job whose ranks are gone; before it runs, drops only these ranks."""
        if job.state is State.RUNNING:
            self._fail(job, "lost", ranks, why)
        else:
            self._admission.drop(job, ranks, why)

    def next_timer_us(self) -> int | None:
        return self._lookout.next_timer_us()

    def handle_timer(self, now_us: int) -> None:
        """Looks for workers that have fallen silent."""
        self._lookout.handle_timer(now_us)

    def doubts(self, now_us: int) -> bool:
        """Whether the owner should report ICMP refusals, because some rank is silent."""
        return self._lookout.doubts and self.next_timer_us() is not None

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """Takes ports that their hosts report closed. (section 7.4)"""
        self._lookout.ports_closed(addresses, now_us)

    @property
    def has_more(self) -> bool:
        """Whether results wait because the last `transmit` had no budget for them."""
        return self._out.has_results

    def may_gather(self) -> int:
        """How many datagrams may wait unread: many while only copies of results come, none after a request."""
        urgent, self._urgent = self._urgent, False
        return 0 if urgent else MAX_GATHER

    def is_unasked(self, now_us: int) -> bool:
        """Whether no request has come for a while, and none is likely soon: no packets are lost, and no job has help or
        seats.
        """
        asks = any(
            job.help_grade is not HelpGrade.NONE or job.seats for job in self.jobs.values() if job.state not in OVER
        )
        return not asks and (self._asked_us is None or now_us - self._asked_us > UNASKED_US)

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        """Datagrams to send now. Args: budget_bytes: limit for results; messages are not limited."""
        return self._out.take(budget_bytes)
