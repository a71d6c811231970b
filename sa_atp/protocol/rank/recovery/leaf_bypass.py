"""The way past a leaf: where the first of two switches cannot complete a sum, the root does. (protocol section 10.5)

A leaf waits for all of its own workers' contributions. Where helpers below another leaf do a part of that work it never
sees them all, because what they send is summed at the root. So from then on its workers' contributions pass it by,
and what it holds of them already it is made to pass on. Which contributions that is true of, which flags say so in a
packet, and what an answer to a probe means that a leaf may have given, is decided here and nowhere else. With one switch
nothing of it happens.
"""

import numpy as np

from sa_atp.basics.arrays import Indices, Mask, Numbers, Octets
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import Flag
from sa_atp.protocol.rank.sums.contribution_group import RESEND_AFTER_TRIES, ContributionGroup

PATIENCE = 2  # probe time-outs, after which what a leaf says of groups that passed it is taken for what became of them
STUCK_US = 1_000_000  # a leaf that says the same for so long has to pass on what it holds, though nobody has told us


class LeafBypass:
    def __init__(self, membership: Membership) -> None:
        self._member = membership
        self._leaf_bits = membership.leaf_bits if membership.levels > 1 else 0
        self._begun = False  # somebody helps below our leaf: its sums will not be complete
        self._answers = False  # the latest answer was the leaf's

    # --- which contributions ------------------------------------------------------------------------------------------

    def set_begun(self, begun: bool) -> bool:
        """The parameter server says whether help has begun below our leaf. Returns: whether that is news."""
        news = begun and not self._begun
        self._begun = begun
        return news

    def applies_to(self, bits: int, *, on_behalf: bool) -> bool:
        """Whether new contributions pass the leaf: all do once help from elsewhere has begun, and those of workers that are
        not below it always do. With one switch there is nothing to pass, and the flag says whose they are.
        """
        member = self._member
        if member.levels <= 1:
            return on_behalf
        summed_below = self._leaf_bits | member.bits_of(member.rank)
        return self._begun or bool(member.seats) or bits & ~summed_below != 0

    # --- in packets ---------------------------------------------------------------------------------------------------

    def flags(self, flags: int, tries: Octets, flush: Mask) -> Numbers:
        """Flags of fragments that have been sent before.

        Args:
            flags: of the group.
            tries: how often each has been sent.
            flush: those that shall make the leaf pass on what it holds of them.
        """
        resend = tries >= RESEND_AFTER_TRIES
        found: Numbers = np.where(resend, flags | Flag.RESEND, flags)
        if self._member.levels <= 1:
            return found
        # A leaf that has its sum already answers a resend with that sum. Where the next level has a part of it, it can
        # never be added there; so every second resend passes the leaf by.
        past = resend & ((tries - RESEND_AFTER_TRIES) % 2 == 1)
        found = np.where(past, found | Flag.ON_BEHALF, found)
        return np.where(flush, (flags | Flag.RESEND) & ~Flag.ON_BEHALF, found)

    # --- in answers to probes -----------------------------------------------------------------------------------------

    def may_be_leaf(self, bits: int) -> bool:
        """Whether it is a leaf that holds these contributions: it has no others than those of its own workers, and not all
        of them. A root may hold just those as well.
        """
        return bits & ~self._leaf_bits == 0 and bits not in (0, self._leaf_bits)

    def missing_of(self, bits: int) -> int:
        """Returns the contributions known to be missing where a switch holds these, as a bitmap. A leaf
        knows of its own workers' only: it never sees what those of other racks have sent.
        """
        return (self._leaf_bits if self.may_be_leaf(bits) else self._member.fan_in) & ~bits

    def on_answer(self, is_leaf: bool) -> None:
        """An answer has come. Args: is_leaf: it may be the leaf's; else the leaf had passed the question on."""
        self._answers = is_leaf

    def hides(self, group: ContributionGroup) -> bool:
        """Whether a leaf answers for what was sent past it, so that asking does not tell what became of that."""
        return self._answers and group.bypass_leaf

    def says_nothing_of(self, group: ContributionGroup, bits: int, probe_timeouts: int) -> bool:
        """Whether a leaf's answer leaves open what became of a group: it was sent past the leaf, where nobody looked."""
        return group.bypass_leaf and bits & group.bits != group.bits and probe_timeouts < PATIENCE

    def must_flush(
        self, group: ContributionGroup, bits: int, probe_timeouts: int, *, same_us: int, is_in_the_way: bool
    ) -> bool:
        """Whether the leaf has to pass on what it holds of a group's.

        One of those who have contributions there does it.

        Args:
            same_us: for how long it has held the same; then it may wait for what a helper has sent another way.
            is_in_the_way: it answers for what we have sent past it as well, of which it knows nothing.
        """
        is_long = same_us > 0 and (is_in_the_way or same_us >= STUCK_US)
        stuck = is_long and self._member.help_grade is not HelpGrade.NONE and probe_timeouts >= PATIENCE
        return bool(bits & -bits & group.bits) and (group.bypass_leaf or stuck)

    def to_flush(self, group: ContributionGroup, waiting: Indices, probe_timeouts: int) -> Indices:
        """Chooses which waiting fragments the leaf is asked to pass on: each once, unless that does not help."""
        return waiting[~group.flushed[waiting]] if probe_timeouts < PATIENCE else waiting
