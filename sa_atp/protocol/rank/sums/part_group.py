"""A rank's contribution to an all-gather: its own part with all bits, zeros to the others'. (protocol section 5.10)"""

import numpy as np

from sa_atp.basics.arrays import Bitmaps, Indices, Integers, Lanes
from sa_atp.protocol.numbers.fragments import Plan, Run
from sa_atp.protocol.packets.header import WORD_BITS, words_of
from sa_atp.protocol.rank.sums.contribution_group import RESEND_AFTER_TRIES, ContributionGroup
from sa_atp.protocol.rank.sums.progress import NEVER, fly
from sa_atp.protocol.rank.sums.under_way import UnderWay


class PartGroup(ContributionGroup):
    """A fragment of the own part is the whole sum, because everybody else's contribution is zero; so it carries all bits.

    Fragments of other parts are sent only to get results that were lost: as a resend, which claims no slot, with zeros
    under the own bits.
    """

    def __init__(
        self, plan: Plan, part: int, parts: int, values: Integers, fan_in: int, own_bits: int, under_way: UnderWay
    ) -> None:
        """Args:
        part: which of `parts` equal parts is the own one.
        values: int32[words], flat and contiguous; the fragments of the part are filled up with zeros.
        """
        super().__init__(plan, fan_in, [values], fan_in.bit_count(), on_behalf=False, under_way=under_way)
        self._own_bits = own_bits
        fragments = plan.data_fragments // parts
        self.first_fragment = part * fragments
        self._first = plan.data_start(0) + self.first_fragment
        self._end = self._first + fragments

    def _is_own(self, local: int) -> bool:
        return self._first <= local < self._end

    # --- which contributions, of what ---------------------------------------------------------------------------------

    @property
    def given_bits(self) -> int:
        return self._own_bits

    def bits_at(self, local: int) -> int:
        return self.bits if self._is_own(local) else self._own_bits

    @property
    def common_below(self) -> int:
        return self.plan.span

    def may_ask_for(self, local: int) -> bool:
        is_data = local >= self.plan.data_start(0)
        return is_data and not self._is_own(local) and self.order[local] == NEVER and not self.marked_lost[local]

    # --- what may be sent -------------------------------------------------------------------------------------------

    def allow_all(self) -> None:
        """Lets the own part go."""
        self._fresh = [(self._first, self._end)]

    def is_fresh(self, first: int, end: int) -> bool:
        return self._is_own(first) and self._is_own(end - 1) and super().is_fresh(first, end)

    def mark_lost(self, locals_: Indices) -> int:
        never = locals_[(self.order[locals_] == NEVER) & ~self.marked_lost[locals_]]
        fly(self, self._under_way, len(never))  # as if they had been sent, and were lost
        return super().mark_lost(locals_)

    def on_sent(self, first: int, end: int, now_us: int, answer_us: int) -> None:
        super().on_sent(first, end, now_us, answer_us)
        self._never_claim(first, end)

    def _never_claim(self, first: int, end: int) -> None:
        """Has what is not of the own part travel as a resend."""
        start = max(first, self.plan.data_start(0))
        for low, high in ((start, min(end, self._first)), (max(start, self._end), end)):
            if low < high:
                self.tries[low:high] = np.maximum(self.tries[low:high], RESEND_AFTER_TRIES)

    @property
    def sent_share(self) -> float:
        return np.count_nonzero(self.tries[self._first : self._end]) / (self._end - self._first)

    @property
    def is_steady(self) -> bool:
        return False

    # --- contents -----------------------------------------------------------------------------------------------------

    def write_lanes(self, run: Run, exponent: int, bits: Bitmaps, out: Lanes) -> None:
        width = bits.shape[1] * WORD_BITS
        bits[:] = words_of(self._own_bits, width)
        out[:] = 0
        self._never_claim(run.first, run.end)  # before its flags are written
        first, end = max(run.first, self._first), min(run.end, self._end)
        if first >= end:
            return
        rows, lanes = slice(first - run.first, end - run.first), self.plan.lanes
        piece = self.parts[0][(first - self._first) * lanes : (end - self._first) * lanes]
        whole = np.zeros((end - first) * lanes, np.int32)
        whole[: piece.size] = piece
        bits[rows] = words_of(self.bits, width)
        out[rows] = whole.reshape(-1, lanes)
