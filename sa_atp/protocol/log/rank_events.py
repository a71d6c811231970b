"""What a rank logs: one class an event, whose docstring and types are its description. (docs/log.md)"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from sa_atp.protocol.log.event import (
    Address,
    Attempt,
    Chunk,
    Contributions,
    Count,
    Epoch,
    Event,
    Exponent,
    Fragments,
    MicroBatches,
    Microseconds,
    Operation,
    Place,
    Rank,
    Ranks,
    Seq,
    Step,
    Words,
    Yes,
)

# --- membership -----------------------------------------------------------------------------------------------------------


class JoinAsked(Event, frozen=True):
    """The rank asks the parameter server to be in a job. (protocol section 7.1)"""

    name: ClassVar[str] = "membership:joining"
    job: Words
    rank: Rank
    world_size: Count
    micro_batches: Count
    help: Literal["none", "clone", "steal"]
    seats: Count
    server: Address


class JoinWaits(Event, frozen=True):
    """The job cannot begin yet. Logged when the reason changes."""

    name: ClassVar[str] = "membership:waiting"
    missing: Ranks
    refusal: Words | None = None
    occupied: Address | None = None


class Welcomed(Event, frozen=True):
    """The job runs, on these terms."""

    name: ClassVar[str] = "membership:welcomed"
    number: Annotated[int, Meta(ge=1, le=255, description="the job's number, in packets")]
    epoch: Epoch
    lanes: Count
    contribution_bits: Count
    slot_base: Count
    slot_count: Count
    first_seq: Seq
    levels: Count
    data: Address
    alive_every_us: Microseconds


class StoodStill(Event, frozen=True):
    """The process did not run for a while; this time counts as no other process's silence. (protocol section 11)"""

    name: ClassVar[str] = "membership:stood_still"
    for_us: Microseconds


class GivingUp(Event, frozen=True):
    """The rank cannot go on, and asks the parameter server to tell every rank why."""

    name: ClassVar[str] = "membership:giving_up"
    error: Annotated[str, Meta(description="a class of protocol/job/errors.py")]
    why: Words


class ConnectionEnded(Event, frozen=True):
    """The connection is over, by an error, or because the program has closed it: sums that are open fail with this."""

    name: ClassVar[str] = "membership:ended"
    error: Annotated[str, Meta(description="a class of protocol/job/errors.py")]
    why: Words


class Leaving(Event, frozen=True):
    """The rank announces that it will contribute no more, and stays until no other rank can need its sums. (section 7.6)"""

    name: ClassVar[str] = "membership:leaving"
    oldest: Seq


# --- sums -----------------------------------------------------------------------------------------------------------------


class SumBegun(Event, frozen=True):
    """The program begins a sum."""

    name: ClassVar[str] = "sum:begun"
    operation: Operation
    values: Count
    key: Annotated[str, Meta(description="the tensor's name from step to step, as text")] | None = None


class SumOpened(Event, frozen=True):
    """A sum's turn has come: its fragments may leave. (protocol section 5.1)"""

    name: ClassVar[str] = "sum:opened"
    operation: Operation
    first_seq: Seq
    fragments: Fragments
    chunks: Count
    foretold: Annotated[int, Meta(ge=0, description="chunks whose exponent is that of an earlier sum with the key")]


class Contributed(Event, frozen=True):
    """The program gives values for a sum: its own, or what it computed for others."""

    name: ClassVar[str] = "sum:contributed"
    operation: Operation
    contributions: Contributions
    ranks: Ranks
    on_behalf: Yes
    past_leaf: Yes


class Streamed(Event, frozen=True):
    """Compiled code has carried a sum on by itself for a while. (protocol section 5.8)"""

    name: ClassVar[str] = "sum:streamed"
    sent: Fragments
    results: Fragments
    answers: Annotated[int, Meta(ge=0, description="questions that were answered meanwhile")]


class Led(Event, frozen=True):
    """All of the rank's own fragments are in the switch, and others' are missing: it leads, they straggle."""

    name: ClassVar[str] = "sum:led"
    operation: Operation
    missing: Contributions
    ranks: Ranks
    pending: Annotated[float, Meta(ge=0, le=1, description="share of the fragments whose sum is not known")]


class SumDone(Event, frozen=True):
    """A sum is complete. The event also has the windows and the round trip at that time."""

    name: ClassVar[str] = "sum:done"
    operation: Operation
    redone: Annotated[int, Meta(ge=0, description="chunks that were done again")]
    network: Fragments
    slots: Fragments
    round_trip_us: Microseconds


# --- chunks ---------------------------------------------------------------------------------------------------------------


class ScaleAgreed(Event, frozen=True):
    """A chunk's exponent is known: gathered from all ranks, or read off a result of ranks that are ahead. (section 6)"""

    name: ClassVar[str] = "chunk:scale_agreed"
    operation: Operation
    chunk: Chunk
    attempt: Attempt
    exponent: Exponent
    source: Literal["gathered", "result"]


class ChunkRedone(Event, frozen=True):
    """A chunk is done again with an exponent that is gathered: a value did not fit, or the exponent was too coarse."""

    name: ClassVar[str] = "chunk:redone"
    operation: Operation
    chunk: Chunk
    exponent: Exponent
    why: Literal["does not fit", "too coarse"]


class ChunkAccepted(Event, frozen=True):
    """The sum of a chunk that was done again is accepted. Chunks that were done once are not logged."""

    name: ClassVar[str] = "chunk:accepted"
    operation: Operation
    chunk: Chunk
    exponent: Exponent


# --- recovery -------------------------------------------------------------------------------------------------------------


class WindowChanged(Event, frozen=True):
    """A window shrank, or slow start is over. Growth with each result is not logged. (protocol section 5.2)

    why: `loss`: fragments were lost; `mark`: a round had congestion marks; `collision`: other jobs held the slots in a
    round; `queue`: slow start is over; `stream`: compiled code shrank it.
    """

    name: ClassVar[str] = "recovery:window_changed"
    why: Literal["loss", "mark", "collision", "queue", "stream"]
    network: Fragments
    slots: Fragments
    network_before: Fragments
    slots_before: Fragments


class Lost(Event, frozen=True):
    """Fragments count as lost, and will be sent again. (protocol section 5.3)

    rule: `order`: a fragment that was sent later is complete; `question`: the switch does not hold them.
    """

    name: ClassVar[str] = "recovery:lost"
    operation: Operation
    contributions: Contributions
    rule: Literal["order", "question"]
    first: Place
    last: Place
    count: Fragments


class Resent(Event, frozen=True):
    """Fragments are sent again."""

    name: ClassVar[str] = "recovery:resent"
    operation: Operation
    contributions: Contributions
    first: Place
    last: Place
    count: Fragments
    hand_over: Annotated[int, Meta(ge=0, description="fragments of these that make the switch hand its slot over")]


class Silence(Event, frozen=True):
    """The rank has received nothing for longer than its time-out, and asks what its slots hold. (protocol section 5.4)"""

    name: ClassVar[str] = "recovery:silence"
    timeouts: Annotated[int, Meta(ge=1, description="consecutive time-outs")]
    awaited: Fragments


class LeafLeft(Event, frozen=True):
    """A rank below another leaf helps: from now on this sum's fragments bypass the rank's leaf. (section 10.5)"""

    name: ClassVar[str] = "recovery:leaf_left"
    operation: Operation
    contributions: Contributions


class FetchAsked(Event, frozen=True):
    """The rank asks the parameter server for results that others have. (protocol section 5.6)"""

    name: ClassVar[str] = "recovery:fetch_asked"
    operation: Operation
    first: Seq
    count: Fragments


# --- questions ------------------------------------------------------------------------------------------------------------


class FragmentsAsked(Event, frozen=True):
    """The rank asks by probes what the switch holds of these fragments. (protocol section 5.4)"""

    name: ClassVar[str] = "question:asked"
    operation: Operation
    first: Place
    last: Place
    count: Fragments
    tells: Annotated[bool, Meta(description="whether the answer is to tell which ranks the sum waits for")]


class Answered(Event, frozen=True):
    """A probe is answered: these contributions are held."""

    name: ClassVar[str] = "question:answered"
    operation: Operation
    fragment: Place
    held: Contributions
    by: Literal["switch", "parameter server"]
    after_us: Microseconds


class Overdue(Event, frozen=True):
    """A probe or its answer counts as lost, because a later probe was answered."""

    name: ClassVar[str] = "question:overdue"
    operation: Operation
    fragment: Place
    after_us: Microseconds


# --- help -----------------------------------------------------------------------------------------------------------------

RequestNumber = Annotated[int, Meta(ge=0, description="number of the message; its answer has the same")]


class HelpAsked(Event, frozen=True):
    """The rank reports its progress, and asks for more of its shard (claim), others' work (offer), or nothing (idle)."""

    name: ClassVar[str] = "help:asked"
    step: Step
    what: Literal["claim", "offer", "idle"]
    number: RequestNumber
    took_us: Microseconds = 0
    begun: MicroBatches | None = None
    held: MicroBatches | None = None
    missing: Contributions | None = None
    busy_us: Microseconds | None = None


class HelpAnswered(Event, frozen=True):
    """The ledger's answer: micro-batches of the rank's own shard (granted), work for other shards, or nothing."""

    name: ClassVar[str] = "help:answered"
    step: Step
    what: Literal["granted", "work", "nothing", "noted", "no answer"]
    number: RequestNumber
    until: MicroBatches | None = None
    over: Yes | None = None
    shard: Rank | None = None
    micro_batches: Annotated[list[int], Meta(description="numbers of micro-batches in the shard")] | None = None
    backup: Yes | None = None
    again_us: Microseconds | None = None


class HelpRevoked(Event, frozen=True):
    """The parameter server takes back micro-batches of the rank's own shard that it has not begun."""

    name: ClassVar[str] = "help:revoked"
    step: Step
    held: MicroBatches
