"""What the parameter server logs, in a log for each job: one class an event, as in `rank_events`. (docs/log.md)"""

from typing import Annotated, Literal

from msgspec import Meta, field

from sa_atp.protocol.log.event import (
    Address,
    Contributions,
    Count,
    Epoch,
    Event,
    Fragments,
    MicroBatches,
    Microseconds,
    Rank,
    Ranks,
    Seq,
    Step,
    Words,
    Yes,
    called,
)

# --- membership -----------------------------------------------------------------------------------------------------------


@called("membership:joined")
class Joined(Event, frozen=True):
    """A rank has asked to be in the job. (protocol section 7.1)"""

    rank: Rank
    epoch: Epoch
    address: Address
    missing: Ranks


@called("membership:refused")
class TurnedAway(Event, frozen=True):
    """A rank that asks to join is refused, because its terms differ from those of the other ranks."""

    rank: Rank
    why: Words


@called("membership:doubted")
class Doubted(Event, frozen=True):
    """Ranks are silent for longer than usual; the server asks whether their ports are open. (protocol section 7.4)"""

    ranks: Ranks


@called("membership:dropped")
class Dropped(Event, frozen=True):
    """Ranks have gone before the job began, and lose their places."""

    ranks: Ranks
    why: Words


@called("membership:leave_asked")
class LeaveAsked(Event, frozen=True):
    """A rank announces that it will contribute no more, and asks to leave."""

    rank: Rank
    oldest: Seq


@called("membership:let_go")
class LetGo(Event, frozen=True):
    """A rank may leave, because no other rank needs its sums. (protocol section 7.6)"""

    rank: Rank


@called("membership:job_failed")
class JobFailed(Event, frozen=True):
    """The job's epoch is over, and every rank is told why: ranks are lost or have restarted, or disagree."""

    epoch: Epoch
    reason: Annotated[str, Meta(description="the reason in the message (protocol section 9.2)")]
    ranks: Ranks
    why: Words


@called("membership:job_ended")
class JobEnded(Event, frozen=True):
    """All ranks have left."""

    epoch: Epoch


# --- switches -------------------------------------------------------------------------------------------------------------


@called("switch:install_asked")
class InstallAsked(Event, frozen=True):
    """All ranks have joined; the job is to be installed on the switches."""

    epoch: Epoch
    slot_base: Count
    slot_count: Count


@called("switch:installed")
class Installed(Event, frozen=True):
    """The job is installed on all switches, and its ranks are admitted."""

    epoch: Epoch
    leaves: Annotated[list[Ranks], Meta(description="for each leaf, the ranks below it")] | None = None


@called("switch:refused")
class InstallRefused(Event, frozen=True):
    """A switch cannot take the job."""

    epoch: Epoch
    why: Words


@called("switch:removed")
class Removed(Event, frozen=True):
    """Switches may forget the job's epoch."""

    epoch: Epoch


@called("switch:restarted")
class SwitchRestarted(Event, frozen=True):
    """A check, once a second, found a switch without its program or jobs, as after a restart, out of reach, or with another
    controller. Logged for all jobs.
    """

    why: Words


# --- sums -----------------------------------------------------------------------------------------------------------------


@called("sum:finished_here")
class FinishedHere(Event, frozen=True):
    """The parameter server has completed sums that the switch had no slot for, or handed over. (protocol section 7.2)"""

    first: Seq
    last: Seq
    count: Fragments


@called("sum:seat")
class Seat(Event, frozen=True):
    """A rank asks for a seat in a step's sum; without a seat in the answer the rank is not in the sum. (section 10.6)"""

    step: Step
    rank: Rank
    seat: Annotated[int, Meta(ge=0, description="a seat")] | None = None
    empty: Annotated[int, Meta(ge=0, description="seats for which the rank contributes zeros, as a bitmap")] | None = (
        None
    )


@called("recovery:fetched")
class Fetched(Event, frozen=True):
    """A rank asks for results that others have. (protocol section 5.7)"""

    rank: Rank
    first: Seq
    count: Fragments


# --- help -----------------------------------------------------------------------------------------------------------------

PerRank = list[int]


@called("help:decided")
class Decided(Event, frozen=True):
    """The ledger answers a rank's report. The event has the report, the ledger's view of all ranks, and the assignment.

    late: the report was overtaken by a newer one, so its answer assigns nothing. (protocol section 10.2)
    """

    step: Step
    rank: Rank
    asked: Literal["claim", "offer", "idle"]
    late: Yes = False
    begun: MicroBatches | None = None
    held: MicroBatches | None = None
    busy_us: Microseconds | None = None
    until: MicroBatches | None = None
    over: Yes = False
    revokes: MicroBatches | None = None
    missing: Contributions | None = None
    work: Contributions | None = None
    copies: Contributions | None = None
    again_us: Microseconds = 0
    each_us: Annotated[PerRank, Meta(description="of each rank, microseconds for a micro-batch; 0: not known")] = field(
        default_factory=list
    )
    all_begun: Annotated[
        PerRank, Meta(description="of each rank, micro-batches of its own shard that it has begun")
    ] = field(default_factory=list)
    all_held: Annotated[PerRank, Meta(description="of each rank, micro-batches of its own shard that it holds")] = (
        field(default_factory=list)
    )
    free: Annotated[PerRank, Meta(description="of each shard, micro-batches that no rank holds")] = field(
        default_factory=list
    )
    done_us: Annotated[
        PerRank, Meta(description="of each rank, when it should have computed all that it has, by the log's clock")
    ] = field(default_factory=list)
    link_us: Annotated[
        PerRank, Meta(description="of each rank, microseconds that a contribution keeps its link busy")
    ] = field(default_factory=list)
    answer_us: Annotated[PerRank, Meta(description="of each rank, microseconds that an answer takes to reach it")] = (
        field(default_factory=list)
    )


@called("help:told")
class Told(Event, frozen=True):
    """The ledger says something to a rank that has not reported just now: it has work, or asks for micro-batches back.

    revokes: how much of its own shard the rank is thought to hold; it gives up what it need not. (protocol section 10.3)
    """

    step: Step
    rank: Rank
    until: MicroBatches | None = None
    over: Yes = False
    revokes: MicroBatches | None = None
    work: Contributions | None = None
    copies: Contributions | None = None
    again_us: Microseconds = 0
