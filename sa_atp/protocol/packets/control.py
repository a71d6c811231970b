"""Control messages between workers and the parameter server: a header of kind CONTROL and one JSON object. (section 9)

They are few and small, so they are readable rather than dense. Each is a class here, or in `help_messages`,
`lateness_messages` or `status_messages`. Only this module converts between JSON and messages; it trusts nothing in a
datagram, and raises MalformedError for anything without a message's fields, or with values beyond the bounds in their
types. A test compares the classes with the table of protocol section 9.2.

    match decode_request(packet):
        case WorkReport(step=step, begun=begun): ...
"""

import itertools
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, field

from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.help_messages import Assignment, WorkReport
from sa_atp.protocol.packets.lateness_messages import MOST_WAITS, AskLateness, JobLateness, Wait
from sa_atp.protocol.packets.message_fields import (
    LONGEST_TEXT,
    MAX_FETCH,
    MOST_SLOTS,
    Bitmap,
    Checked,
    Contributions,
    Count,
    HelpGrade,
    Message,
    Microseconds,
    Octet,
    Port,
    Rank,
    Ranks,
    Results,
    Seats,
    Seq,
    Text,
)
from sa_atp.protocol.packets.mtu import IP_UDP_BYTES, LEAST_MTU, MOST_MTU
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    HEADER_BYTES,
    LANE_BUILDS,
    MOST_CONTRIBUTIONS,
    MOST_RANKS,
    WIDE_BUILDS,
    Flag,
    Kind,
)
from sa_atp.protocol.packets.status_messages import LONGEST_NAME, AskStats, Describe, Description, JobStats

MAX_BYTES = 1400  # fits in an Ethernet frame with all headers
# An answer to a host that is no member is at most as long as the question, so questions are padded. (section 9.1)
LEAST_REQUEST_BYTES = 64  # room to say that a job has been restarted
JOIN_BYTES = 548  # room for every answer to a Join, in a packet that every IPv4 host accepts
LONGEST_STATED_NAME, LONGEST_STATED_VALUE = 32, 64  # characters of a term that a rank states when it joins
LONGEST_CUT_OFF_US = 3_600_000_000
MOST_STATED, MOST_STATED_BYTES = 24, 800  # number of such terms, and their length in all, as JSON


class MalformedError(ValueError):
    """A datagram that is not a message of this protocol."""


# --- from workers, and tools, to the parameter server
# ---------------------------------------------------------------------


class LeafPorts(Checked, frozen=True, array_like=True):
    """A leaf on a rank's own host: its UDP port for what comes down, and its P4Runtime port. On the wire a list of both."""

    down: Annotated[int, Meta(ge=1, le=65535)]
    grpc: Annotated[int, Meta(ge=1, le=65535)]


class CutOff(Checked, frozen=True, array_like=True):
    """When a step's seats close before all are taken. On the wire a list of both. (section 10.6)"""

    after_us: Annotated[int, Meta(ge=0, le=LONGEST_CUT_OFF_US)]
    """Time for which seats stay open after the step's first one was taken, at least."""
    least: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    """Number of seats that must be taken before the others close."""


class Terms(Message, frozen=True):
    """The terms of a job, which all its ranks state alike when they join. (section 7.1)"""

    world_size: Ranks
    micro_batches: Contributions
    """Contributions of each rank."""
    help_grade: HelpGrade = field(default=HelpGrade.NONE, name="grade")
    seats: Seats = 0
    """The sum is that of the first so many ranks; 0: of all ranks. (section 10.6)"""
    cut_off: CutOff | None = None
    """When seats close; None: when all are taken."""
    results: Results = Results.TO_ALL
    """The ranks that need the values of a sum. (section 5.9)"""
    agree: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=LONGEST_STATED_NAME)],
            Annotated[str, Meta(max_length=LONGEST_STATED_VALUE)],
        ],
        Meta(max_length=MOST_STATED),
    ] = field(default_factory=dict)
    """Further terms, which the program that uses the job states, by name."""

    def __post_init__(self) -> None:
        if not 0 <= self.seats <= max(0, self.world_size):
            raise ValueError(f"seats = {self.seats}: expected 0 to world_size = {self.world_size}")
        if self.seats and self.help_grade is not HelpGrade.NONE:
            raise ValueError(f"seats = {self.seats} with help {self.help_grade.value!r}: expected one or the other")
        if self.cut_off is not None:
            self._check_cut_off(self.cut_off.least)
        several = self.micro_batches != 1 or self.seats > 0 or self.help_grade is not HelpGrade.NONE
        if self.results is not Results.TO_ALL and several:
            raise ValueError(
                f"results = {self.results.value!r}: expected micro_batches = 1, no seats and no help, with which they do "
                "not go together"
            )
        if not ContributionMap(self.world_size, self.micro_batches, self.seats).fits:
            raise ValueError(
                f"world_size = {self.world_size} with {self.micro_batches} contributions each: "
                f"expected at least 1 of both, at most {MOST_RANKS} ranks, "
                f"and at most {MOST_CONTRIBUTIONS} contributions in all"
            )

    def _check_cut_off(self, least: object) -> None:
        if not self.seats:
            raise ValueError("cut_off without seats: expected seats = 1 or more, or no cut_off")
        if not isinstance(least, int) or not 0 < least <= self.seats:
            raise ValueError(f"cut_off waits for {least!r} seats, of {self.seats}: expected 1 to {self.seats}")


class Join(Terms, frozen=True, kw_only=True, tag="join"):
    """A worker asks to be a rank of a job, again and again until the job runs. (section 7.1)"""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    rank: Rank
    incarnation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    """A random number of this start of the worker: tells a restarted worker from a repeated question."""
    mtu: Annotated[int, Meta(ge=LEAST_MTU, le=MOST_MTU)] = MOST_MTU
    """MTU of the path from this rank, in bytes of an IP packet, as far as its host knows."""
    leaf: LeafPorts | None = None
    """The leaf on its host, by which the rank can send; None: there is none. (section 7.1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be an integer from 0 to {self.world_size - 1}")


class Alive(Message, frozen=True, tag="alive"):
    """A sign of life with the worker's progress. (section 7.4)"""

    oldest: Seq
    """The oldest result that this rank may still ask for."""
    waiting: bool = False
    """Whether sums are under way; the next five fields describe the oldest of them. (section 7.5)"""
    operation: Count | None = None
    values: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    first: Seq | None = None
    predicted: bool = False
    """Whether its scale follows from an earlier sum with its key. (section 6.2)"""
    tag: Octet | None = None
    """The tag of the operation's fragments; ranks with the same number and size have others if keys or scales differ."""
    given: Bitmap = 0
    """Contributions to it that the program has handed to the transport; for the diagnosis of a stuck job."""
    held: Bitmap | None = None
    """Contributions that the switch held at the last probe; likewise."""
    waits: Annotated[list[Wait], Meta(max_length=MOST_WAITS)] = field(default_factory=list)
    """How long the rank waited for sums that are done since its last sign of life. (section 7.7)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({self.operation is None, self.values is None, self.first is None}) > 1:
            raise ValueError("operation, values and first come together")


class Leave(Message, frozen=True, tag="leave"):
    """The sender leaves the job: it will contribute to no further sum. (section 7.6)"""

    oldest: Seq


class ReportNotFinite(Message, frozen=True, tag="not_finite"):
    """The sender gives up, because a sum has NaN or infinity in it; tells all ranks. (section 7.4)"""

    operation: Count
    ranks: list[Rank]
    """The ranks that contributed such values."""
    values: tuple[Count, Count]
    """The first and the last value of the range in which they are."""


class ReportChanged(Message, frozen=True, tag="changed"):
    """The sender gives up, because values exceeded their announced magnitude twice; tells all ranks. (section 6.3)"""

    operation: Count
    ranks: list[Rank]
    """The ranks that contributed such values."""
    values: tuple[Count, Count]
    """The first and the last value of the range in which they are."""


class ReportTimeout(Message, frozen=True, tag="timed_out"):
    """The sender gives up, because there was no result for longer than the bound; tells all ranks. (section 7.4)"""

    operation: Count
    """The oldest one under way."""
    waited_us: Microseconds
    switch: Text | None = None
    """The switch's address, if its host reports that port closed."""


Report = ReportNotFinite | ReportChanged | ReportTimeout


class ReportNarrow(Message, frozen=True, tag="narrow"):
    """The sender gives up, because the MTU of its path has become too small; tells all ranks. (section 7.4)"""

    needed: Annotated[int, Meta(ge=1, le=MOST_MTU)]
    """Bytes of an IP packet of the job."""
    mtu: Annotated[int, Meta(ge=0, le=MOST_MTU)]
    """MTU of the path now."""
    to: Annotated[str, Meta(max_length=21)]
    """HOST:PORT."""


class Fetch(Message, frozen=True, tag="fetch"):
    """Asks for results, as far as the parameter server has them. (section 5.7)"""

    first: Seq
    count: Annotated[int, Meta(ge=1, le=MAX_FETCH)]
    complete: bool = False
    """Whether the switch has answered that the sum of the first fragment is complete. Then other ranks may have the result,
    although their last signs of life do not say so.
    """


class TakeSeat(Message, frozen=True, tag="seat"):
    """Asks for a seat in a step's sum, once the gradient is computed; and later, which seats are empty. (section 10.6)"""

    step: Count


Request = (
    Join | Alive | Leave | Report | ReportNarrow | Fetch | WorkReport | TakeSeat | AskStats | AskLateness | Describe
)


# --- from the parameter server
# --------------------------------------------------------------------------------------------


class Place(Message, frozen=True):
    """What a rank must know to take part in a job that runs."""

    job: Octet
    epoch: Octet
    rank: Rank
    world_size: Ranks
    micro_batches: Contributions
    lanes: Annotated[int, Meta(ge=1, le=4096)]
    slot_base: Annotated[int, Meta(ge=0, le=MOST_SLOTS - 1)]
    slot_count: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    first_seq: Seq
    alive_every_us: Annotated[int, Meta(ge=1_000, le=60_000_000)]
    help_grade: HelpGrade = field(default=HelpGrade.NONE, name="grade")
    levels: Annotated[int, Meta(ge=0, le=8)] = 1
    """Switches that aggregate between a worker and the parameter server; 0: the parameter server sums alone."""
    leaf_ranks: Bitmap = 0
    """Ranks below the same leaf as the receiver; 0: it has no leaf."""
    seats: Seats = 0
    """The sum is that of the first so many ranks that ask for a seat; 0: of all."""
    contribution_bits: Annotated[int, Meta(ge=1, le=MOST_CONTRIBUTIONS)] = field(
        default=CONTRIBUTION_BITS, name="contributions"
    )
    """Bits in the bitmaps of packets."""
    by_leaf: bool = False
    """Whether the rank sends by the leaf on its host that it has named."""
    results: Results = Results.TO_ALL
    """The ranks that need the values of a sum."""
    may_scatter: bool = False
    """Whether another job of as many ranks may have its results scattered."""
    is_local: bool = False
    """Whether all ranks are on one machine, with no link between them."""


class Welcome(Place, frozen=True, kw_only=True, tag="welcome"):
    """Admits a rank to a job that runs."""

    data_ip: Annotated[str, Meta(max_length=15)]
    """The address for contributions; empty: the parameter server's own, with the switch on the way to it."""
    data_port: Port

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lanes not in LANE_BUILDS:
            raise ValueError(f"lanes must be one of {LANE_BUILDS}")
        wide = [bits for lanes, bits in WIDE_BUILDS if lanes == self.lanes]
        if self.contribution_bits not in (CONTRIBUTION_BITS, *wide):
            raise ValueError(f"contributions must be one of {(CONTRIBUTION_BITS, *wide)}")
        if (self.seats or self.world_size) * self.micro_batches > self.contribution_bits:
            raise ValueError("world_size (or seats) times micro_batches must be at most contributions")


class Waiting(Message, frozen=True, tag="waiting"):
    """Answers a Join while ranks are missing, or the switches do not know the job yet."""

    missing: list[Rank]
    """Ranks that have not joined."""
    refusal: Annotated[str, Meta(max_length=MAX_BYTES)] | None = None
    """Why the switches last refused the job."""
    occupied: Text | None = None
    """Address of another worker that has this rank, and was heard of recently."""
    differs: Text | None = None
    """Why a missing rank was refused: its terms differ from those of the ranks that have joined."""


class Refused(Message, frozen=True, tag="refused"):
    """Refuses a request that makes no sense, or cannot be granted."""

    reason: Annotated[str, Meta(max_length=MAX_BYTES)]


class Progress(Message, frozen=True, tag="alive"):
    """Answers a sign of life."""

    passed: Seq
    """Every rank has all results before this one."""
    ahead: Seq | None = None
    """Some rank has all results before this one, so they are complete. None: not known."""


class Left(Message, frozen=True, tag="left"):
    """Answers Leave, once no other rank needs the sums of the one that leaves."""


class Seated(Message, frozen=True, tag="seated"):
    """Answers TakeSeat: the rank is in the sum, with the contributions of this seat."""

    seat: Rank
    empty: Bitmap = 0
    """Bitmap of the seats that no rank will get; the receiver contributes zeros for them."""
    again_us: Microseconds = 0
    """Time after which the receiver asks again, unless its sum is complete; 0: it need not ask."""


class Taken(Message, frozen=True, tag="taken"):
    """Answers TakeSeat: the seats are taken or closed, and the rank is not in the sum."""


class Recall(Message, frozen=True, tag="recall"):
    """Asks a worker for results that it has and the parameter server missed. Sent once."""

    first: Seq
    count: Annotated[int, Meta(ge=1, le=MAX_FETCH)]


class Failure(Message, frozen=True, tag="failed"):
    """Says that the job has failed: sent to every member at once, then in answer to any request."""

    reason: Annotated[str, Meta(max_length=32)]
    """lost, restarted, mismatch, not_finite, changed, timed_out, narrow, refused, or a later version's."""
    ranks: list[Rank] = field(default_factory=list)
    detail: Annotated[str, Meta(max_length=MAX_BYTES)] = ""
    operation: Count | None = None
    """The operation, and in the next three fields its values, waiting time and switch, as a rank reported them."""
    values: tuple[Count, Count] | None = None
    waited_us: Microseconds | None = None
    switch: Text | None = None
    unheard: Text | None = None
    """After a time-out: the switch's address, if it has answered no rank."""


Reply = (
    Welcome
    | Waiting
    | Refused
    | Progress
    | Left
    | Assignment
    | Seated
    | Taken
    | Recall
    | Failure
    | Description
    | JobStats
    | JobLateness
)


# --- bytes
# ----------------------------------------------------------------------------------------------------------------

M = TypeVar("M")
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode(message: Message, *, request: int, job: int = 0, epoch: int = 0, reply: bool = False) -> bytes:
    """A message as one datagram. Short requests are padded with spaces to the length that answers may need.

    Args: request: number by which the reply is recognised, 32 bits; 0: no reply is expected.
    """
    body = msgspec.json.encode(message)
    if not reply:
        body = body.ljust(least_bytes(message) - HEADER_BYTES)
    packet = pack(Kind.CONTROL, body=body, seq=request, job=job, epoch=epoch, flags=Flag.FROM_PS if reply else 0)
    if len(packet) > MAX_BYTES:
        raise ValueError(f"a control message of {len(packet)} bytes exceeds {MAX_BYTES}")
    return packet


def least_bytes(request: Message) -> int:
    """The least length of a request; for a Join, JOIN_BYTES or as much as its path carries."""
    return min(JOIN_BYTES, request.mtu - IP_UDP_BYTES) if isinstance(request, Join) else LEAST_REQUEST_BYTES


def decode_request(packet: bytes) -> Request:
    """The request in a control packet whose header has been checked. Raises: MalformedError."""
    return _decode(_requests, packet)


def decode_reply(packet: bytes) -> Reply:
    """The parameter server's reply in a control packet whose header has been checked. Raises: MalformedError."""
    return _decode(_replies, packet)


def _decode(decoder: msgspec.json.Decoder[M], packet: bytes) -> M:
    if len(packet) > MAX_BYTES:
        raise MalformedError(f"{len(packet)} bytes exceed {MAX_BYTES}")
    try:
        return decoder.decode(packet[HEADER_BYTES:])
    except msgspec.ValidationError as problem:
        raise MalformedError(str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedError("the body is not JSON") from None


def type_of(message: Message) -> str:
    """A message's type as it is named on the wire."""
    return str(message.__struct_config__.tag)


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text made fit for a control message: printable ASCII, cut to `longest` characters of JSON."""
    clean = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:longest])
    lengths = itertools.accumulate(2 if c in '"\\' else 1 for c in clean)  # JSON escapes these two
    return clean[: sum(length <= longest for length in lengths)]
