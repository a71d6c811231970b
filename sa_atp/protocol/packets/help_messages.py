"""Control messages about help: what workers say of their steps, and what the ledger answers. (protocol section 10)"""

from typing import Annotated

from msgspec import Meta, field

from sa_atp.protocol.packets.message_fields import Bitmap, Count, Message, Microseconds, Rank
from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS

# --- from a worker --------------------------------------------------------------------------------------------------------


class AboutStep(Message, frozen=True):
    """What questions about help have in common: how their sender is."""

    step: Count
    took_us: Microseconds = 0
    """How long one of its micro-batches took, mean of those since it last said so; 0: there was none."""
    spent_us: Microseconds = 0
    """For how long it has been in this step; 0: it is not in it yet, or not any more."""
    answer_us: Microseconds = 0
    """How long answers to its questions take to come; 0: not known."""
    sent_us: Microseconds = 0
    """How long its whole contribution takes to leave, by the last sum to which it had sent an eighth or more."""
    weight: Annotated[int, Meta(ge=1, le=1 << 30)] = 1
    """How much work a micro-batch of its shard is, beside one of another shard; took_us is what one of its own takes."""


class Claim(AboutStep, frozen=True, kw_only=True, tag="claim"):
    """Of my own shard I have begun so many and hold so many; the rest is yours. May I have more? (section 10.2)"""

    begun: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    held: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    """Its own from the first one on, those that it has begun included."""
    since_us: Microseconds | None = None
    """For how long it has been at the last one that it has begun; None: that one is done."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.begun > self.held:
            raise ValueError("begun must be at most held")


class Offer(AboutStep, frozen=True, kw_only=True, tag="ask"):
    """I have nothing to do: what may I do for others?"""

    missing: Bitmap
    """Contributions that the sums lack, as far as is known."""
    busy_us: Microseconds = 0
    """For how long the sender is still at what it has to do before."""
    pending: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Thousandths of the fragments whose sum is missing."""


class Idle(AboutStep, frozen=True, kw_only=True, tag="idle"):
    """I have computed what I held, and send it now."""


# --- from the parameter server --------------------------------------------------------------------------------------------


class Revoke(Message, frozen=True, tag="revoke"):
    """Say how far you are in this step, and leave to others what you need not hold: answered by a Claim. Sent once."""

    step: Count
    held: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = 0
    """What its receiver is thought to hold of its own. Where it holds less and has said so, that answers this as well."""


class AboutHelp(Message, frozen=True):
    """What answers to Claim, Offer and Idle have in common."""

    bypass_leaf: bool | None = field(default=None, name="past_leaf")
    """With two levels: whether data of this step has to pass the leaf. (section 10.5)"""
    hold: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)] = MOST_CONTRIBUTIONS
    """In the steps that follow, how many of its own micro-batches it should hold from the beginning."""
    helps: bool = False
    """In the steps that follow there will be something to do for others: it should ask before it is idle."""
    copied: Bitmap = 0
    """Of what is its sender's in this step, contributions that somebody else backs up and should have sent."""


class Granted(AboutHelp, frozen=True, kw_only=True, tag="granted"):
    """Of its own micro-batches so many are its sender's."""

    until: Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]
    over: bool = False
    """There will be no more: the rest is others'."""


class Work(AboutHelp, frozen=True, kw_only=True, tag="work"):
    """Compute these for somebody else."""

    shard: Rank
    micro_batches: Annotated[
        list[Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS - 1)]], Meta(max_length=MOST_CONTRIBUTIONS)
    ]
    backup: bool = False
    """Somebody holds them, but has not been heard of."""


class Nothing(AboutHelp, frozen=True, kw_only=True, tag="nothing"):
    """There is nothing that you could do."""

    again_us: Microseconds = 12_000
    """When it is worth to ask again."""


class Noted(AboutHelp, frozen=True, tag="idle"):
    """Answers Idle."""


HelpAnswer = Granted | Work | Nothing | Noted
