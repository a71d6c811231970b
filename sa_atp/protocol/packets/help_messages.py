"""Control messages about help: workers report, and the ledger assigns. (protocol section 10)"""

from typing import Annotated

from msgspec import Meta, field

from sa_atp.protocol.packets.message_fields import Bitmap, Checked, Count, Message, Microseconds
from sa_atp.protocol.packets.spec import MOST_CONTRIBUTIONS

MicroBatches = Annotated[int, Meta(ge=0, le=MOST_CONTRIBUTIONS)]


class Offer(Checked, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's offer to compute for others: a part of its report."""

    missing: Bitmap
    """Contributions that its sums lack, as far as it knows."""
    busy_us: Microseconds = 0
    """For how long its present work will still take."""
    pending: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Thousandths of the fragments whose sum it lacks; None: not known."""
    given: Bitmap = 0
    """Contributions that it has been given to compute in this step: others that the server has given it were lost."""


class WorkReport(Message, frozen=True, kw_only=True, tag="work_report"):
    """A worker's report of itself and its shard. It gives up what it does not hold of that, and asks for more."""

    step: Count
    begun: MicroBatches
    """How many micro-batches of its own shard it has begun."""
    held: MicroBatches
    """How many it holds, from the first on, those that it has begun included."""
    since_us: Microseconds | None = None
    """For how long it has computed the last one that it has begun; None: that one is done."""
    done: bool = False
    """It has computed all that it holds, and gets no more: its contribution is on its way."""
    offer: Offer | None = None
    """Its offer to compute for others; None: it does not offer to, so far."""
    took_us: Microseconds = 0
    """How long one of its own micro-batches took, as a mean since its last report; 0: there was none."""
    spent_us: Microseconds = 0
    """Time since it began the step; 0: it has not begun the step, or is done with it."""
    answer_us: Microseconds = 0
    """How long answers to its reports take; 0: not known."""
    sent_us: Microseconds = 0
    """How long its whole contribution takes to leave, from the last sum to which it had sent an eighth or more."""
    weight: Annotated[int, Meta(ge=1, le=1 << 30)] = 1
    """Work in a micro-batch of its own shard, in a unit common to all ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.begun > self.held:
            raise ValueError("begun must be at most held")

    @property
    def is_of_this_step(self) -> bool:
        """Whether `took_us` was measured in the step of the report, not in an earlier one."""
        return 0 < self.took_us <= self.spent_us


class Assignment(Message, frozen=True, kw_only=True, tag="assignment"):
    """The work that the ledger has for a worker in a step: answers a WorkReport, or is sent by itself, once."""

    step: Count
    until: MicroBatches | None = None
    """How many micro-batches of its own shard the worker holds from now on; None: as before."""
    over: bool = False
    """No more of its own shard will be granted: the rest goes to helpers."""
    revokes: MicroBatches | None = None
    """The worker is asked to give up what it need not hold, and to report; the ledger thinks that it holds so many. An
    earlier report with less answers that as well. None: it is not asked.
    """
    work: Bitmap = 0
    """Contributions that it is to compute as a helper."""
    copies: Bitmap = 0
    """Contributions that it is to compute although another worker holds them, which is silent."""
    again_us: Microseconds = 0
    """After how long to offer again; 0: when it begins with this work, or at once."""
    bypass_leaf: bool | None = field(default=None, name="past_leaf")
    """With two levels: whether the worker's data of this step has to pass its leaf. (section 10.5)"""
    hold: MicroBatches = MOST_CONTRIBUTIONS
    """Advice for the steps that follow, in an answer: how many of its own micro-batches to hold at the beginning."""
    helps: bool = False
    """Advice for these steps, too: the worker will be given work as a helper, so it should offer before it is idle."""
