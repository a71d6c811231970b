"""Control messages between workers and the parameter server: a header of kind CONTROL and one JSON object. (section 9)

They are few and small, so they are readable rather than dense. Each is a class here, and this is the only place where JSON
becomes a message or a message JSON: nothing in a datagram is trusted, so whatever does not have a message's fields, within
the bounds that its types say, is a MalformedError. Which messages there are, protocol section 9.2 says as well; a test
compares the two.

    match decode_request(packet):
        case Claim(step=step, begun=begun): ...
"""

import itertools
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.help_messages import Claim, Granted, Idle, Noted, Nothing, Offer, Revoke, Work
from sa_atp.protocol.packets.lateness_messages import MOST_WAITS, AskLateness, JobLateness, Wait
from sa_atp.protocol.packets.message_fields import (
    LONGEST_TEXT,
    MAX_FETCH,
    MOST_SLOTS,
    Bitmap,
    Checked,
    Contributions,
    Count,
    HelpMode,
    Message,
    Microseconds,
    Octet,
    Port,
    Rank,
    Ranks,
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

MAX_BYTES = 1400  # fits in an Ethernet frame with all headers
# Who is no member gets at most as many bytes as it sent, so questions are as long as their answers. (section 9.1)
LEAST_REQUEST_BYTES = 64  # room to say that a job has been restarted
JOIN_BYTES = 548  # room for every answer to a question to join, in a packet that every host of IPv4 takes
LONGEST_NAME = 64  # characters of a job's name
LONGEST_STATED_NAME, LONGEST_STATED_VALUE = 32, 64  # characters of what a rank states when it joins,
MOST_STATED, MOST_STATED_BYTES = 24, 800  # ... and how much that is in all, as JSON


class MalformedError(ValueError):
    """What arrived is not a message of this protocol."""


# --- from a worker, or whoever asks, to the parameter server --------------------------------------------------------------


class Join(Message, frozen=True, tag="join"):
    """May I take part? Asked until the job runs. (section 7.1)"""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    rank: Rank
    world_size: Ranks
    micro_batches: Contributions
    help_mode: HelpMode = field(name="grade")
    incarnation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    """Tells a worker that was started again from one that repeats its question."""
    seats: Seats = 0
    """How many ranks are in a sum, if they are those who come first. (section 10.6)"""
    mtu: Annotated[int, Meta(ge=LEAST_MTU, le=MOST_MTU)] = MOST_MTU
    """What the way from this rank carries, in bytes of an IP packet, as far as its host knows."""
    agree: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=LONGEST_STATED_NAME)],
            Annotated[str, Meta(max_length=LONGEST_STATED_VALUE)],
        ],
        Meta(max_length=MOST_STATED),
    ] = field(default_factory=dict)
    """What else the program states, by name: every rank must state the same."""

    def __post_init__(self) -> None:
        if self.seats > self.world_size:
            raise ValueError("seats must be at most world_size")
        if (self.seats or self.world_size) * self.micro_batches > MOST_CONTRIBUTIONS:
            raise ValueError(f"world_size (or seats) times micro_batches must be at most {MOST_CONTRIBUTIONS}")
        if self.seats and self.help_mode is not HelpMode.NONE:
            raise ValueError("seats and help do not go together")
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be an integer from 0 to {self.world_size - 1}")


class Alive(Message, frozen=True, tag="alive"):
    """A sign of life, and how far its sender is. (section 7.4)"""

    oldest: Seq
    """No result before this one will be asked for by this rank."""
    waiting: bool = False
    """It has sums under way; the oldest of them is described by the next three. (section 7.5)"""
    operation: Count | None = None
    values: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    first: Seq | None = None
    predicted: bool = False
    """Its scale follows from an earlier sum with its key. (section 6.2)"""
    given: Bitmap = 0
    """Contributions to it that have been handed to the transport; to tell people why a job is stuck."""
    held: Bitmap | None = None
    """Contributions that the switch held when it was last asked; likewise."""
    waits: Annotated[list[Wait], Meta(max_length=MOST_WAITS)] = field(default_factory=list)
    """How long it waited for sums that are done since it last said so. (section 7.7)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({self.operation is None, self.values is None, self.first is None}) > 1:
            raise ValueError("operation, values and first come together")


class Leave(Message, frozen=True, tag="leave"):
    """I will contribute no more."""

    oldest: Seq


class ReportNotFinite(Message, frozen=True, tag="not_finite"):
    """I cannot go on; tell all that a sum has NaN or infinity in it. (section 7.4)"""

    operation: Count
    ranks: list[Rank]
    """Who contributed it."""
    values: tuple[Count, Count]
    """Where: between these, the first and the last."""


class ReportChanged(Message, frozen=True, tag="changed"):
    """I cannot go on; tell all that values do not fit what was told of them, twice. (section 6.3)"""

    operation: Count
    ranks: list[Rank]
    """Whose they are."""
    values: tuple[Count, Count]
    """Where: between these, the first and the last."""


class ReportTimeout(Message, frozen=True, tag="timed_out"):
    """I cannot go on; tell all that there was no result for longer than the bound. (section 7.4)"""

    operation: Count
    """The oldest that waits."""
    waited_us: Microseconds
    switch: Text | None = None
    """The switch's address, if its host says that nobody has that port any more."""


Report = ReportNotFinite | ReportChanged | ReportTimeout


class ReportNarrow(Message, frozen=True, tag="narrow"):
    """I cannot go on; tell all that my packets do not leave, because a way does not carry them any more. (section 7.4)"""

    needed: Annotated[int, Meta(ge=1, le=MOST_MTU)]
    """Bytes of an IP packet."""
    mtu: Annotated[int, Meta(ge=0, le=MOST_MTU)]
    """What the way carries."""
    to: Annotated[str, Meta(max_length=21)]
    """HOST:PORT."""


class Fetch(Message, frozen=True, tag="fetch"):
    """Send me these results, as far as you have them. (section 5.7)"""

    first: Seq
    count: Annotated[int, Meta(ge=1, le=MAX_FETCH)]


class TakeSeat(Message, frozen=True, tag="seat"):
    """I have computed my gradient: am I in this step's sum? (section 10.6)"""

    step: Count


class AskStats(Message, frozen=True, tag="stats"):
    """What has the job counted?"""


class Describe(Message, frozen=True, tag="describe"):
    """What jobs are there? From anybody on the server's host or on a worker's. (section 9.3)"""

    job: Octet
    rank: Annotated[int, Meta(ge=0, le=MOST_RANKS)]
    pad: str = ""
    """As long as the longest answer, so that a forged question makes nobody send more than its forger did."""


Request = (
    Join
    | Alive
    | Leave
    | Report
    | ReportNarrow
    | Fetch
    | Claim
    | Offer
    | Idle
    | TakeSeat
    | AskStats
    | AskLateness
    | Describe
)


# --- from the parameter server --------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    """The job runs, and this is your place in it."""

    job: Octet
    epoch: Octet
    rank: Rank
    world_size: Ranks
    micro_batches: Contributions
    lanes: Annotated[int, Meta(ge=1, le=4096)]
    slot_base: Annotated[int, Meta(ge=0, le=MOST_SLOTS - 1)]
    slot_count: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    first_seq: Seq
    data_ip: Annotated[str, Meta(max_length=15)]
    """Where contributions go; empty: to the parameter server, because the switch is on the way to it."""
    data_port: Port
    alive_every_us: Annotated[int, Meta(ge=1_000, le=60_000_000)]
    help_mode: HelpMode = field(name="grade")
    levels: Annotated[int, Meta(ge=0, le=8)]
    """Switches that aggregate between a worker and the parameter server; 0: it sums alone."""
    leaf_ranks: Bitmap
    """Ranks below the same leaf."""
    seats: Seats = 0
    contribution_bits: Annotated[int, Meta(ge=1, le=MOST_CONTRIBUTIONS)] = field(
        default=CONTRIBUTION_BITS, name="contributions"
    )
    """How many contributions the bitmaps of packets have bits for."""

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
    """Not all have joined, or the switches do not know the job yet."""

    missing: list[Rank]
    refusal: Annotated[str, Meta(max_length=MAX_BYTES)] | None = None
    """Why the switches did not take the job the last time."""
    occupied: Text | None = None
    """Where another worker has this rank, and was heard of a short while ago."""
    differs: Text | None = None
    """Why a rank that is missing was refused: it does not say the same as those who are there."""


class Refused(Message, frozen=True, tag="refused"):
    """The request makes no sense, or cannot be granted."""

    reason: Annotated[str, Meta(max_length=MAX_BYTES)]


class Progress(Message, frozen=True, tag="alive"):
    """Answers a sign of life."""

    passed: Seq
    """Every rank has passed what is before it."""
    ahead: Seq | None = None
    """Some rank has: what is before it is complete. None: not said."""


class Left(Message, frozen=True, tag="left"):
    """You have left the job."""


class Seated(Message, frozen=True, tag="seated"):
    """You are in the sum, with the contributions of this seat."""

    seat: Rank


class Taken(Message, frozen=True, tag="taken"):
    """You are not in the sum: all seats are others'."""


class Recall(Message, frozen=True, tag="recall"):
    """Send me these results, which you have and I missed. Sent once."""

    first: Seq
    count: Annotated[int, Meta(ge=1, le=MAX_FETCH)]


class Failure(Message, frozen=True, tag="failed"):
    """The job has failed: told to everybody at once, then in answer to anything."""

    reason: Annotated[str, Meta(max_length=32)]
    """lost, restarted, mismatch, not_finite, changed, timed_out, narrow, refused, or a later version's."""
    ranks: list[Rank] = field(default_factory=list)
    detail: Annotated[str, Meta(max_length=MAX_BYTES)] = ""
    operation: Count | None = None
    """This and the next three: as a rank has reported them."""
    values: tuple[Count, Count] | None = None
    waited_us: Microseconds | None = None
    switch: Text | None = None
    unheard: Text | None = None
    """Of a time-out: the switch's address, where no rank has had an answer of it."""


class FailureSummary(Checked, frozen=True, kw_only=True):
    reason: str
    ranks: Bitmap
    detail: str


class MemberStatus(Checked, frozen=True, array_like=True):
    """A worker as the parameter server sees it; a list without names, because every byte counts."""

    rank: Rank
    ip: str
    port: Port
    heard_ms: int
    """Since it was last heard of."""
    still_ms: int
    """Since it last made progress, or joined."""
    ahead: int | None
    """Its oldest fragment that has no result, counted from the oldest of all; None: it has not said yet."""
    waiting: bool
    """It has sums under way."""
    given: Bitmap
    """Contributions to the oldest of these sums that it has handed to its transport."""
    held: Bitmap | None
    """Contributions that the switch held of its oldest fragment when it was last asked; None: not asked."""
    left: bool

    @property
    def address(self) -> tuple[str, int]:
        return self.ip, self.port


class Description(Message, frozen=True, tag="description"):
    """One job, and as many of its members as fit."""

    job: Octet | None = None
    """None: there is none with this number, or a higher one."""
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""
    epoch: Octet = 0
    state: Annotated[str, Meta(max_length=32)] = ""
    world_size: Annotated[int, Meta(ge=0, le=MOST_RANKS)] = 0
    micro_batches: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = 0
    seats: Seats = 0
    joined: Bitmap = 0
    oldest: Seq = 0
    failure: FailureSummary | None = None
    members: list[MemberStatus] = field(default_factory=list)
    switch: Annotated[str, Meta(max_length=21)] = ""
    """Where contributions go, HOST:PORT; empty: to the parameter server, with the switch on the way."""
    next: tuple[Octet, Annotated[int, Meta(ge=0, le=MOST_RANKS)]] | None = None
    """Job and rank to ask for the rest; None: that was all."""


class JobCounters(Struct):
    """What the parameter server counts of a job while it goes on. (section 8)"""

    results_kept: int = 0
    """Sums that a switch finished."""
    finished_here: int = 0
    """Sums that the parameter server finished."""
    added: int = 0
    """Packets added here: collisions, partial sums, hand-overs."""
    duplicates: int = 0
    """Contributions and results that were there already, or are not needed any more."""
    overlaps: int = 0
    probes: int = 0
    served: int = 0
    """Stored results sent to workers that missed them."""
    malformed: int = 0
    foreign: int = 0
    stale: int = 0
    beyond: int = 0
    questions: int = 0
    """About help, answered by the ledger; an answer that is repeated does not count again."""


class JobStats(  # type: ignore[misc]  # what is told does not change any more, though what is counted does
    JobCounters, Message, frozen=True, tag="stats", omit_defaults=False
):
    """... as it tells them, and what the ledger of help has counted."""

    helped_micro_batches: int = 0
    backups: int = 0


Reply = (
    Welcome
    | Waiting
    | Refused
    | Progress
    | Left
    | Granted
    | Work
    | Nothing
    | Noted
    | Seated
    | Taken
    | Revoke
    | Recall
    | Failure
    | Description
    | JobStats
    | JobLateness
)


# --- bytes ----------------------------------------------------------------------------------------------------------------

M = TypeVar("M")
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode(message: Message, *, request: int, job: int = 0, epoch: int = 0, reply: bool = False) -> bytes:
    """One datagram. Requests that are shorter than answers may be have spaces behind their body.

    Args: request: number by which the reply is recognised, 32 bits; 0 where none is expected.
    """
    body = msgspec.json.encode(message)
    if not reply:
        body = body.ljust(least_bytes(message) - HEADER_BYTES)
    packet = pack(Kind.CONTROL, body=body, seq=request, job=job, epoch=epoch, flags=Flag.FROM_PS if reply else 0)
    if len(packet) > MAX_BYTES:
        raise ValueError(f"a control message of {len(packet)} bytes exceeds {MAX_BYTES}")
    return packet


def least_bytes(request: Message) -> int:
    """How long a request must be: a question to join as long as its way carries, if that is less than JOIN_BYTES."""
    return min(JOIN_BYTES, request.mtu - IP_UDP_BYTES) if isinstance(request, Join) else LEAST_REQUEST_BYTES


def decode_request(packet: bytes) -> Request:
    """What a control packet asks, whose header has been checked. Raises: MalformedError."""
    return _decode(_requests, packet)


def decode_reply(packet: bytes) -> Reply:
    """What the parameter server says in a control packet, whose header has been checked. Raises: MalformedError."""
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
    """What it is called on the wire."""
    return str(message.__struct_config__.tag)


def plain(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text that fits in a control message, whatever is in it: printable ASCII, as JSON no longer than that."""
    clean = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:longest])
    lengths = itertools.accumulate(2 if c in '"\\' else 1 for c in clean)  # JSON escapes these two
    return clean[: sum(length <= longest for length in lengths)]
