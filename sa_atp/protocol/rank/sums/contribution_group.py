"""A contribution group: the values that one sender adds to an operation, and how far their fragments have got.

A worker has one for its own contributions of an operation and, when it helps, one for each lot it sends on behalf of
others. The values stay here until the operation is over, because any fragment may have to be sent again.
"""

from bisect import bisect
from collections import deque
from collections.abc import Sequence

import numpy as np

from sa_atp.basics.arrays import Addends, Bitmaps, Indices, Lanes, Mask, Values
from sa_atp.protocol.numbers.fragments import Plan, Run
from sa_atp.protocol.packets.header import WORD_BITS, words_of
from sa_atp.protocol.rank.compiled.kernels import Sent
from sa_atp.protocol.rank.sums.progress import NEVER, Transmissions, fly
from sa_atp.protocol.rank.sums.rounded_values import RoundedValues
from sa_atp.protocol.rank.sums.under_way import UnderWay

RESEND_AFTER_TRIES = 3  # transmissions through the switch before the slot is asked to hand over (section 5.5)
MOST_JOINED_BYTES = 1 << 25  # of several parts that are copied for kernels: copying more would hold up the stream
NO_FRAGMENTS: Indices = np.zeros(0, np.int64)


class ContributionGroup(Transmissions):
    """Fragments are named by their place in the operation (`local`), from 0 to plan.span."""

    def __init__(
        self,
        plan: Plan,
        bits: int,
        parts: Sequence[Addends],
        contributions: int,
        *,
        on_behalf: bool,
        under_way: UnderWay,
    ) -> None:
        """Args:
        bits: the contributions that these values are, as a bitmap.
        parts: float32[values] each, or int32[values] for a sum of whole numbers, flat and contiguous; one for each
            contribution, lowest bit first, or one for all of them. They must not change until the operation is over.
        contributions: how many the complete sum has.
        under_way: of all operations, which this counts itself in.
        """
        super().__init__()
        self.plan = plan
        self.bits = bits
        self.parts = tuple(parts)
        self.on_behalf = on_behalf
        self.bypass_leaf = on_behalf  # what is sent from now on passes the leaf, if there is one (section 10.5)
        # flush: the next transmission makes the leaf pass on what it holds; flushed: one has done so before;
        # held: an answer has shown that it has arrived; marked_lost: sent, thought lost, waiting in `retransmit_queue`
        self.flush, self.flushed, self.held, self.marked_lost = np.zeros((4, plan.span), bool)
        # order: number of the latest transmission (`UnderWay`); ask_again_us: until then an answer is awaited, or is good
        self.sent_us, self.order, self.ask_again_us = np.zeros((3, plan.span), np.int64)
        self.tries = np.zeros(plan.span, np.uint8)
        self._under_way = under_way
        self.in_order = True  # nothing was sent after what comes behind it: transmissions are in the order of fragments
        self.sending: list[tuple[int, int]] = []  # when fragments left for the first time, gaps of the network included
        self.retransmit_queue: deque[int] = deque()
        self.excluded: dict[int, int] = {}  # fragment: contributions of ours that someone else's packets have added
        self._expected_overlap = 0
        self._fresh: list[tuple[int, int]] = []  # ranges that may be sent for the first time, in order, disjoint
        self.rounded = RoundedValues(plan, bits, self.parts, contributions)
        self.read_by_kernels = tuple(part.view(np.float32) for part in self.parts)
        """The parts, float32[values] each; whole numbers have the bits of int32 there."""
        self.is_aligned = all(part.flags.aligned for part in self.parts)
        self.fits = np.zeros((len(self.parts), plan.chunks), np.int8)  # of each part and chunk, see kernels.fill
        self.sent = Sent(self.sent_us, self.order, self.tries, self.marked_lost, self.ask_again_us, self.held)
        """The arrays that kernels read and write."""

    # --- which contributions, of what ---------------------------------------------------------------------------------

    first_fragment = 0
    """The data fragment with which its values begin."""

    @property
    def given_bits(self) -> int:
        """The contributions that a program made when it gave the values."""
        return self.bits

    def bits_at(self, local: int) -> int:
        """The contributions that it adds to a fragment."""
        return self.bits

    @property
    def common_below(self) -> int:
        """The end of the fragments whose results kernels may take: from there on the group has sent none."""
        return self.high

    def may_ask_for(self, local: int) -> bool:
        """Whether a fragment that has not been sent is sent all the same, when it is known that its sum is complete: to get
        the result. (section 5.10)
        """
        return False

    # --- what may be sent -------------------------------------------------------------------------------------------

    def allow_scale(self, attempt: int, fragment: int) -> None:
        first = self.plan.scale_start(attempt) + fragment
        self._insert(first, first + 1)

    def allow_chunk(self, attempt: int, chunk: int) -> None:
        """Lets a chunk go; it is rounded when its first fragment is written."""
        base = self.plan.data_start(attempt)
        first, last = self.plan.fragments_of(chunk)
        self._insert(base + first, base + last)

    def allow_all(self) -> None:
        """Lets all chunks go in attempt 0, as allow_chunk does one."""
        self._fresh = [(self.plan.scale_fragments, self.plan.attempt_fragments)]

    def forget_chunk(self, attempt: int, chunk: int) -> None:
        """The chunk's sum is known, or is tried anew: nothing of this attempt needs to be sent any more."""
        self.rounded.forget(chunk)
        if not self._fresh:
            return
        base = self.plan.data_start(attempt)
        first, last = (base + f for f in self.plan.fragments_of(chunk))
        self._remove(first, last)

    def forget_complete(self, accepted: Mask, end: int) -> None:
        """Forgets chunks that a kernel has accepted in attempt 0. Args: end: of the last of them."""
        if self.rounded or (self._fresh and self._fresh[0][0] < end):
            for chunk in np.flatnonzero(accepted).tolist():
                self.forget_chunk(0, chunk)

    def _remove(self, first: int, last: int) -> None:
        """Removes a range from what may be sent for the first time."""
        if not any(begin < last and first < end for begin, end in self._fresh):
            return
        self._fresh = [
            piece
            for begin, end in self._fresh
            for piece in ((begin, min(end, first)), (max(begin, last), end))
            if piece[0] < piece[1]
        ]

    def _insert(self, first: int, end: int) -> None:
        """Adds a range, in order: a later range may have to wait for the sums of an earlier one."""
        at = bisect(self._fresh, (first, end))
        if at and self._fresh[at - 1][1] == first:
            self._fresh[at - 1] = (self._fresh[at - 1][0], end)
        else:
            self._fresh.insert(at, (first, end))

    def take(self, window: int, most: int, below: int, pending: Mask) -> list[tuple[int, int]]:
        """Takes fragments to send now, those thought lost first.

        Args:
            window: how many may be in flight. Those that come after what is sent do not count: where ranks learn
                exponents in different orders, each could have its window full of what another cannot send, for ever.
            most: how many to take.
            below: where new ones end.
            pending: bool[span], fragments whose sum is not known yet: others need not be sent.

        Returns: ranges of consecutive fragments, (first, end).
        """
        count = min(most, window - self.in_flight)
        if count <= 0:
            return self._take_older(window, most, below, pending)
        ranges: list[tuple[int, int]] = []
        while self.retransmit_queue and count > 0:
            local = self.retransmit_queue.popleft()
            if pending[local] and self.marked_lost[local]:
                self.marked_lost[local] = False
                count -= 1
                if ranges and ranges[-1][1] == local:
                    ranges[-1] = (ranges[-1][0], local + 1)
                else:
                    ranges.append((local, local + 1))
        while self._fresh and count > 0:
            first, end = self._fresh[0]
            stop = min(end, first + count, below)
            if stop <= first:
                break
            wanted = pending[first:stop]
            if np.count_nonzero(wanted) == stop - first:
                ranges.append((first, stop))
                count -= stop - first
            else:
                found = first + np.flatnonzero(wanted)
                count -= len(found)
                ranges.extend((local, local + 1) for local in found.tolist())
            if stop == end:
                self._fresh.pop(0)
            else:
                self._fresh[0] = (stop, end)
        return ranges

    def _take_older(self, window: int, most: int, below: int, pending: Mask) -> list[tuple[int, int]]:
        """Takes fragments where the window is full: only those that come before others that are in flight."""
        if not self.retransmit_queue and self._fresh[0][0] >= self.high:
            return []
        span = slice(0, self.high)
        flying = np.flatnonzero(pending[span] & (self.sent_us[span] != NEVER) & ~self.marked_lost[span])
        lost = [local for local in self.retransmit_queue if pending[local] and self.marked_lost[local]]
        fresh = [
            local for first, end in self._fresh for local in range(first, min(end, below, self.high)) if pending[local]
        ]
        waiting = np.unique(np.array(lost + fresh, np.int64))
        older = np.searchsorted(flying, waiting) + np.arange(len(waiting))
        chosen = waiting[older < window][:most].tolist()
        self.marked_lost[chosen] = False
        for local in chosen:
            self._remove(local, local + 1)
        return [(local, local + 1) for local in chosen]

    def is_fresh(self, first: int, end: int) -> bool:
        """Whether none of these has been sent."""
        return first >= self.high or not self.tries[first:end].any()

    @property
    def has_work(self) -> bool:
        return bool(self.retransmit_queue or self._fresh)

    @property
    def fresh(self) -> int:
        """Fragments that could be sent, and have not been."""
        return sum(end - first for first, end in self._fresh)

    @property
    def sent_share(self) -> float:
        """How much of the data has been sent, of the first attempt."""
        start, count = self.plan.data_start(0), self.plan.data_fragments
        return np.count_nonzero(self.tries[start : start + count]) / count

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def on_sent(self, first: int, end: int, now_us: int, answer_us: int) -> None:
        """Fragments first to end - 1 have left.

        Args: answer_us: how long the network takes to answer. A gap between first transmissions that is longer was not
            sending: the window was full of fragments that wait for other workers.
        """
        fresh = first >= self.high
        self.in_order &= fresh
        tries = self.tries[first:end]
        if fresh or not tries.all():
            if self.sending and now_us - self.sending[-1][1] <= answer_us:
                self.sending[-1] = (self.sending[-1][0], now_us)
            else:
                self.sending.append((now_us, now_us))
        self.sent_us[first:end] = now_us
        number = self._under_way.sent
        self.order[first:end] = np.arange(number + 1, number + 1 + end - first)
        self._under_way.sent += end - first
        if fresh:
            tries[:] = 1
        else:
            tries[tries == 255] = 253  # however often: every second resend is another kind
            tries += 1
            self.flush[first:end] = self.held[first:end] = False
        fly(self, self._under_way, end - first)
        self.high = max(self.high, end)

    def on_done(self, first: int, end: int) -> int:
        """The sums of fragments first to end - 1, none counted before, are known.

        Returns: when the last of them was sent, if that was its only time; else NEVER.
        """
        if first >= self.high:
            return NEVER
        sent = self.sent_us[first:end] != NEVER
        marked_lost = self.marked_lost[first:end]
        fly(self, self._under_way, -int(np.count_nonzero(sent & ~marked_lost)))
        marked_lost[:] = False
        if self.tries[end - 1] != 1:
            return NEVER
        self._under_way.acknowledge_up_to(int(self.order[end - 1]))
        last_us = int(self.sent_us[end - 1])
        self.newest_done_us = max(self.newest_done_us, last_us)
        return last_us

    # --- for kernels (steady_kernels.py) ------------------------------------------------------------------------------

    @property
    def is_steady(self) -> bool:
        """Nothing has to be sent again, and what may be sent for the first time is one range."""
        return not (self.retransmit_queue or self.excluded or len(self._fresh) > 1 or self.bypass_leaf) and (
            self.is_aligned and self._may_be_joined and bool(self.sending)
        )

    @property
    def _may_be_joined(self) -> bool:
        return len(self.parts) == 1 or sum(part.nbytes for part in self.parts) <= MOST_JOINED_BYTES

    def joined(self) -> Values:
        """The parts as one array, float32[parts, values]: a copy, if there are several."""
        parts = self.read_by_kernels
        return parts[0].reshape(1, -1) if len(parts) == 1 else np.stack(parts)

    @property
    def fresh_range(self) -> tuple[int, int]:
        """The range of fragments that may be sent for the first time, where there is only one."""
        return self._fresh[0] if self._fresh else (self.plan.span, self.plan.span)

    def set_fresh_range(self, first: int, end: int) -> None:
        self._fresh = [(first, end)] if first < end else []

    def waiting(self, pending: Mask, oldest: int, sent_before_us: int) -> Indices:
        """Fragments that were sent before a time and whose sum is not known. Args: oldest: none below is pending."""
        span = slice(oldest, self.high)
        sent = self.sent_us[span]
        return oldest + np.flatnonzero(pending[span] & (sent != NEVER) & (sent < sent_before_us))

    def unknown(self, pending: Mask, oldest: int, sent_before_us: int, up_to: int, now_us: int) -> Indices:
        """Pending fragments whose results or answers are late.

        Args:
            oldest: the lowest pending fragment.
            sent_before_us: fragments sent before this time are late, also those that were held by the switch: it may have
                given them up since.
            up_to: fragments up to this transmission are late too, unless they are known to be held.
            now_us: fragments about which a question or an answer is recent are left out.
        """
        if (
            self.in_order
            and self.sent_us[oldest] >= sent_before_us
            and self.order[oldest] > max(up_to, NEVER)  # it has been sent, and what comes behind it later
        ):
            return NO_FRAGMENTS
        span = slice(oldest, self.high)
        order = self.order[span]
        late = (self.sent_us[span] < sent_before_us) | ((order <= up_to) & ~self.held[span])
        late &= pending[span] & (order != NEVER) & ~self.marked_lost[span]
        return oldest + np.flatnonzero(late & (self.ask_again_us[span] <= now_us))

    def mark_lost(self, locals_: Indices) -> int:
        """Counts fragments as lost, to be sent again; returns how many were not given up before."""
        new = locals_[~self.marked_lost[locals_]]
        self.marked_lost[new] = True
        fly(self, self._under_way, -len(new))
        self.retransmit_queue.extend(new.tolist())
        return len(new)

    def forget_held(self) -> None:
        """Fragments that a switch held are gone there: each has to be asked for again."""
        self.ask_again_us[self.held] = NEVER
        self.held[:] = False
        self.asked_up_to = NEVER

    def flush_leaf(self, locals_: Indices) -> None:
        """Sends these again, in the way that makes a leaf pass on what it holds of them."""
        self.flush[locals_] = self.flushed[locals_] = True
        self.mark_lost(locals_)

    def exclude(self, local: int, held: int) -> bool:
        """Sees which contributions a fragment's sum has. Returns: whether it has some of ours, and not all, which is news.

        Then it can never take all of ours together, and from now on gets those that it lacks. That needs a part for each
        contribution; a group with one part for all can only be in a sum as a whole.
        """
        overlap = held & self.bits
        if overlap in (0, self.bits) or len(self.parts) == 1:
            self.excluded.pop(local, None)
            return False
        if self.excluded.get(local) == overlap:
            return False
        self.excluded[local] = overlap
        if overlap != self._expected_overlap:  # what has not been sent will probably meet the same
            self._expected_overlap = overlap
            for first, end in self._fresh:
                self.excluded.update(dict.fromkeys(range(first, end), overlap))
        return True

    def resend_next(self, local: int) -> None:
        """Has the next transmission of a fragment make its slot hand over: the slot would refuse it, having seen it before
        (section 5.6).
        """
        self.tries[local] = max(self.tries[local], RESEND_AFTER_TRIES)

    # --- contents -----------------------------------------------------------------------------------------------------

    def write_lanes(self, run: Run, exponent: int, bits: Bitmaps, out: Lanes) -> None:
        """Writes the bitmaps and lanes of a run.

        Args: exponent: of its chunk; bits, out: a row of each for a fragment, big-endian.
        """
        width = bits.shape[1] * WORD_BITS
        bits[:] = words_of(self.bits, width)
        if run.chunk < 0:
            out[0] = self.rounded.scale_lanes(run.attempt, run.fragment, self.excluded.get(run.first, 0))
            bits[0] = words_of(self.bits & ~self.excluded.get(run.first, 0), width)
            return
        first = run.fragment - self.plan.fragments_of(run.chunk)[0]
        out[:] = self.rounded.lanes_of(run.chunk, run.attempt, exponent)[first : first + len(run)]
        if not self.excluded:
            return
        for row in range(len(run)):
            excluded = self.excluded.get(run.first + row, 0)
            if excluded:
                bits[row] = words_of(self.bits & ~excluded, width)
                out[row] = self.rounded.lanes_without(run.chunk, exponent, first + row, excluded)
