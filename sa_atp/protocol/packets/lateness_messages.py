"""Control messages about lateness: how long ranks waited for sums, and who was slow. (protocol sections 7.7 and 9.2)"""

from typing import Annotated

from msgspec import Meta, field

from sa_atp.basics.words import plural
from sa_atp.protocol.packets.message_fields import Checked, Count, Message, Rank

MOST_WAITS = 16  # that a sign of life carries; beside two long bitmaps there is room for no more
LONGEST_WAIT_US = (1 << 32) - 1
LONGEST_TOTAL_US = 1 << 50  # thirty years
SLOW = 0.1  # of the time that the others waited, for which a slow rank held them up
MOSTLY = 0.75  # of its lateness, that is named alone

ShortTime = Annotated[int, Meta(ge=0, le=LONGEST_WAIT_US)]
Total = Annotated[int, Meta(ge=0, le=LONGEST_TOTAL_US)]


class Wait(Checked, frozen=True, array_like=True):
    """How long a rank waited for a sum that is done; a list without names, because every byte counts."""

    operation: Count
    waited_us: ShortTime
    """From its contribution to the sum; 0: others have contributed on its behalf."""
    sent_us: ShortTime
    """Of that, how long its contribution took to leave."""
    round_trip_us: ShortTime
    """How long its path to the switch takes to answer, smoothed."""


class AskLateness(Message, frozen=True, tag="lateness"):
    """Who was slow?"""


class RankLateness(Checked, frozen=True, array_like=True):
    """What was counted of a rank, in all sums that were compared. Times are totals, in microseconds."""

    rank: Rank
    late: Count
    """Sums in which it was late: half of the other ranks or more waited longer, by more than a round trip."""
    last: Count
    """Sums in which it was the latest of those that were late."""
    late_us: Total
    """By how much it was behind the others in the sums in which it was late."""
    computing_us: Total
    """Of that, because it contributed later than they."""
    sending_us: Total
    """Of that, because its contribution took longer to leave, or its path longer to answer."""
    waited_us: Total
    """From its contributions to their sums."""

    @property
    def activity(self) -> str:
        """What it was at while the others waited."""
        shares = {"computing": self.computing_us, "sending": self.sending_us}
        return next((name for name, us in shares.items() if us >= MOSTLY * self.late_us), "computing and sending")


class JobLateness(Message, frozen=True, tag="lateness"):
    """Who was slow, as far as ranks have told."""

    sums: Count = 0
    """How many were compared: those of which all ranks have told."""
    ranks: list[RankLateness] = field(default_factory=list)
    """Those that were behind the others for longest come first; the last are left out where a message has no room."""

    @property
    def slow(self) -> list[RankLateness]:
        """Ranks that held up the others for a tenth or more of the time that these waited, the worst first."""
        waited_us = sum(each.waited_us for each in self.ranks)
        others = max(1, len(self.ranks) - 1)
        return [each for each in self.ranks if each.late_us > SLOW * (waited_us - each.waited_us) / others]

    @property
    def verdict(self) -> str:
        """The same in a sentence."""
        if not self.sums:
            return "nothing is known of who was slow"
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
