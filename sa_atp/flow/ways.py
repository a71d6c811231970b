"""Which links a sum uses: to where it is added up, and back to everybody."""

from collections.abc import Iterable, Sequence

import numpy as np

from sa_atp.flow.fabric import SERVER, Fabric
from sa_atp.flow.network import Floats, Ints
from sa_atp.flow.stream import Stream


def ranks_of(streams: Sequence[Stream]) -> Ints:
    """int64[streams]: whose they are."""
    return np.fromiter((stream.rank for stream in streams), np.int64, len(streams))


class Ways:
    """Of one sum."""

    def __init__(self, fabric: Fabric, fragment_bytes: float, *, at_server: bool) -> None:
        """Args: at_server: the parameter server adds up, not the switches."""
        self._fabric = fabric
        self._fragment = fragment_bytes
        self._at_server = at_server

    # --- links --------------------------------------------------------------------------------------------------------

    def of_stream(self, stream: Stream) -> list[int]:
        """The links that a contribution has to itself; a leaf's sum, which crosses its trunk, is nobody's."""
        fabric = self._fabric
        if self._at_server:
            return fabric.path(stream.rank, SERVER)
        up = fabric.up[stream.rank]
        return [up, fabric.rack_up[fabric.rack_of(stream.rank)]] if stream.past_leaf else [up]

    def of_results(self, rank: int) -> list[int]:
        """The links of results that come to one worker later than to the others."""
        return self._fabric.path(SERVER, rank) if self._at_server else [self._fabric.down[rank]]

    def in_step(self, streams: Iterable[Stream], receivers: Iterable[int]) -> tuple[Ints, Floats]:
        """Each link that something uses which moves in step, and how many times. Args: receivers: ranks."""
        fabric = self._fabric
        used: dict[int, float] = {}

        def use(link: int) -> None:
            used[link] = used.get(link, 0.0) + 1.0

        has_racks = bool(fabric.settings.racks) and not self._at_server
        racks: set[int] = set()  # whose leaves add up, and pass on what they added up
        for stream in streams:
            for link in self.of_stream(stream):
                use(link)
            if has_racks and not stream.past_leaf:
                racks.add(fabric.rack_of(stream.rank))
        receiving: set[int] = set()
        for rank in receivers:
            for link in self.of_results(rank):
                use(link)
            if has_racks:
                receiving.add(fabric.rack_of(rank))
        for rack in sorted(racks):
            use(fabric.rack_up[rack])
        for rack in sorted(receiving):
            use(fabric.rack_down[rack])
        return np.fromiter(used, np.int64, len(used)), np.fromiter(used.values(), np.float64, len(used))

    # --- times --------------------------------------------------------------------------------------------------------

    def up_us(self, ranks: Ints) -> float:
        """What the last packet takes to where it is summed, after it has left; of some workers the longest."""
        own, beyond, _ = self._fabric.ways_us(self._fragment)
        links = np.array(self._fabric.up)[ranks]
        first = own[ranks] - self._fragment / self._fabric.network.capacity(links)
        return float((first + beyond[ranks]).max()) + self._server_us

    def down_us(self) -> Floats:
        """float64[workers]: what a result takes from there to each."""
        return self._fabric.ways_us(self._fragment)[2]

    def round_trip_us(self, ranks: Ints) -> float:
        """From the first bit of a fragment to the last bit of its sum; of some workers the longest."""
        own, beyond, back = self._fabric.ways_us(self._fragment)
        return float((own + beyond + back)[ranks].max()) + self._server_us

    @property
    def _server_us(self) -> float:
        """From the root to the parameter server and back, where that one sums."""
        if not self._at_server:
            return 0.0
        links = np.array([self._fabric.server_up, self._fabric.server_down])
        return float(self._fabric.network.packet_us(links, self._fragment).sum())
