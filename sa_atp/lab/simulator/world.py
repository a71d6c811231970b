"""A simulated cluster: switches with the compiled program, a parameter server, workers, and the links between them.

star         workers ──> switch <── parameter server
two-level    workers ──> leaf ──> spine <── parameter server
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sa_atp.lab.simulator.network import Clock, Link, LinkSettings
from sa_atp.lab.simulator.nodes import Forwarder, SimHost, Switch
from sa_atp.protocol.help.plan import PLAIN
from sa_atp.protocol.help.plan import Kernels as PlanKernels
from sa_atp.protocol.log.event import Log, of_nobody
from sa_atp.protocol.packets.frames import mac_for
from sa_atp.protocol.packets.spec import UDP_PORT
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.server.server import ParameterServer
from sa_atp.protocol.server.server_events import Admit, Retire, ServerSettings
from sa_atp.switches.control import jobs, routes
from sa_atp.switches.control.jobspec import JobSpec, Member
from sa_atp.switches.control.writer import LocalWriter, Writer
from sa_atp.switches.embedded.pipeline import Pipeline

SERVER_IP = "10.0.255.1"
PLAIN_PORT = UDP_PORT + 1  # UDP port of a parameter server that sums by itself, without switches
INSTALL_US = 500  # time for the control plane to install or remove a job


def worker_ip(rank: int, network: int = 0) -> str:
    return f"10.0.{network}.{rank + 1}"


def mac_text(ip: str) -> str:
    mac = mac_for(ip)
    return ":".join(f"{mac >> shift & 255:02x}" for shift in range(40, -8, -8))


@dataclass(frozen=True, slots=True)
class SwitchPorts:
    """Switch ports of everything but workers, whose ports begin at 1. Some targets have fewer."""

    server: int = 500
    uplink: int = 501
    first_leaf: int = 100  # of the spine
    loop: int | None = None


@dataclass(slots=True)
class Rack:
    """A switch, the ports of the hosts below it, and the jobs installed on it."""

    switch: Switch
    writer: Writer
    ports: dict[str, int] = field(default_factory=dict)  # IP address: port
    installed: dict[int, JobSpec] = field(default_factory=dict)


def _writer(pipeline: Forwarder) -> Writer:
    if isinstance(pipeline, Pipeline):
        return LocalWriter(pipeline)
    assert isinstance(pipeline, Writer)
    return pipeline


class World:
    """A simulated cluster. All randomness follows from its seed."""

    def __init__(
        self,
        *,
        seed: int,
        pipelines: Sequence[Forwarder],
        links: LinkSettings,
        settings: ServerSettings,
        ttl_ticks: int = 50,
        trunk: LinkSettings | None = None,
        ports: SwitchPorts | None = None,
        kernels: Kernels | None = None,
        log_of: Callable[[str], Log] = of_nobody,
        plan_kernels: PlanKernels = PLAIN,
    ) -> None:
        """Args:
        pipelines: one for a star; for two levels the spine's, then one for each leaf. They are reset. A forwarder that
            is not a `Pipeline` has to be a `Writer` as well.
        links: settings of every link, in both directions; `add_worker` can override them for a worker.
        trunk: settings of links between switches and of the parameter server's link; None: as `links`.
        ports: switch ports of everything but workers.
        kernels: compiled kernels for the parameter server; None: it runs in plain Python.
        log_of: returns the parameter server's log for a job's name.
        plan_kernels: compiled kernels for its ledger; None: it runs in plain Python.
        """
        self.clock = Clock()
        self.random = random.Random(seed)
        self.links = links
        self.trunk = trunk or links
        self.ttl_ticks = ttl_ticks
        self.ports = ports or SwitchPorts()
        self._settings = replace(settings, levels=1 if len(pipelines) == 1 else 2)
        self._kernels = kernels
        self._log_of = log_of
        self._plan_kernels = plan_kernels
        self.server = self._new_server()
        self.all_links: list[Link] = []
        for pipeline in pipelines:
            pipeline.reset()
        self.racks = [Rack(Switch(self.clock, p), _writer(p)) for p in pipelines]
        self.root = self.racks[0]
        self.leaves = self.racks[1:]
        self.hosts: dict[str, SimHost] = {}
        self.links_of: dict[str, tuple[Link, Link]] = {}  # IP address: the way up, and the way down
        for number, leaf in enumerate(self.leaves):
            self._join(leaf, self.ports.uplink, self.root, self.ports.first_leaf + number)
        self.server_address = SERVER_IP, UDP_PORT if settings.aggregates else PLAIN_PORT
        self.server_host = self.attach(*self.server_address, self.root, self.ports.server, self.trunk)
        self.server_host.connection = self.server
        self.server_host.after = self._server_events

    def _new_server(self) -> ParameterServer:
        return ParameterServer(self._settings, self.random.getrandbits, self._kernels, self._log_of, self._plan_kernels)

    # --- building -----------------------------------------------------------------------------------------------------

    def link(self, deliver: Callable[[bytes], None], settings: LinkSettings | None = None) -> Link:
        found = Link(self.clock, settings or self.links, random.Random(self.random.getrandbits(64)), deliver)
        self.all_links.append(found)
        return found

    def attach(
        self,
        ip: str,
        udp_port: int,
        rack: Rack,
        port: int,
        links: LinkSettings | None = None,
        down_link: LinkSettings | None = None,
    ) -> SimHost:
        """Attaches a host to a port of a switch, and installs routes to it on all switches.

        Args: links: settings of its link; None: the network's. down_link: settings of the way down; None: as the way up.
        """
        host = SimHost(self.clock, ip, mac_for(ip), udp_port)
        host.uplink = self.link(rack.switch.input(port), links)
        down = rack.switch.ports[port] = self.link(host.receive, down_link or links)
        self.links_of[ip] = host.uplink, down
        rack.ports[ip] = port
        self.hosts[ip] = host
        for other in self.racks:
            if other is rack:
                other.ports[ip] = port
            elif other is self.root:
                other.ports[ip] = self.ports.first_leaf + self.leaves.index(rack)
            else:
                other.ports[ip] = self.ports.uplink
            routes.add(other.writer, ip, other.ports[ip])
        return host

    def add_worker(
        self,
        rank: int,
        network: int = 0,
        rate_mbps: float | None = None,
        *,
        loss: tuple[float, float] | None = None,
    ) -> SimHost:
        """Adds a host for a worker, below the leaves in turn.

        Args: rate_mbps: of its link; loss: (up, down); None: the network's.
        """
        rack = self.leaves[rank % len(self.leaves)] if self.leaves else self.root
        links = self.links if rate_mbps is None else replace(self.links, rate_mbps=rate_mbps)
        up, down = (links, links) if loss is None else (replace(links, loss=share) for share in loss)
        return self.attach(worker_ip(rank, network), 40_000 + rank, rack, 1 + rank + 64 * network, up, down)

    def _join(self, leaf: Rack, leaf_port: int, root: Rack, root_port: int) -> None:
        leaf.switch.ports[leaf_port] = self.link(root.switch.input(root_port), self.trunk)
        root.switch.ports[root_port] = self.link(leaf.switch.input(leaf_port), self.trunk)

    # --- control plane ------------------------------------------------------------------------------------------------

    def _server_events(self) -> None:
        while (event := self.server.next_event()) is not None:
            match event:
                case Admit() if not self.server.settings.aggregates:
                    self.server.on_admitted(event, self.clock.now_us)
                case Admit():
                    self._ordered(partial(self._install, event))
                case Retire(number, _):
                    self._ordered(partial(self._remove, number))

    def _ordered(self, order: Callable[[], None]) -> None:
        """Carries out an order of the parameter server after `INSTALL_US`, unless the server has restarted by then."""
        server = self.server

        def carry_out() -> None:
            if server is self.server:
                order()

        self.clock.at(self.clock.now_us + INSTALL_US, carry_out)

    def _remove(self, number: int) -> None:
        for rack in self.racks:
            jobs.remove(rack.writer, number)
            rack.installed.pop(number, None)

    def _install(self, job: Admit) -> None:
        for rack in self.racks:
            spec = self._spec(job, rack)
            if spec is not None:
                jobs.install(rack.writer, spec, share_slots=True)
                rack.installed[job.number] = spec
        leaves = [  # all leaves, with or without ranks of this job, as the control plane of real switches does
            [m.rank for m in rack.installed[job.number].members] if job.number in rack.installed else []
            for rack in self.leaves
        ]
        self.server.on_admitted(job, self.clock.now_us, leaves)
        self.server_host.serve()

    def _member(self, rack: Rack, ip: str, udp_port: int, rank: int = -1) -> Member:
        return Member(ip=ip, udp_port=udp_port, mac=mac_text(ip), switch_port=rack.ports[ip], rank=rank)

    def _spec(self, job: Admit, rack: Rack) -> JobSpec | None:
        """The job's configuration for a switch; None if none of its workers is below the switch."""
        members = [
            self._member(rack, ip, udp_port, rank)
            for rank, (ip, udp_port) in job.addresses.items()
            if rack is self.root or rack.ports[ip] != self.ports.uplink
        ]
        if not members:
            return None
        server = self._member(rack, SERVER_IP, UDP_PORT)
        return JobSpec(
            job=job.number,
            epoch=job.epoch,
            fan_in=job.map.summed_below(m.rank for m in members),
            slot_base=job.slot_base,
            slot_count=job.slot_count,
            scattered_to=job.scattered_to,
            group=job.number,
            ttl_ticks=self.ttl_ticks,
            level="root" if rack is self.root else "leaf",
            members=tuple(members),
            parameter_server=server,
            uplink=server,
            leaf_ports=tuple(self.ports.first_leaf + n for n in range(len(self.leaves))) if rack is self.root else (),
            loop_port=self.ports.loop,
        )

    # --- faults ---------------------------------------------------------------------------------------------------------

    def restart_switch(self, rack: Rack, down_us: int) -> None:
        """A power cycle: all state is gone; the control plane puts its tables back when the switch is up again."""
        rack.switch.up = False
        rack.switch.pipeline.reset()

        def back() -> None:
            rack.switch.up = True
            for ip, port in rack.ports.items():
                routes.add(rack.writer, ip, port)
            for spec in rack.installed.values():
                jobs.install(rack.writer, replace(spec), share_slots=True)

        self.clock.at(self.clock.now_us + down_us, back)

    def restart_server(self, down_us: int) -> None:
        """Restarts the parameter server without its state. Switches keep their tables."""
        self.server = self._new_server()
        self.server_host.connection = None
        for rack in self.racks:
            rack.installed.clear()

        def back(server: ParameterServer) -> None:
            if server is self.server:  # not restarted again meanwhile
                self.server_host.connection = server
                self.server_host.serve()

        self.clock.at(self.clock.now_us + down_us, partial(back, self.server))

    def pause_host(self, host: SimHost, for_us: int) -> None:
        """Pauses a host: packets that arrive meanwhile are lost."""
        host.paused = True

        def back() -> None:
            host.paused = False
            host.serve()

        self.clock.at(self.clock.now_us + for_us, back)

    def cut(self, places: Sequence[Link | Switch], for_us: int) -> None:
        """Takes links down, or pauses switches: packets that arrive meanwhile are lost, a switch's state stays."""

        def switch(up: bool) -> None:
            for place in places:
                place.up = up

        switch(False)
        self.clock.at(self.clock.now_us + for_us, partial(switch, True))

    def trunk_of(self, leaf: Rack) -> tuple[Link, Link]:
        """The links between a leaf and the root: the way up, and the way down."""
        number = self.leaves.index(leaf)
        return leaf.switch.ports[self.ports.uplink], self.root.switch.ports[self.ports.first_leaf + number]
