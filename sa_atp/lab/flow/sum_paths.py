"""The links that a sum uses: to the node that adds it up, and back to all workers."""

import numpy as np

from sa_atp.lab.flow.arrays import Flags, Floats, Ints
from sa_atp.lab.flow.fabric import Fabric

NONE = -1  # no link


class SumPaths:
    """The paths of one sum."""

    def __init__(self, fabric: Fabric, fragment_bytes: float, *, at_server: bool) -> None:
        """Args: at_server: whether the parameter server sums instead of the switches."""
        self._fabric = fabric
        self._fragment = fragment_bytes
        self._at_server = at_server
        racks = fabric.settings.racks
        self.up, self.down = np.array(fabric.up), np.array(fabric.down)
        rack = np.arange(len(self.up)) % max(1, racks)
        self._trunk_up, self._trunk_down = (
            np.array(trunks or [NONE])[rack] for trunks in (fabric.rack_up, fabric.rack_down)
        )

    # --- links --------------------------------------------------------------------------------------------------------

    def of_streams(self, ranks: Ints, past_leaf: Flags) -> Ints:
        """int64[streams, links]: the links of single contributions, padded with -1.

        A leaf's trunk carries the leaf's sum, which is not a single contribution.
        """
        up, trunk = self.up[ranks], self._trunk_up[ranks]
        if self._at_server:
            return np.stack([up, trunk, np.full(len(ranks), self._fabric.server_down)], 1)
        return np.stack([up, np.where(past_leaf, trunk, NONE)], 1)

    def of_results(self, ranks: Ints) -> Ints:
        """int64[ranks, links]: the links of results that workers get later than others."""
        down = self.down[ranks]
        if self._at_server:
            return np.stack([np.full(len(ranks), self._fabric.server_up), self._trunk_down[ranks], down], 1)
        return down[:, None]

    def in_step(self, ranks: Ints, past_leaf: Flags, receivers: Ints) -> tuple[Ints, Floats]:
        """Returns the links of all that moves in step, and how many times each is used.

        Args: ranks, past_leaf: of the streams. receivers: ranks.
        """
        paths = [self.of_streams(ranks, past_leaf).ravel(), self.of_results(receivers).ravel()]
        if not self._at_server:  # leaves sum, and pass their sums on
            paths += [np.unique(self._trunk_up[ranks[~past_leaf]]), np.unique(self._trunk_down[receivers])]
        used = np.concatenate(paths)
        links, times = np.unique(used[used != NONE], return_counts=True)
        return links, times.astype(np.float64)

    # --- times --------------------------------------------------------------------------------------------------------

    def up_us(self, ranks: Ints) -> float:
        """Travel time of the last packet to the node that sums, the longest of some workers."""
        own, beyond, _ = self._fabric.path_times_us(self._fragment)
        first = own[ranks] - self._fragment / self._fabric.network.capacity(self.up[ranks])
        return float((first + beyond[ranks]).max()) + self._server_us

    def down_us(self) -> Floats:
        """float64[workers]: travel time of a result to each worker."""
        return self._fabric.path_times_us(self._fragment)[2]

    def round_trip_us(self, ranks: Ints) -> float:
        """Time from the first bit of a fragment to the last bit of its sum, the longest of some workers."""
        own, beyond, back = self._fabric.path_times_us(self._fragment)
        return float((own + beyond + back)[ranks].max()) + self._server_us

    @property
    def _server_us(self) -> float:
        """Time from the root to the parameter server and back, if the server sums; else 0."""
        if not self._at_server:
            return 0.0
        links = np.array([self._fabric.server_up, self._fabric.server_down])
        return float(self._fabric.network.packet_us(links, self._fragment).sum())
