"""Data that is late: computed, but so slow to arrive that others had better send it anew. (protocol section 10.3)

The sender's link is slow then, not its device. The whole lot goes to one helper: every helper would send as many fragments.
"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help.progress import Step, Told, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap

WORTH_RESENDING = 1.5  # data must be late by so many times what sending it anew costs
COUNTED_ON = 2  # times as long as a leader's patience, for which it counts on another one whose link is free sooner
REMEMBERED_STEPS = 8  # for which a worker whose data was late is given less time


class LateData:
    def __init__(self, workers: Sequence[Worker], bits: ContributionMap, now: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._racks = racks
        self._map = bits
        self._now = now

    def ask_at_us(self, state: Step, step: int, rank: int) -> int:
        """Before that a leader that has sent everything need not ask, where all others have computed theirs."""
        known = [
            (course.idle_us or 0) + self._patience_us(rank, step, shard)
            for shard, course in enumerate(state.courses)
            if shard != rank and shard not in state.resent
        ]
        return int(min(known, default=0))

    def find(
        self, state: Step, step: int, rank: int, missing: int, told: Told, now_us: int, pending: float
    ) -> tuple[int, tuple[int, ...]] | None:
        """A shard, and its micro-batches that a leader should compute and send anew.

        Args:
            missing: contributions that it misses (a bitmap).
            pending: share of the sums that it misses.
            told: what it says of itself. now_us: when that came.

        Returns: None: nothing is late; or not everybody has computed, and then what is missing tells nothing.
        """
        is_computed = all(c.idle_us is not None or r == rank or not state.held(r) for r, c in enumerate(state.courses))
        if self._now.duration(state, rank) is None or not is_computed:
            return None
        computed_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses)
        for shard, sender in enumerate(self._workers):
            late = self._map.micro_batches_of(shard, missing)
            idle_us = state.courses[shard].idle_us
            if shard == rank or not late or shard in state.resent or idle_us is None:
                continue
            # losses make data late, too, and sending more of it loses more: so the sender's link has to be the slower one
            has_slow_link = sender.send_us >= WORTH_RESENDING * self._workers[rank].send_us
            if not has_slow_link or not self._racks.sees(state, rank, shard):
                continue
            if any(state.owner[shard][m] != shard for m in late):
                continue
            # What is missing was seen as long ago as it takes to ask a switch, and us; and nothing is there at once.
            since_us = now_us - computed_us - told.answer_us - sender.answer_us // 2
            if since_us <= 0:
                continue
            # as slow as it was so far; nothing at all has come of it after a time in which we would have sent everything
            left_us = since_us * pending / (1 - pending) if pending < 1 else math.inf
            # the sum comes down its link all the same: what takes long up and down is not done sooner
            left_us -= sender.lag_after_resending_us
            cost_us = len(late) * self._now.mine(state, rank, shard) + pending * self._workers[rank].send_us
            patience_us = self._patience_us(rank, step, shard)
            if since_us <= patience_us or left_us <= WORTH_RESENDING * cost_us:
                continue
            if since_us > COUNTED_ON * patience_us or self._is_the_one(state, rank, shard, len(late), now_us):
                return shard, tuple(late)
        return None

    def _is_the_one(self, state: Step, rank: int, shard: int, count: int, now_us: int) -> bool:
        """Whether no other leader would have sent so many micro-batches clearly sooner, its link being free sooner."""
        each_us = self._now.mine(state, rank, shard)
        mine_us = self._resent_us(state, rank, shard, count, now_us)
        return all(
            mine_us <= self._resent_us(state, other, shard, count, now_us) + each_us
            for other, course in enumerate(state.courses)
            if other not in (rank, shard) and course.idle_us is not None and self._racks.sees(state, other, shard)
        )

    def _resent_us(self, state: Step, rank: int, shard: int, count: int, now_us: int) -> int:
        """When a leader would have computed and sent so many anew, if it heard of it now."""
        done_us = now_us + count * self._now.mine(state, rank, shard)
        return max(done_us, self._now.link_free_us(state, rank, now_us)) + self._workers[rank].send_us

    def _patience_us(self, rank: int, step: int, shard: int) -> float:
        """How long a leader gives a sender at least. Whose data was late not long ago has as long as the leader takes."""
        send_us = self._workers[rank].send_us
        if step - self._workers[shard].resent_in <= REMEMBERED_STEPS:
            return send_us
        return WORTH_RESENDING * max(send_us, LEAST_SENDING_US)
