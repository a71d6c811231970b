"""Control messages about lateness: how long ranks waited for sums, and who was slow. (protocol sections 7.7 and 9.2)"""

from typing import Annotated

from msgspec import Meta, field

from sa_atp.basics.words import plural
from sa_atp.protocol.packets.message_fields import Checked, Count, Message, Rank

MOST_WAITS = 16  # in a sign of life, which may have two long bitmaps as well
LONGEST_WAIT_US = (1 << 32) - 1
LONGEST_TOTAL_US = 1 << 50  # thirty years
SLOW = 0.1  # a slow rank held up the others for this share of the time that they waited, or more,
COSTS = 0.01  # ... and for this share of the job's time
LEAST_SUMS = 21  # of a job, the first among them, in which much is loaded: in fewer, chance decides who is late
MOSTLY = 0.75  # an activity with this share of a rank's lateness is named alone

ShortTime = Annotated[int, Meta(ge=0, le=LONGEST_WAIT_US)]
Total = Annotated[int, Meta(ge=0, le=LONGEST_TOTAL_US)]


class Wait(Checked, frozen=True, array_like=True):
    """How long a rank waited for a sum that is done; a list without names, because every byte counts."""

    operation: Count
    waited_us: ShortTime
    """Time from its contribution to the sum; 0: other ranks have contributed on its behalf."""
    sent_us: ShortTime
    """The part of it in which its contribution was sent."""
    round_trip_us: ShortTime
    """The smoothed round trip of its path to the switch."""


class AskLateness(Message, frozen=True, tag="lateness"):
    """Asks which ranks were slow."""


class RankLateness(Checked, frozen=True, array_like=True):
    """The lateness of a rank, over all compared sums. Times are totals, in microseconds."""

    rank: Rank
    late: Count
    """Sums in which it was late: half of the other ranks or more waited longer, by more than a round trip."""
    last: Count
    """Sums in which it was the latest of those that were late."""
    late_us: Total
    """Its delay behind the other ranks, in the sums in which it was late."""
    computing_us: Total
    """The part of the delay due to a later contribution."""
    sending_us: Total
    """The part of the delay due to slower sending, or a longer round trip."""
    waited_us: Total
    """Time from its contributions to their sums."""

    @property
    def activity(self) -> str:
        """The rank's activity while the others waited: computing, sending, or both."""
        shares = {"computing": self.computing_us, "sending": self.sending_us}
        return next((name for name, us in shares.items() if us >= MOSTLY * self.late_us), "computing and sending")


class JobLateness(Message, frozen=True, tag="lateness"):
    """The lateness of all ranks, as far as they have reported their waits."""

    sums: Count = 0
    """Number of compared sums: those that all ranks have reported."""
    ranks: list[RankLateness] = field(default_factory=list)
    """The ranks, by their total delay, the longest first; the last are left out if the message has no room."""
    lasted_us: Total = 0
    """From the beginning of the job to the last report."""

    @property
    def is_long_enough(self) -> bool:
        """Whether there are enough sums to say who was slow."""
        return self.sums >= LEAST_SUMS

    @property
    def slow(self) -> list[RankLateness]:
        """Ranks that held up the others for a tenth or more of the time that these waited, and cost the job a hundredth or
        more of its time; the worst first. None, if there are too few sums to tell.
        """
        return [each for each in self._late if self.is_long_enough and each.late_us >= COSTS * self.lasted_us]

    @property
    def _late(self) -> list[RankLateness]:
        """Ranks that held up the others for a tenth or more of the time that these waited."""
        waited_us = sum(each.waited_us for each in self.ranks)
        others = max(1, len(self.ranks) - 1)
        return [each for each in self.ranks if each.late_us > SLOW * (waited_us - each.waited_us) / others]

    @property
    def verdict(self) -> str:
        """The slow ranks in a sentence."""
        if not self.sums:
            return "nothing is known of who was slow"
        if not self.slow and (self._late or not self.is_long_enough):
            return "nobody was slow for long enough to tell"
        if not self.slow:
            return f"nobody was slow: no rank held up the others for {SLOW:.0%} of the time that they waited"
        return "; ".join(
            f"rank {each.rank} was late in {each.late} of {plural(self.sums, 'sum')}, "
            f"by {seconds(each.late_us / each.late)} on average, {each.activity}"
            for each in self.slow
        )


def seconds(us: float) -> str:
    """A time for people, to three digits: 48.2 ms, 1.93 s."""
    return f"{us / 1e6:.3g} s" if us >= 999_500 else f"{us / 1e3:.3g} ms"
