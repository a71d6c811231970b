"""A simulated star with another protocol's program on its switch, and a worker for each rank."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from sa_atp.basics.arrays import Values
from sa_atp.lab.peers.peer import Peer, PeerJob, Seat, Transport
from sa_atp.lab.simulator.network import Clock, Link, LinkSettings
from sa_atp.lab.simulator.nodes import SimHost, Switch
from sa_atp.lab.simulator.world import SERVER_IP, worker_ip
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.protocol.packets.spec import UDP_PORT
from sa_atp.switches.control.writer import LocalWriter
from sa_atp.switches.embedded.pipeline import Pipeline
from sa_atp.switches.p4runtime.entities import Update, UpdateKind


class PeerWorker:
    """A worker on a simulated host: all-reduces one after the other."""

    def __init__(self, host: SimHost, clock: Clock, transport: Transport) -> None:
        self.transport = transport
        self._host = host
        self._clock = clock
        self._sum: Future[Values]
        host.connection = transport
        host.after = self._serve

    def now_us(self) -> int:
        return self._clock.now_us

    def all_reduce(self, values: Values) -> "Future[Values]":
        """Begins the sum of float32[n] over all ranks. Raises: UserError: the protocol cannot sum these values."""
        self._sum = Future()
        self.transport.begin(values, self._clock.now_us)
        self._clock.at(self._clock.now_us, self._host.serve)
        return self._sum

    def _serve(self) -> None:
        found = self.transport.next_event()
        if found is not None:
            self._sum.set_result(found)
        elif self.transport.error is not None and not self._sum.done():
            self._sum.set_exception(self.transport.error)


class PeerWorld:
    """One switch, the job on it, and a link and a worker for each rank. All randomness follows from the seed."""

    def __init__(
        self,
        peer: Peer,
        pipeline: Pipeline,
        *,
        seed: int,
        lanes: int,
        slots: int,
        timeout_us: int,
        links: Sequence[LinkSettings],
    ) -> None:
        """Args:
        pipeline: a switch with the protocol's program, which is reset.
        lanes, slots, timeout_us: of the job, see PeerJob.
        links: the settings of each worker's link, in both directions.

        Raises: UserError: the job does not fit the program.
        """
        self.clock = Clock()
        self.links_of: dict[str, tuple[Link, Link]] = {}  # IP address: the way up, and the way down
        rng = random.Random(seed)
        pipeline.reset()
        switch = Switch(self.clock, pipeline)
        ips = [worker_ip(rank) for rank in range(len(links))]
        self.job = PeerJob(
            seats=tuple(
                Seat(ip=ip, mac=mac_for(ip), udp_port=40_000 + rank, switch_port=1 + rank)
                for rank, ip in enumerate(ips)
            ),
            switch=(SERVER_IP, UDP_PORT),
            switch_mac=mac_for(SERVER_IP),
            lanes=lanes,
            slots=slots,
            timeout_us=timeout_us,
        )
        LocalWriter(pipeline).write([Update(UpdateKind.INSERT, entry) for entry in peer.entries(self.job)])
        self.workers: list[PeerWorker] = []

        def link(deliver: Callable[[bytes], None], settings: LinkSettings) -> Link:
            return Link(self.clock, replace(settings), random.Random(rng.getrandbits(64)), deliver)

        for rank, seat in enumerate(self.job.seats):
            host = SimHost(self.clock, seat.ip, seat.mac, seat.udp_port)
            host.neighbours[SERVER_IP] = self.job.switch_mac
            host.uplink = link(switch.input(seat.switch_port), links[rank])
            down = switch.ports[seat.switch_port] = link(host.receive, links[rank])
            self.links_of[seat.ip] = host.uplink, down
            self.workers.append(PeerWorker(host, self.clock, peer.transport(rank, self.job)))
