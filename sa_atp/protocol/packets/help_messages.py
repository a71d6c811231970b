"""Control messages about help: reports and requests of workers, and answers of the ledger. (protocol section 10)"""

from typing import Annotated

from msgspec import Meta, field

from sa_atp.protocol.packets.message_fields import Bitmap, Count, Message, Microseconds, Rank
from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS

# --- from a worker
# --------------------------------------------------------------------------------------------------------


class AboutStep(Message, frozen=True):
    """Common fields of questions about help: the sender's report of itself."""

    step: Count
    took_us: Microseconds = 0
    """How long one of its own micro-batches took, as a mean since its last report; 0: there was none."""
    spent_us: Microseconds = 0
    """Time since it began the step; 0: it has not begun the step, or is done with it."""
    answer_us: Microseconds = 0
    """How long answers to its questions take; 0: not known."""
    sent_us: Microseconds = 0
    """How long its whole contribution takes to leave, from the last sum to which it had sent an eighth or more."""
    weight: Annotated[int, Meta(ge=1, le=1 << 30)] = 1
    """Work in a micro-batch of its own shard, in a unit common to all ranks."""


class Claim(AboutStep, frozen=True, kw_only=True, tag="claim"):
    """Reports progress in the sender's own shard, gives up what it does not hold, and asks for more. (section 10.2)"""

    begun: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    """How many micro-batches of its own shard it has begun."""
    held: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    """How many it holds, from the first on, those that it has begun included."""
    since_us: Microseconds | None = None
    """For how long it has computed the last one that it has begun; None: that one is done."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.begun > self.held:
            raise ValueError("begun must be at most held")


class Offer(AboutStep, frozen=True, kw_only=True, tag="ask"):
    """A leader offers to compute for others."""

    missing: Bitmap
    """Contributions that its sums lack, as far as it knows."""
    busy_us: Microseconds = 0
    """For how long its present work will still take."""
    pending: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Thousandths of the fragments whose sum it lacks; None: not known."""
    given: Bitmap = 0
    """Contributions that it has been given to compute in this step: others that the server has given it were lost."""


class Idle(AboutStep, frozen=True, kw_only=True, tag="idle"):
    """Says that the sender has computed all that it held, and sends it now."""


# --- from the parameter server
# --------------------------------------------------------------------------------------------


class Revoke(Message, frozen=True, tag="revoke"):
    """A revocation: asks an owner for its progress, and to give up what it need not hold. Answered by a Claim; sent
    once.
    """

    step: Count
    held: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = 0
    """How much of its own shard the owner is thought to hold. An earlier Claim with less answers the revocation as
    well.
    """


class Call(Message, frozen=True, tag="call"):
    """Work for a worker that has offered to help before; sent once."""

    step: Count
    shard: Rank
    micro_batches: Annotated[
        list[Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS - 1)]], Meta(max_length=MOST_CONTRIBUTIONS)
    ]
    backup: bool = False
    """As in Work."""
    again_us: Microseconds = 0
    """As in Work."""


class AboutHelp(Message, frozen=True):
    """Common fields of the answers to Claim, Offer and Idle."""

    bypass_leaf: bool | None = field(default=None, name="past_leaf")
    """With two levels: whether the worker's data of this step has to pass its leaf. (section 10.5)"""
    hold: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = MOST_CONTRIBUTIONS
    """Advice for the steps that follow: how many of its own micro-batches the worker should hold at the beginning."""
    helps: bool = False
    """Advice for the steps that follow: there will be work for it as a helper, so it should offer before it is idle."""


class Granted(AboutHelp, frozen=True, kw_only=True, tag="granted"):
    """Answers Claim: how many of its own micro-batches the worker holds now."""

    until: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    over: bool = False
    """Nothing more will be granted: the rest goes to helpers."""


class Work(AboutHelp, frozen=True, kw_only=True, tag="work"):
    """Answers Offer: micro-batches to compute for another rank."""

    shard: Rank
    micro_batches: Annotated[
        list[Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS - 1)]], Meta(max_length=MOST_CONTRIBUTIONS)
    ]
    backup: bool = False
    """Their owner holds them, but is silent."""
    again_us: Microseconds = 0
    """After how long it should ask for more; 0: when it begins with these."""


class Nothing(AboutHelp, frozen=True, kw_only=True, tag="nothing"):
    """Answers Offer: there is no work for the leader yet. If there is some later, it is called."""

    again_us: Microseconds = 12_000
    """After how long it should ask again, if it is not called before."""


class Noted(AboutHelp, frozen=True, tag="idle"):
    """Answers Idle: the ledger has noted that the rank has nothing left to compute."""


HelpAnswer = Granted | Work | Nothing | Noted
