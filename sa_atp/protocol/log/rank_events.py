"""What a rank logs: one class an event, whose docstring and types are its description. (docs/log.md)"""

from typing import Annotated, Literal

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
    called,
)

# --- membership -----------------------------------------------------------------------------------------------------------


@called("membership:joining")
class JoinAsked(Event, frozen=True):
    """The rank asks the parameter server to be in a job. (protocol section 7.1)"""

    job: Words
    rank: Rank
    world_size: Count
    micro_batches: Count
    help: Literal["none", "clone", "steal"]
    seats: Count
    server: Address


@called("membership:waiting")
class JoinWaits(Event, frozen=True):
    """The job cannot begin yet. Logged when the reason changes."""

    missing: Ranks
    refusal: Words | None = None
    occupied: Address | None = None


@called("membership:welcomed")
class Welcomed(Event, frozen=True):
    """The job runs, on these terms."""

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


@called("membership:stood_still")
class StoodStill(Event, frozen=True):
    """The process did not run for a while; this time counts as no other process's silence. (protocol section 11)"""

    for_us: Microseconds


@called("membership:giving_up")
class GivingUp(Event, frozen=True):
    """The rank cannot go on, and asks the parameter server to tell every rank why."""

    error: Annotated[str, Meta(description="a class of protocol/job/errors.py")]
    why: Words


@called("membership:ended")
class ConnectionEnded(Event, frozen=True):
    """The connection is over, by an error, or because the program has closed it: sums that are open fail with this."""

    error: Annotated[str, Meta(description="a class of protocol/job/errors.py")]
    why: Words


@called("membership:leaving")
class Leaving(Event, frozen=True):
    """The rank announces that it will contribute no more, and stays until no other rank can need its sums. (section 7.6)"""

    oldest: Seq


# --- sums -----------------------------------------------------------------------------------------------------------------


@called("sum:begun")
class SumBegun(Event, frozen=True):
    """The program begins a sum."""

    operation: Operation
    values: Count
    key: Annotated[str, Meta(description="the tensor's name from step to step, as text")] | None = None


@called("sum:opened")
class SumOpened(Event, frozen=True):
    """A sum's turn has come: its fragments may leave. (protocol section 5.1)"""

    operation: Operation
    first_seq: Seq
    fragments: Fragments
    chunks: Count
    foretold: Annotated[int, Meta(ge=0, description="chunks whose exponent is that of an earlier sum with the key")]


@called("sum:contributed")
class Contributed(Event, frozen=True):
    """The program gives values for a sum: its own, or what it computed for others."""

    operation: Operation
    contributions: Contributions
    ranks: Ranks
    on_behalf: Yes
    past_leaf: Yes


@called("sum:streamed")
class Streamed(Event, frozen=True):
    """Compiled code has carried a sum on by itself for a while. (protocol section 5.8)"""

    sent: Fragments
    results: Fragments
    answers: Annotated[int, Meta(ge=0, description="questions that were answered meanwhile")]


@called("sum:led")
class Led(Event, frozen=True):
    """All of the rank's own fragments are in the switch, and others' are missing: it leads, they straggle."""

    operation: Operation
    missing: Contributions
    ranks: Ranks
    pending: Annotated[float, Meta(ge=0, le=1, description="share of the fragments whose sum is not known")]


@called("sum:done")
class SumDone(Event, frozen=True):
    """A sum is complete. The event also has the windows and the round trip at that time."""

    operation: Operation
    redone: Annotated[int, Meta(ge=0, description="chunks that were done again")]
    network: Fragments
    slots: Fragments
    round_trip_us: Microseconds


# --- chunks ---------------------------------------------------------------------------------------------------------------


@called("chunk:scale_agreed")
class ScaleAgreed(Event, frozen=True):
    """A chunk's exponent is known: gathered from all ranks, or read off a result of ranks that are ahead. (section 6)"""

    operation: Operation
    chunk: Chunk
    attempt: Attempt
    exponent: Exponent
    source: Literal["gathered", "result"]


@called("chunk:redone")
class ChunkRedone(Event, frozen=True):
    """A chunk is done again with an exponent that is gathered: a value did not fit, or the exponent was too coarse."""

    operation: Operation
    chunk: Chunk
    exponent: Exponent
    why: Literal["does not fit", "too coarse"]


@called("chunk:accepted")
class ChunkAccepted(Event, frozen=True):
    """The sum of a chunk that was done again is accepted. Chunks that were done once are not logged."""

    operation: Operation
    chunk: Chunk
    exponent: Exponent


# --- recovery -------------------------------------------------------------------------------------------------------------


@called("recovery:window_changed")
class WindowChanged(Event, frozen=True):
    """A window shrank, or slow start is over. Growth with each result is not logged. (protocol section 5.2)

    why: `loss`: fragments were lost; `mark`: a round had congestion marks; `collision`: other jobs held the slots in a
    round; `queue`: slow start is over; `stream`: compiled code shrank it.
    """

    why: Literal["loss", "mark", "collision", "queue", "stream"]
    network: Fragments
    slots: Fragments
    network_before: Fragments
    slots_before: Fragments


@called("recovery:lost")
class Lost(Event, frozen=True):
    """Fragments count as lost, and will be sent again. (protocol section 5.3)

    rule: `order`: a fragment that was sent later is complete; `question`: the switch does not hold them.
    """

    operation: Operation
    contributions: Contributions
    rule: Literal["order", "question"]
    first: Place
    last: Place
    count: Fragments


@called("recovery:resent")
class Resent(Event, frozen=True):
    """Fragments are sent again."""

    operation: Operation
    contributions: Contributions
    first: Place
    last: Place
    count: Fragments
    hand_over: Annotated[int, Meta(ge=0, description="fragments of these that make the switch hand its slot over")]


@called("recovery:silence")
class Silence(Event, frozen=True):
    """The rank has received nothing for longer than its time-out, and asks what its slots hold. (protocol section 5.4)"""

    timeouts: Annotated[int, Meta(ge=1, description="consecutive time-outs")]
    awaited: Fragments


@called("recovery:leaf_left")
class LeafLeft(Event, frozen=True):
    """A rank below another leaf helps: from now on this sum's fragments bypass the rank's leaf. (section 10.5)"""

    operation: Operation
    contributions: Contributions


@called("recovery:fetch_asked")
class FetchAsked(Event, frozen=True):
    """The rank asks the parameter server for results that others have. (protocol section 5.7)"""

    operation: Operation
    first: Seq
    count: Fragments


# --- questions ------------------------------------------------------------------------------------------------------------


@called("question:asked")
class FragmentsAsked(Event, frozen=True):
    """The rank asks by probes what the switch holds of these fragments. (protocol section 5.4)"""

    operation: Operation
    first: Place
    last: Place
    count: Fragments
    tells: Annotated[bool, Meta(description="whether the answer is to tell which ranks the sum waits for")]


@called("question:answered")
class Answered(Event, frozen=True):
    """A probe is answered: these contributions are held."""

    operation: Operation
    fragment: Place
    held: Contributions
    by: Literal["switch", "parameter server"]
    after_us: Microseconds


@called("question:overdue")
class Overdue(Event, frozen=True):
    """A probe or its answer counts as lost, because a later probe was answered."""

    operation: Operation
    fragment: Place
    after_us: Microseconds


# --- help -----------------------------------------------------------------------------------------------------------------

RequestNumber = Annotated[int, Meta(ge=0, description="number of the message; its answer has the same")]


@called("help:asked")
class HelpAsked(Event, frozen=True):
    """The rank reports: while it computes its own shard (claim), offering to help (offer), or done with it (idle)."""

    step: Step
    what: Literal["claim", "offer", "idle"]
    number: RequestNumber
    took_us: Microseconds = 0
    begun: MicroBatches | None = None
    held: MicroBatches | None = None
    missing: Contributions | None = None
    busy_us: Microseconds | None = None


@called("help:answered")
class HelpAnswered(Event, frozen=True):
    """The ledger's answer: what the rank holds of its own shard, and work for other shards; or, with number 0, what the
    ledger says by itself: work, or that the rank is to give up what it need not hold.

    came: there was an answer before the step was over.
    """

    step: Step
    number: RequestNumber
    came: Yes = True
    revokes: MicroBatches | None = None
    until: MicroBatches | None = None
    over: Yes = False
    work: Contributions | None = None
    copies: Contributions | None = None
    again_us: Microseconds = 0
