"""Workers that have fallen silent: when others may back up their work, and which part of it. (protocol section 10.3)"""

import math
from collections.abc import Sequence

from sa_atp.protocol.help.believing import backup_lot_us, backup_own_us, expected_us, has_none
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap


class Silence:
    def __init__(self, workers: Sequence[Worker], bits: ContributionMap, projection: Projection, racks: Racks) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._racks = racks
        self._map = bits
        self._projection = projection

    def find(self, state: Step, rank: int, missing: int, now_us: int) -> tuple[int, list[int]] | None:
        """Finds a shard, and micro-batches of it whose owner is silent, for a helper to back up. Returns: None: none.

        Args: missing: contributions that the helper's sums lack (a bitmap).
        """
        beliefs = self._projection.beliefs(state)
        helper = beliefs[rank]
        for holder in self._projection.late(state, rank, now_us):
            b = beliefs[holder]
            late: dict[int, list[int]] = {}
            own_us = backup_own_us(b, helper)
            if not b.is_idle and now_us >= own_us:
                late[holder] = list(range(b.held))  # those that it has computed it has not sent either
            if b.has_lot and now_us >= backup_lot_us(b, helper):
                for shard, m in state.courses[holder].lot:
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
                    soon = math.ceil(helper.answer_us / expected_us(helper, beliefs[shard]))
                    leaders = sum(map(has_none, beliefs))
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
