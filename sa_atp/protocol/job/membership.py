"""A worker's request to join a job, and its membership once the job is admitted. (protocol section 7.1)"""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sa_atp.basics.errors import UserError
from sa_atp.protocol.job.errors import ParameterServerLostError, RefusedError, TransportError
from sa_atp.protocol.job.failures import error_of
from sa_atp.protocol.job.requests import Requests
from sa_atp.protocol.job.standstill import stood_still_us
from sa_atp.protocol.job.terms import Value, stated
from sa_atp.protocol.log.event import Log, nobody, place
from sa_atp.protocol.log.rank_events import ConnectionEnded, JoinAsked, JoinWaits, Welcomed
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.control import (
    LONGEST_CUT_OFF_US,
    CutOff,
    Failure,
    Join,
    LeafPorts,
    MalformedError,
    Place,
    Refused,
    Reply,
    Terms,
    Waiting,
    Welcome,
    decode_reply,
    type_of,
)
from sa_atp.protocol.packets.datagrams import Address, Burst
from sa_atp.protocol.packets.header import headers
from sa_atp.protocol.packets.message_fields import HelpGrade, Results
from sa_atp.protocol.packets.mtu import MOST_MTU
from sa_atp.protocol.packets.spec import HEADER_BYTES, Kind

REPEAT_US = 200_000  # between two Joins while other ranks are still missing
GONE_US = 10 * REPEAT_US  # silence after which a rank's place goes to another worker that asks for it
SIGNS_MISSED = 2  # signs of life missed in a row, after which a host's word that the port is closed is believed
SERVER_TIMEOUT_US = 10_000_000  # as for a running job
OCCUPIED_US = 2 * GONE_US  # after which a worker whose rank is taken stops asking


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinRequest:
    """The membership that a worker asks for.

    Raises: UserError, naming the field and what would be accepted.
    """

    job: str
    rank: int
    world_size: int
    micro_batches: int = 1
    """Contributions of each rank. All ranks of a job must name the same number."""
    help_grade: HelpGrade = HelpGrade.NONE
    """How leaders may help stragglers. All ranks of a job must name the same."""
    seats: int = 0
    """The sum is that of the first so many ranks that ask for a seat; 0: of all. All ranks must name the same number.
    """
    cut_off: CutOff | None = None
    """When the seats of a step close; None: when all are taken. All ranks must name the same."""
    results: Results = Results.TO_ALL
    """The ranks that need the values of a sum. All ranks must name the same."""
    agree: Mapping[str, Value] = field(default_factory=dict)
    """Other terms that all ranks must state alike, by name: text, numbers, True, False or None."""

    def __post_init__(self) -> None:
        if not isinstance(self.job, str) or not 0 < len(self.job) <= 64 or not self.job.isprintable():
            raise UserError(f"job = {self.job!r}: expected a name of 1 to 64 printable characters")
        for name in ("rank", "world_size", "micro_batches", "seats"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, operator.index(value))  # also takes NumPy's integers
            except TypeError:
                raise UserError(f"{name} = {value!r}: expected a whole number") from None
        if self.cut_off is not None:
            _check_cut_off(self.cut_off)
        try:
            Terms(self.world_size, self.micro_batches, self.help_grade, self.seats, self.cut_off, self.results)
        except ValueError as error:
            raise UserError(str(error)) from None
        if not 0 <= self.rank < self.world_size:
            raise UserError(f"rank = {self.rank}: expected 0 to {self.world_size - 1}")
        stated(self.agree)


def _check_cut_off(cut_off: object) -> None:
    if not isinstance(cut_off, CutOff):
        raise UserError(f"cut_off = {cut_off!r}: expected a sa_atp.protocol.packets.control.CutOff")
    after_us = cut_off.after_us
    if not isinstance(after_us, int) or not 0 <= after_us <= LONGEST_CUT_OFF_US:
        raise UserError(f"cut_off after {after_us!r} us: expected a whole number from 0 to {LONGEST_CUT_OFF_US}")


class Membership(Place, frozen=True, kw_only=True):
    """A worker's place in an admitted job."""

    data_address: Address
    """Destination of contributions: the switch, or the parameter server if the switch is on the way to it."""
    server_address: Address

    @property
    def scatters(self) -> bool:
        """Whether each rank needs its own part of the results only."""
        return self.results is Results.SCATTERED

    def kept_values(self, values: int) -> int:
        """Returns how many values this rank gets of a sum with `values`. Raises: UserError: these are not equal parts."""
        if not self.scatters:
            return values
        if values % self.world_size:
            raise UserError(f"{values} values are not {self.world_size} equal parts, one for each rank")
        return values // self.world_size

    def stagger_us(self, us: int) -> int:
        """Returns by how much this rank's waits of a given time differ from those of others, at most a quarter. Ranks that
        began together would ask in the same moment each time, and a short queue would lose the same answers. (section 5.4)
        """
        return round(us * self.rank / (4 * self.world_size))

    @property
    def map(self) -> ContributionMap:
        """The map between contribution bits and ranks."""
        return ContributionMap(self.world_size, self.micro_batches, self.seats)

    @property
    def contributions(self) -> int:
        return self.map.contributions

    @property
    def fan_in(self) -> int:
        """Bitmap of a complete sum."""
        return self.map.fan_in

    def bits_of(self, rank: int) -> int:
        """Contributions of a rank, as a bitmap; 0 in a job with seats."""
        return self.map.bits_of(rank)

    def bit(self, rank: int, micro_batch: int) -> int:
        return self.map.bit(rank, micro_batch)

    @property
    def leaf_bits(self) -> int:
        """Contributions that the worker's leaf sums, as a bitmap; 0: none."""
        return sum(self.bits_of(rank) for rank in range(self.world_size) if self.leaf_ranks >> rank & 1)

    def as_event(self) -> Welcomed:
        return Welcomed(
            self.job, self.epoch, self.lanes, self.contribution_bits, self.slot_base, self.slot_count, self.first_seq,
            self.levels, place(self.data_address), self.alive_every_us,
        )  # fmt: skip

    @classmethod
    def of(cls, welcome: Welcome, server_address: Address) -> "Membership":
        """The membership that a welcome grants. Args: server_address: of the parameter server that sent it."""
        place_of = {name: getattr(welcome, name) for name in Place.__struct_fields__}
        data_address = (welcome.data_ip, welcome.data_port) if welcome.data_ip else server_address
        return cls(**place_of, data_address=data_address, server_address=server_address)


class Joining:
    """Asks for admission until all ranks have joined. Sans-I/O, like the connection that follows it."""

    def __init__(
        self,
        request: JoinRequest,
        server: Address,
        *,
        incarnation: int,
        now_us: int,
        timeout_us: int,
        mtu: int = MOST_MTU,
        leaf: LeafPorts | None = None,
        answer_timeout_us: int | None = None,
        server_timeout_us: int = SERVER_TIMEOUT_US,
        log: Log = nobody,
    ) -> None:
        """Args:
        incarnation: 31 random bits; tells a restarted worker from a repeated question.
        timeout_us: time for all ranks to join.
        answer_timeout_us: time for the server's first answer; None: timeout_us.
        server_timeout_us: time for each later answer of the server.
        mtu: of the path to the server, as far as this host knows it.
        leaf: on this host, by which the rank can send; None: there is none.
        """
        self.request = request
        self.server = server
        self._log = log
        self._waits: JoinWaits | None = None  # as it was logged last
        self.membership: Membership | None = None
        self.error: TransportError | None = None
        self.waiting_for: Sequence[int] | None = None  # ranks that have not joined, by the server's last answer
        self.refusal: str | None = None  # why the server last failed to admit the job
        self.differs: str | None = None  # why the server last refused a rank that is missing
        self._occupied: str | None = None  # address of another worker that has our rank
        self._occupied_us = now_us  # since when the server has said so
        self._question = Join(
            name=request.job,
            rank=request.rank,
            world_size=request.world_size,
            micro_batches=request.micro_batches,
            help_grade=request.help_grade,
            seats=request.seats,
            cut_off=request.cut_off,
            results=request.results,
            incarnation=incarnation,
            mtu=mtu,
            leaf=leaf,
            agree=stated(request.agree),
        )
        self._requests = Requests(first_number=incarnation)
        self._heard_us = now_us
        self._server_timeout_us = server_timeout_us
        self._deadline_us = now_us + timeout_us
        self._looked_us = now_us  # at the clock
        self._answer_timeout_us = timeout_us if answer_timeout_us is None else min(timeout_us, answer_timeout_us)
        self._timeout_us = timeout_us
        self._ask_again_us: int | None = None
        self._requests.ask(self._question, now_us, timeout_us=timeout_us)
        self._log(
            JoinAsked(
                request.job, request.rank, request.world_size, request.micro_batches, request.help_grade.value,
                request.seats, place(server),
            )
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        return self.membership is not None or self.error is not None

    def _look_at_clock(self, now_us: int) -> None:
        """Discounts time in which this process did not run, before any time-out is judged."""
        due_us = self.next_timer_us()
        stood_us = 0 if due_us is None else stood_still_us(max(due_us, self._looked_us), now_us)
        self._looked_us = now_us
        if stood_us:
            self._deadline_us += stood_us
            self._occupied_us += stood_us
            self._heard_us = min(now_us, self._heard_us + stood_us)
            self._requests.discount_standstill(stood_us)

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        self._look_at_clock(now_us)
        for burst in bursts:
            if burst.address != self.server or burst.data.shape[1] < HEADER_BYTES:
                continue
            for row, header in zip(burst.data, headers(burst.data), strict=True):
                if (
                    int(header["first"]) & 15 == Kind.CONTROL
                    and self._requests.take_answer(int(header["seq"]), now_us) is not None
                ):
                    self._heard_us = now_us
                    try:
                        self._reply(decode_reply(row.tobytes()), now_us)
                    except MalformedError as error:
                        self.error = TransportError(f"the parameter server's answer cannot be understood: {error}")
                    self._log_error()

    def _reply(self, reply: Reply, now_us: int) -> None:
        self._heard_us = now_us
        match reply:
            case Welcome():
                self.membership = Membership.of(reply, self.server)
                self._log(self.membership.as_event())
            case Waiting():
                self.waiting_for, self.refusal, self.differs = reply.missing, reply.refusal, reply.differs
                if self._occupied is None:
                    self._occupied_us = now_us
                self._occupied = reply.occupied
                self._ask_again_us = now_us + REPEAT_US
                self._log_waiting(reply)
            case Failure():
                self.error = error_of(reply)
            case Refused(reason=reason):
                self.error = RefusedError(f"the parameter server refuses: {reason}")
            case _:
                self.error = RefusedError(f"the parameter server refuses: {type_of(reply)}")

    def transmit(self, now_us: int, budget_bytes: int | None = None) -> list[Burst]:
        return [Burst.of(self.server, packet) for packet in self._requests.due(now_us)]

    @property
    def has_more(self) -> bool:
        """Always False: `transmit` holds nothing back."""
        return False

    def may_gather(self) -> int:
        """How many datagrams may wait unread: none, because answers are urgent."""
        return 0

    def doubts(self, now_us: int) -> bool:
        """Always False: the owner need not report ICMP refusals, because the parameter server may still be started."""
        return False

    def ports_closed(self, addresses: Collection[Address], now_us: int) -> None:
        """Ignored, see `doubts`."""

    def next_timer_us(self) -> int | None:
        has_answered = self.waiting_for is not None
        silent_us = self._heard_us + (self._server_timeout_us + 1 if has_answered else self._answer_timeout_us + 1)
        due = (self._requests.next_timer_us(), self._ask_again_us, self._deadline_us, silent_us)
        times = [t for t in due if t is not None]
        return None if self.finished else min(times)

    def handle_timer(self, now_us: int) -> None:
        self._look_at_clock(now_us)
        if self.finished:
            return
        silent_us = now_us - self._heard_us
        longest_us = GONE_US if now_us >= self._deadline_us else self._server_timeout_us
        if (
            self.waiting_for is not None and silent_us > longest_us
        ):  # a silent server's list of missing ranks is outdated
            host, port = self.server
            self.error = ParameterServerLostError(
                f"the parameter server at {host}:{port} has not answered for {silent_us / 1e6:.1f} s"
            )
        elif self._occupied is not None and now_us >= min(self._deadline_us, self._occupied_us + OCCUPIED_US):
            self.error = RefusedError(
                f"job {self.request.job!r}: rank {self.request.rank} is there already, from {self._occupied}; "
                "every rank is started once"
            )
        elif now_us >= self._deadline_us:
            waited = self._timeout_us / 1e6
            if self.refusal is not None:
                self.error = RefusedError(f"job {self.request.job!r}: after {waited:.1f} s: {self.refusal}")
            elif self.waiting_for:
                ranks = ", ".join(map(str, self.waiting_for))
                self.error = TransportError(
                    f"job {self.request.job!r}: after {waited:.1f} s these ranks have not joined: {ranks}"
                    + (f"; one was refused: {self.differs}" if self.differs else "")
                )
            elif self.waiting_for is not None:
                self.error = TransportError(
                    f"job {self.request.job!r}: all ranks are here, but after {waited:.1f} s no switch knows the job"
                )
            else:
                self.error = self._silence(self._timeout_us)
        elif self.waiting_for is None and silent_us > self._answer_timeout_us:
            self.error = self._silence(self._answer_timeout_us)
        elif self._ask_again_us is not None and now_us >= self._ask_again_us:
            self._ask_again_us = None
            self._requests.ask(self._question, now_us, timeout_us=self._deadline_us - now_us)
        self._log_error()

    def _log_waiting(self, reply: Waiting) -> None:
        waits = JoinWaits(list(reply.missing), reply.refusal or reply.differs, reply.occupied)
        if waits != self._waits:
            self._waits = waits
            self._log(waits)

    def _log_error(self) -> None:
        if self.error is not None:  # after which nothing is received or due
            self._log(ConnectionEnded(type(self.error).__name__, str(self.error)))

    def _silence(self, longest_us: int) -> ParameterServerLostError:
        host, port = self.server
        return ParameterServerLostError(
            f"no parameter server answers at {host}:{port} after {longest_us / 1e6:.1f} s: is `sa-atp up` running there?"
        )
