"""What a worker is told when its job is admitted, and the asking for it. (protocol section 7.1)"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sa_atp.errors import UserError
from sa_atp.spec import CONTRIBUTION_BITS, HEADER_BYTES, LANE_BUILDS, Kind
from sa_atp.straggler.ledger import Grade
from sa_atp.transport.errors import ParameterServerLostError, RefusedError, TransportError
from sa_atp.transport.requests import Requests
from sa_atp.wire.datagrams import Address, Burst
from sa_atp.wire.header import headers
from sa_atp.wire.messages import MAX_BYTES, Body, MalformedError, decode, integer, integers, text

MOST_SLOTS = 1 << 16  # that a packet can name; how many a switch has, it says when the job is installed
REPEAT_US = 200_000  # between two questions while other ranks are still missing


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinRequest:
    """What a worker asks for.

    Raises: UserError, naming the field and what would be accepted.
    """

    job: str
    rank: int
    world_size: int
    micro_batches: int = 1
    """Contributions of each rank. All ranks of a job must name the same number."""
    grade: Grade = Grade.NONE
    """How leaders may help stragglers. All ranks of a job must name the same."""

    def __post_init__(self) -> None:
        if not 0 < len(self.job) <= 64:
            raise UserError(f"job = {self.job!r}: expected a name of 1 to 64 characters")
        if self.world_size < 1 or self.micro_batches < 1 or self.world_size * self.micro_batches > CONTRIBUTION_BITS:
            raise UserError(
                f"world_size = {self.world_size} with {self.micro_batches} contributions each: "
                f"expected at least 1 of both, and at most {CONTRIBUTION_BITS} contributions in all"
            )
        if not 0 <= self.rank < self.world_size:
            raise UserError(f"rank = {self.rank}: expected 0 to {self.world_size - 1}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """A worker's place in an admitted job."""

    job: int
    epoch: int
    rank: int
    world_size: int
    micro_batches: int
    lanes: int
    slot_base: int
    slot_count: int
    first_seq: int
    data_address: Address
    """Where contributions go: the switch, or the parameter server if the switch lies on the way to it."""
    server_address: Address
    alive_every_us: int
    grade: Grade = Grade.NONE
    levels: int = 1
    """Switches that aggregate between a worker and the parameter server."""
    leaf_ranks: int = 0
    """Ranks whose contributions the first of two switches sums, as a bitmap; 0: there is no such switch."""

    @property
    def contributions(self) -> int:
        return self.world_size * self.micro_batches

    @property
    def fan_in(self) -> int:
        """Bitmap of a complete sum."""
        return (1 << self.contributions) - 1

    def bits_of(self, rank: int) -> int:
        """Contributions of a rank, as a bitmap."""
        return ((1 << self.micro_batches) - 1) << (rank * self.micro_batches)

    @property
    def leaf_bits(self) -> int:
        """Contributions that are summed below the root, as a bitmap; 0: none."""
        return sum(self.bits_of(rank) for rank in range(self.world_size) if self.leaf_ranks >> rank & 1)

    def bit(self, rank: int, micro_batch: int) -> int:
        return 1 << (rank * self.micro_batches + micro_batch)

    def ranks_of(self, bits: int) -> list[int]:
        """The ranks to which contributions belong."""
        return [rank for rank in range(self.world_size) if bits & self.bits_of(rank)]

    def to_body(self) -> Body:
        return {
            "type": "welcome", "job": self.job, "epoch": self.epoch, "rank": self.rank, "world_size": self.world_size,
            "micro_batches": self.micro_batches, "lanes": self.lanes, "slot_base": self.slot_base,
            "slot_count": self.slot_count, "first_seq": self.first_seq, "data_ip": self.data_address[0],
            "data_port": self.data_address[1], "alive_every_us": self.alive_every_us,
            "grade": self.grade.value, "levels": self.levels, "leaf_ranks": self.leaf_ranks,
        }  # fmt: skip

    @classmethod
    def from_body(cls, body: Body, server_address: Address) -> "Membership":
        """Raises: MalformedError."""
        lanes = integer(body, "lanes", 1, 4096)
        if lanes not in LANE_BUILDS:
            raise MalformedError(f"lanes must be one of {LANE_BUILDS}")
        data_ip = text(body, "data_ip", 15)
        grade = text(body, "grade", 16)
        if grade not in [g.value for g in Grade]:
            raise MalformedError(f"unknown grade {grade!r}")
        return cls(
            job=integer(body, "job", 0, 255),
            epoch=integer(body, "epoch", 0, 255),
            rank=integer(body, "rank", 0, CONTRIBUTION_BITS - 1),
            world_size=integer(body, "world_size", 1, CONTRIBUTION_BITS),
            micro_batches=integer(body, "micro_batches", 1, CONTRIBUTION_BITS),
            lanes=lanes,
            slot_base=integer(body, "slot_base", 0, MOST_SLOTS - 1),
            slot_count=integer(body, "slot_count", 1, MOST_SLOTS),
            first_seq=integer(body, "first_seq", 0, 0xFFFFFFFF),
            # an empty address: the switch is on the way to the parameter server
            data_address=(data_ip, integer(body, "data_port", 0, 65535)) if data_ip else server_address,
            server_address=server_address,
            alive_every_us=integer(body, "alive_every_us", 1_000, 60_000_000),
            grade=Grade(grade),
            levels=integer(body, "levels", 1, 8),
            leaf_ranks=integer(body, "leaf_ranks", 0, (1 << CONTRIBUTION_BITS) - 1),
        )


class Joining:
    """Asks for admission until all ranks are there. Sans-I/O, like the connection that follows it."""

    def __init__(
        self, request: JoinRequest, server: Address, *, incarnation: int, now_us: int, timeout_us: int
    ) -> None:
        """Args: incarnation: 31 random bits; tells a restarted worker from a repeated question."""
        self.request = request
        self.server = server
        self.membership: Membership | None = None
        self.error: TransportError | None = None
        self.waiting_for: Sequence[int] | None = None  # ranks that have not joined, as the server last said
        self.refusal: str | None = None  # why it could not admit the job, the last time that it tried
        self._body: dict[str, Any] = {
            "type": "join", "name": request.job, "rank": request.rank, "world_size": request.world_size,
            "micro_batches": request.micro_batches, "grade": request.grade.value, "incarnation": incarnation,
        }  # fmt: skip
        self._requests = Requests(first_number=incarnation)
        self._deadline_us = now_us + timeout_us
        self._timeout_us = timeout_us
        self._ask_again_us: int | None = None
        self._requests.ask(self._body, now_us, timeout_us=timeout_us)

    @property
    def finished(self) -> bool:
        return self.membership is not None or self.error is not None

    def receive(self, bursts: Sequence[Burst], now_us: int) -> None:
        for burst in bursts:
            if burst.address != self.server or burst.data.shape[1] < HEADER_BYTES:
                continue
            for row, header in zip(burst.data, headers(burst.data), strict=True):
                if (
                    int(header["first"]) & 15 == Kind.CONTROL
                    and self._requests.answered(int(header["seq"])) is not None
                ):
                    try:
                        self._reply(decode(row.tobytes()), now_us)
                    except MalformedError as error:
                        self.error = TransportError(f"the parameter server's answer cannot be understood: {error}")

    def _reply(self, body: Body, now_us: int) -> None:
        if body["type"] == "welcome":
            self.membership = Membership.from_body(body, self.server)
        elif body["type"] == "waiting":
            self.waiting_for = integers(body, "missing", 0, CONTRIBUTION_BITS - 1, CONTRIBUTION_BITS)
            self.refusal = text(body, "refusal", MAX_BYTES) if "refusal" in body else None
            self._ask_again_us = now_us + REPEAT_US
        else:
            self.error = RefusedError(f"the parameter server refuses: {body.get('reason', body['type'])}")

    def transmit(self, now_us: int, room: int | None = None) -> list[Burst]:
        return [Burst.of(self.server, packet) for packet in self._requests.due(now_us)]

    def may_gather(self) -> int:
        """How many datagrams may wait for us: none, the answer is urgent."""
        return 0

    def next_timer_us(self) -> int | None:
        times = [t for t in (self._requests.next_timer_us(), self._ask_again_us, self._deadline_us) if t is not None]
        return None if self.finished else min(times)

    def handle_timer(self, now_us: int) -> None:
        if self.finished:
            return
        if now_us >= self._deadline_us:
            waited = self._timeout_us / 1e6
            if self.refusal is not None:
                self.error = RefusedError(f"job {self.request.job!r}: after {waited:.1f} s: {self.refusal}")
            elif self.waiting_for:
                ranks = ", ".join(map(str, self.waiting_for))
                self.error = TransportError(
                    f"job {self.request.job!r}: after {waited:.1f} s these ranks have not joined: {ranks}"
                )
            elif self.waiting_for is not None:
                self.error = TransportError(
                    f"job {self.request.job!r}: all ranks are here, but after {waited:.1f} s no switch knows the job"
                )
            else:
                host, port = self.server
                self.error = ParameterServerLostError(
                    f"no parameter server answers at {host}:{port} after {waited:.1f} s: is `sa-atp up` running there?"
                )
        elif self._ask_again_us is not None and now_us >= self._ask_again_us:
            self._ask_again_us = None
            self._requests.ask(self._body, now_us, timeout_us=self._deadline_us - now_us)
