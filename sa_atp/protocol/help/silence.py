"""Workers that have fallen silent: when others may back up their work, and which part of it. (protocol section 10.3)"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap

FIRST_PATIENCE = 4  # times as long must a silence be in the first step
REPEATED = 2  # a lost report is repeated after so many times an answer's time (job/requests.py)
BEHIND = 2  # steps: the sum of one step may still come down a slow link while the others are in the next
HEARD_US = 150_000  # a worker that waits for an old sum makes three offers in this time (ledger.LONGEST_POLL_US)
LEAST_POLL_US = 6_000  # between two offers of a leader for which there is no work
POLL_LATER = 0.125  # share of a worker's lateness until the next offer because of it


class Silence:
    def __init__(self, workers: Sequence[Worker], bits: ContributionMap, projection: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._racks = racks
        self._map = bits
        self._projection = projection

    def backup_from_us(self, state: Step, rank: int, holder: int) -> tuple[int, int]:
        """When a worker may back up another one's own shard, and that one's lot."""
        course = state.courses[holder]
        link_us = self._projection.link_us(holder) if self._projection.has_slow_link(holder) else 0
        # in the first step no times are known, and workers that joined late have not begun
        least_us = (FIRST_PATIENCE if state.is_first else 1) * LEAST_SENDING_US
        # reports, and the helper's view of what is missing, are as old as answers; and a newer report may have been
        # lost and be repeated: waiting for that is better than a backup that overlaps with the owner's own data
        old_us = (1 + REPEATED) * (self._workers[holder].answer_us + self._workers[rank].answer_us)
        # its data and its report may be queued behind its own contribution
        late_us = max(self._projection.expected_us(state, rank, holder), least_us) + 2 * link_us
        own_us, lot_us = self._projection.due_us(state, holder) + late_us, course.lot_until_us + late_us
        if self._has_said_so(state, holder):
            return own_us + self._workers[rank].answer_us, lot_us + old_us
        return own_us + old_us, lot_us + old_us

    def _has_said_so(self, state: Step, holder: int) -> bool:
        """Whether a worker's own report, made after its work was due, says that it has not got on: nothing is lost or
        under way then, as it may be where no report came.
        """
        course = state.courses[holder]
        said_us = course.granted_us - self._workers[holder].answer_us
        return course.was_overdue and said_us > self._projection.due_us(state, holder)

    def poll_us(self, state: Step, rank: int, holder: int, now_us: int) -> list[int]:
        """After how long a worker should offer again because of another one's unfinished shard, and lot."""
        course, times = state.courses[holder], []
        if course.idle_us is not None and not course.lot:
            return []
        own_us, lot_us = self.backup_from_us(state, rank, holder)
        if course.idle_us is None and (holder not in state.ended or state.held(holder)):
            times.append(_until_us(self._projection.due_us(state, holder), own_us, now_us))
        if course.lot:
            times.append(_until_us(course.lot_until_us, lot_us, now_us))
        return times

    def is_behind(self, step: int, rank: int, now_us: int) -> bool:
        """Whether a worker is still receiving sums of earlier steps, down a slow link. It is not silent then; if others
        did its work, more sums would be sent to it, and it would fall further behind.
        """
        worker = self._workers[rank]
        if worker.waited_us is None or step - worker.newest_step < BEHIND:
            return False
        return now_us - worker.waited_us <= HEARD_US + (1 + REPEATED) * worker.answer_us

    def find(self, state: Step, step: int, rank: int, missing: int, now_us: int) -> tuple[int, list[int]] | None:
        """Finds a shard, and micro-batches of it whose owner is silent, for a helper to back up. Returns: None: none.

        Args: missing: contributions that the helper's sums lack (a bitmap).
        """
        for holder, course in enumerate(state.courses):
            if holder == rank or (course.idle_us is not None and not course.lot):
                continue
            if self.is_behind(step, holder, now_us):
                continue
            late: dict[int, list[int]] = {}
            own_us, lot_us = self.backup_from_us(state, rank, holder)
            if course.idle_us is None and now_us >= own_us:
                late[holder] = list(range(state.held(holder)))  # those that it has computed it has not sent either
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
                    # The leader gets as many as it computes while an answer travels, so that it need not wait for the
                    # next one. It gets no more than its share, because other leaders ask at about the same time.
                    soon = math.ceil(self._workers[rank].answer_us / self._projection.expected_us(state, rank, shard))
                    leaders = sum(c.idle_us is not None and not c.lot for c in state.courses)
                    share = math.ceil(len(lost) / max(1, leaders))
                    return shard, lost[: max(1, min(soon, share), len(lost) // len(self._workers))]
        return None

    def _may_cross(self, state: Step, rank: int, holder: int, shard: int, own_us: int, now_us: int) -> bool:
        """Whether a worker may back up work whose leaf it does not see. A helper's lot may have arrived in that leaf,
        and is left to ranks below it. A silent owner's shard has not been sent; it is left to them only for as long as
        crossing racks costs.

        Args: own_us: when ranks below the leaf may back up the holder's own shard.
        """
        if self._racks.sees(state, rank, shard):
            return True
        return shard == holder and now_us >= own_us + self._racks.patience_us(shard)


def _until_us(due_us: int, silent_us: int, now_us: int) -> int:
    """After how long to ask about work that is due at `due_us`, and counts as silent at `silent_us`. The later it is
    already, the longer it is likely to take, and the rarer are the questions.
    """
    if now_us <= due_us:
        return due_us - now_us
    later_us = max(LEAST_POLL_US, int(POLL_LATER * (now_us - due_us)))
    return min(later_us, silent_us - now_us) if now_us < silent_us else later_us
