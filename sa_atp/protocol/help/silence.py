"""Work whose holder has fallen silent: from when others back it up, and which of it. (protocol section 10.3)"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap

OVERDUE = 3.0  # what takes so many times as long as it should is backed up
PATIENCE_WITHOUT_HELP = 4  # while help does not make steps shorter, silence is so much longer
REPEATED = 2  # times as long as answers take, after which what was said and lost is said again (requests.py)
BEHIND = 2  # steps: one may be on its way down a slow link while the others are in the next
HEARD_US = 150_000  # who waits for a sum that is over asks three times meanwhile (ledger.LONGEST_POLL_US)
LEAST_POLL_US = 6_000  # between two offers of a leader that was told there is nothing to do
POLL_LATER = 0.125  # of how late somebody is, until the next such offer


class Silence:
    def __init__(self, workers: Sequence[Worker], bits: ContributionMap, now: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._racks = racks
        self._map = bits
        self._now = now

    def begins_us(self, state: Step, rank: int, holder: int, *, is_on: bool) -> tuple[int, int]:
        """When a worker may back up what another one holds of its own, and what that was given. Args: is_on: help is."""
        course = state.courses[holder]
        link_us = self._now.link_us(holder) if self._now.has_slow_link(holder) else 0
        # in the first step nobody knows how long anything takes, and who was late to join has not begun
        is_known = is_on and not state.is_first
        least_us = (1 if is_known else PATIENCE_WITHOUT_HELP) * LEAST_SENDING_US
        # what is known of it, and what the helper knows to be missing, was so a while ago; and what it has said since may
        # have been lost: a copy that it has to be told from its own is worse than waiting until it says so again
        old_us = (1 + REPEATED) * (self._workers[holder].answer_us + self._workers[rank].answer_us)
        # what it has sent, and what it says of it, may wait behind its own contribution
        own_us = self._now.due_us(state, holder) + max(self._now.mine(state, rank, holder), least_us)
        own_us += math.ceil((OVERDUE - 1) * link_us)
        # this leaves behind its own contribution, and takes as long again
        late_us = math.ceil((OVERDUE - 1) * (course.lot_until_us - course.lot_from_us))
        lot_us = course.lot_until_us + max(late_us, least_us) + math.ceil((OVERDUE - 1) * link_us)
        return own_us + old_us, lot_us + old_us

    def news_us(self, state: Step, rank: int, holder: int, now_us: int, *, is_on: bool) -> list[int]:
        """After how long a worker should ask whether there is something to do for what another one is at."""
        course, times = state.courses[holder], []
        own_us, lot_us = self.begins_us(state, rank, holder, is_on=is_on)
        if course.idle_us is None and holder not in state.ended:
            times.append(_until_us(self._now.due_us(state, holder), own_us, now_us))
        if course.lot:
            times.append(_until_us(course.lot_until_us, lot_us, now_us))
        return times

    def is_behind(self, step: int, rank: int, now_us: int) -> bool:
        """Whether a worker takes sums of steps before the last one, and so is not silent: they come down its link as fast
        as that can. Who did its work meanwhile would send it more of them, and it would fall behind in each step.
        """
        worker = self._workers[rank]
        if worker.waited_us is None or step - worker.newest_step < BEHIND:
            return False
        return now_us - worker.waited_us <= HEARD_US + (1 + REPEATED) * worker.answer_us

    def find(
        self, state: Step, step: int, rank: int, missing: int, now_us: int, *, is_on: bool
    ) -> tuple[int, list[int]] | None:
        """A shard, and its micro-batches that a helper should compute, which somebody silent holds.

        Args: missing: contributions that the helper misses (a bitmap). is_on: help is.
        """
        for holder, course in enumerate(state.courses):
            if holder == rank or (course.idle_us is not None and not course.lot):
                continue
            if self.is_behind(step, holder, now_us):
                continue
            late: dict[int, list[int]] = {}
            own_us, lot_us = self.begins_us(state, rank, holder, is_on=is_on)
            if course.idle_us is None and now_us >= own_us:
                late[holder] = list(range(state.held(holder)))  # what it has done it has not sent either
            if course.lot and now_us >= lot_us:
                for shard, m in course.lot:
                    late.setdefault(shard, []).append(m)
            for shard, micro_batches in late.items():
                if not self._may_cross(state, rank, holder, shard, own_us, now_us):
                    continue
                lost = [
                    m for m in micro_batches if missing & self._map.bit(shard, m) and (shard, m) not in state.copied_us
                ]
                if lost:
                    # as many as it computes while an answer travels, or all would wait for answers
                    soon = math.ceil(self._workers[rank].answer_us / self._now.mine(state, rank, shard))
                    return shard, lost[: max(1, soon, len(lost) // len(self._workers))]
        return None

    def _may_cross(self, state: Step, rank: int, holder: int, shard: int, own_us: int, now_us: int) -> bool:
        """Whether a worker may back up what is summed in a leaf that it does not see. What a helper was given may all be
        there and wait for others: that is left to those who see it. What an owner has not computed nobody has sent: that
        is left to them for as long as it costs that somebody from elsewhere does it.

        Args: own_us: when those below the leaf may begin to back up what the holder has of its own.
        """
        if self._racks.sees(state, rank, shard):
            return True
        return shard == holder and now_us >= own_us + self._racks.patience_us(shard)


def _until_us(due_us: int, silent_us: int, now_us: int) -> int:
    """After how long to ask about what is due then, and silent later. Who is late already will be for some time: so
    questions about it become fewer.
    """
    if now_us <= due_us:
        return due_us - now_us
    later_us = max(LEAST_POLL_US, int(POLL_LATER * (now_us - due_us)))
    return min(later_us, silent_us - now_us) if now_us < silent_us else later_us
