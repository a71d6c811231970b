"""The topology as links of a flow network: the same star and tree that simulator.world builds of switches.

star         workers ──> switch <── parameter server
two-level    workers ──> leaf ──> spine <── parameter server

Each link has two directions, each with the link's whole rate. The delays of single packets and messages are here, too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sa_atp.lab.flow.arrays import Floats
from sa_atp.lab.flow.network import FlowNetwork
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES, Clock

FRAME_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP: as in the simulator's frames
TCP_FRAME_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with its time stamps
MTU = 1500
SERVER = -1
"""The parameter server, in place of a rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricSettings:
    """Rates and delays of a fabric, as in plans."""

    workers: int
    racks: int = 0
    """Number of leaves, to which workers are assigned in turn; 0: a star."""
    link_mbps: float = 10_000.0
    trunk_mbps: float = 0.0
    """Rate of links between switches and of the parameter server's link; 0: link_mbps."""
    server_mbps: float = 0.0
    """Rate of the parameter server's link; 0: trunk_mbps."""
    worker_mbps: Sequence[float] = ()
    delay_us: int = 20


def stream_bytes(payload: float) -> float:
    """Bytes on the wire for so much payload in full TCP segments, with all headers and gaps."""
    segment = MTU - (TCP_FRAME_BYTES - 14)
    packets = math.ceil(payload / segment)
    return payload + packets * (TCP_FRAME_BYTES + WIRE_OVERHEAD_BYTES)


class Fabric:
    """The links of a cluster. Ranks name workers, SERVER the parameter server."""

    def __init__(self, clock: Clock, settings: FabricSettings) -> None:
        self.clock = clock
        self.settings = settings
        self.network = FlowNetwork(clock)
        trunk = settings.trunk_mbps or settings.link_mbps
        rates = settings.worker_mbps or [settings.link_mbps] * settings.workers

        def pair(rate_mbps: float) -> tuple[int, int]:
            return (
                self.network.add_link(rate_mbps, settings.delay_us),
                self.network.add_link(rate_mbps, settings.delay_us),
            )

        links = [pair(rate) for rate in rates]
        self.up = [up for up, _ in links]  # of each worker
        self.down = [down for _, down in links]
        self.server_up, self.server_down = pair(settings.server_mbps or trunk)
        trunks = [pair(trunk) for _ in range(settings.racks)]
        self.rack_up = [up for up, _ in trunks]
        self.rack_down = [down for _, down in trunks]
        self._path_times: tuple[int, float, Floats, Floats, Floats] | None = None
        self._message_free_us = [0.0] * len(self.network.delay_us)  # by link: when its last message has left

    @property
    def levels(self) -> int:
        """Switches between a worker and the parameter server."""
        return 2 if self.settings.racks else 1

    def rack_of(self, rank: int) -> int:
        """The number of a worker's leaf."""
        return rank % self.settings.racks

    def path(self, source: int, target: int) -> list[int]:
        """The links from one host to another."""
        first = self.server_up if source == SERVER else self.up[source]
        last = self.server_down if target == SERVER else self.down[target]
        if not self.settings.racks:
            return [first, last]
        leave = [] if source == SERVER else [self.rack_up[self.rack_of(source)]]
        enter = [] if target == SERVER else [self.rack_down[self.rack_of(target)]]
        if SERVER not in (source, target) and self.rack_of(source) == self.rack_of(target):
            return [first, last]
        return [first, *leave, *enter, last]

    def latency_us(self, links: Sequence[int], packet_bytes: float) -> float:
        """Time for a flow's last packet to arrive after it has left the slowest link: delays, and the other links."""
        times = [self.network.transmission_us(link, packet_bytes) for link in links]
        return sum(self.network.delay_us[link] for link in links) + sum(times) - max(times)

    def path_times_us(self, packet_bytes: float) -> tuple[Floats, Floats, Floats]:
        """Travel times of a packet on idle links.

        Returns: float64[workers] each: over a worker's own link; from there to the root; from the root to the worker.
        """
        if self._path_times is None or self._path_times[:2] != (self.network.changes, packet_bytes):
            packet_us = self.network.packet_us
            up, down = packet_us(np.array(self.up), packet_bytes), packet_us(np.array(self.down), packet_bytes)
            beyond = np.zeros(len(up))
            if self.settings.racks:
                rack = np.arange(len(up)) % self.settings.racks
                beyond = packet_us(np.array(self.rack_up), packet_bytes)[rack]
                down = down + packet_us(np.array(self.rack_down), packet_bytes)[rack]
            self._path_times = self.network.changes, packet_bytes, up, beyond, down
        return self._path_times[2:]

    # --- messages -----------------------------------------------------------------------------------------------------

    def message(self, links: Sequence[int], size: int, arrived: Callable[[], None], *, behind_us: float = 0.0) -> None:
        """Sends a small datagram. It queues on each link behind other messages, and does not slow down flows.

        Args:
            links: its path.
            size: bytes of UDP payload.
            arrived: called when it arrives.
            behind_us: how long it waits in the sender's own queue behind earlier data.
        """
        wire = size + FRAME_BYTES + WIRE_OVERHEAD_BYTES
        if behind_us > 0:  # other messages may overtake it meanwhile
            self.clock.at(self.clock.now_us + math.ceil(behind_us), lambda: self.message(links, size, arrived))
            return
        when_us = float(self.clock.now_us)
        for link in links:
            begins_us = max(when_us, self._message_free_us[link])
            self._message_free_us[link] = begins_us + self.network.transmission_us(link, wire)
            when_us = self._message_free_us[link] + self.network.delay_us[link]
        if math.isfinite(when_us):
            self.clock.at(math.ceil(when_us), arrived)
