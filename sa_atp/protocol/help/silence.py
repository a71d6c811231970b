"""Workers that have fallen silent: when others may back up their work, and which part of it. (protocol section 10.3)"""

from sa_atp.protocol.help.believing import backup_lot_us, backup_own_us
from sa_atp.protocol.help.progress import Step
from sa_atp.protocol.help.projection import Projection
from sa_atp.protocol.help.racks import Racks
from sa_atp.protocol.packets.contributions import ContributionMap


class Silence:
    def __init__(self, bits: ContributionMap, projection: Projection, racks: Racks) -> None:
        self._racks = racks
        self._map = bits
        self._projection = projection

    def late(self, state: Step, rank: int, missing: int, now_us: int) -> list[tuple[int, int]]:
        """Micro-batches, as (shard, micro-batch), that a helper may back up because whoever owns them is silent.

        Args: missing: contributions that sums lack (a bitmap).
        """
        beliefs = self._projection.beliefs(state)
        helper, found = beliefs[rank], []
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
                lacking = (m for m in micro_batches if missing & self._map.bit(shard, m))
                found += [(shard, m) for m in lacking if (shard, m) not in state.copied]
        return found

    def _may_cross(self, state: Step, rank: int, holder: int, shard: int, own_us: int, now_us: int) -> bool:
        """Whether a worker may back up work whose leaf it does not see. A helper's lot may have arrived in that leaf,
        and is left to ranks below it. A silent owner's shard has not been sent; it is left to them only for as long as
        crossing racks costs.

        Args: own_us: when ranks below the leaf may back up the holder's own shard.
        """
        if self._racks.sees(state, rank, shard):
            return True
        return shard == holder and now_us >= own_us + self._racks.patience_us(shard)
