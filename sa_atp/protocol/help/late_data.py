"""Late data: computed, but sent so slowly that another worker had better send it anew. (protocol section 10.3)

The sender's link is slow then, not its device. All of it goes to one helper: two would each send as many fragments as
one.
"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help.progress import Step, Worker, WorkerReport
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap

WORTH_RESENDING = 1.5  # data must be late by so many times the cost of sending it anew
COUNTED_ON = 2  # a leader waits for one with an earlier link for so many times its own patience
REMEMBERED_STEPS = 8  # in which a worker whose data was late is given less time


class LateData:
    def __init__(self, workers: Sequence[Worker], bits: ContributionMap, projection: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._racks = racks
        self._map = bits
        self._projection = projection

    def ask_at_us(self, state: Step, step: int, rank: int) -> int:
        """The earliest time at which a leader may find late data, if all others have computed theirs."""
        known = [
            (course.idle_us or 0) + self._patience_us(rank, step, shard)
            for shard, course in enumerate(state.courses)
            if shard != rank and shard not in state.resent
        ]
        return int(min(known, default=0))

    def find(
        self, state: Step, step: int, rank: int, missing: int, report: WorkerReport, now_us: int, pending: float
    ) -> tuple[int, tuple[int, ...]] | None:
        """A shard, and its micro-batches that a leader should compute and send anew.

        Args:
            missing: contributions that its sums lack (a bitmap).
            pending: share of the fragments whose sum it lacks.
            report: the leader's own; it came at now_us.

        Returns: None: nothing is late, or some worker still computes, so that missing data proves nothing.
        """
        is_computed = all(c.idle_us is not None or r == rank or not state.held(r) for r, c in enumerate(state.courses))
        if self._projection.duration(state, rank) is None or not is_computed:
            return None
        computed_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses)
        for shard, sender in enumerate(self._workers):
            late = self._map.micro_batches_of(shard, missing)
            idle_us = state.courses[shard].idle_us
            if shard == rank or not late or shard in state.resent or idle_us is None:
                continue
            # losses also make data late, and more data means more losses: so the sender's link must be the slower one
            has_slow_link = sender.send_us >= WORTH_RESENDING * self._workers[rank].send_us
            if not has_slow_link or not self._racks.sees(state, rank, shard):
                continue
            if any(state.owner[shard][m] != shard for m in late):
                continue
            # the leader saw what is missing as long ago as its questions to the switch and to us take
            since_us = now_us - computed_us - report.answer_us - sender.answer_us // 2
            if since_us <= 0:
                continue
            # at the pace so far; if nothing at all has arrived, it may take forever
            left_us = since_us * pending / (1 - pending) if pending < 1 else math.inf
            # the sum still has to come down the sender's link: a link that is slow both ways gains less
            left_us -= sender.lag_after_resending_us
            cost_us = (
                len(late) * self._projection.expected_us(state, rank, shard) + pending * self._workers[rank].send_us
            )
            patience_us = self._patience_us(rank, step, shard)
            if since_us <= patience_us or left_us <= WORTH_RESENDING * cost_us:
                continue
            if since_us > COUNTED_ON * patience_us or self._is_soonest(state, rank, shard, len(late), now_us):
                return shard, tuple(late)
        return None

    def _is_soonest(self, state: Step, rank: int, shard: int, count: int, now_us: int) -> bool:
        """Whether no other leader could send `count` micro-batches clearly sooner because its link is free sooner."""
        each_us = self._projection.expected_us(state, rank, shard)
        mine_us = self._resent_us(state, rank, shard, count, now_us)
        return all(
            mine_us <= self._resent_us(state, other, shard, count, now_us) + each_us
            for other, course in enumerate(state.courses)
            if other not in (rank, shard) and course.idle_us is not None and self._racks.sees(state, other, shard)
        )

    def _resent_us(self, state: Step, rank: int, shard: int, count: int, now_us: int) -> int:
        """When a leader would have computed and sent `count` micro-batches anew, if it were asked now."""
        done_us = now_us + count * self._projection.expected_us(state, rank, shard)
        return max(done_us, self._projection.link_free_us(state, rank, now_us)) + self._workers[rank].send_us

    def _patience_us(self, rank: int, step: int, shard: int) -> float:
        """How long a leader waits for a sender at least; only for its own sending time if that sender was late
        recently.
        """
        send_us = self._workers[rank].send_us
        if step - self._workers[shard].resent_in <= REMEMBERED_STEPS:
            return send_us
        return WORTH_RESENDING * max(send_us, LEAST_SENDING_US)
