"""The description of a network before it is built: hosts, switches, cables, and routes.

star        w0 w1 ... ── s1 ── ps
two-level   w0 w2 ... ── leaf1 ──┐
            w1 w3 ... ── leaf2 ──┴── spine ── ps
"""

import ipaddress
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.jobspec import DROP_PORT, Level

HostRole = Literal["worker", "server", "traffic"]

NEIGHBOURS = ipaddress.IPv4Network("10.0.0.0/8")  # the subnet of all hosts
MOST_PORT = DROP_PORT - 1  # largest port number of a switch
# Interface names are "NAME-eth0" of a host and "NAME-eth510" of a switch, with at most 15 letters
HOST_NAME_LETTERS = 15 - len("-eth0")
SWITCH_NAME_LETTERS = 15 - len(f"-eth{MOST_PORT}")
LEAST_DELAY_US = 50
# A queue shorter than a few super-packets would drop them whole, again and again.
LEAST_QUEUE_OF_SUPER_PACKETS = 200
# A shaper passes a super-packet as a whole when its first byte may be sent, so its last datagram arrives too early by the
# transmission time of the whole.
SUPER_PACKET_BITS = 8 * 65536
LONGEST_SUPER_PACKET_S = 0.006
# UDP and TCP ports of background traffic, by which links classify it: 5200 to 5215
BACKGROUND_PORTS, BACKGROUND_MASK = 5200, 0xFFF0


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkQuality:
    """The settings of a link, for both directions."""

    rate_mbps: float | None = None
    """None: unlimited."""
    delay_us: int = 0
    jitter_us: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    queue_packets: int = 1000
    """Capacity of the queue; further packets are dropped."""
    mtu: int = 1500
    """Bytes of the largest IP packet that it carries."""
    own_share: float = 1.0
    """Share of the link guaranteed to the host's own traffic on the way up; background traffic may take the rest."""

    @property
    def needs_emulation(self) -> bool:
        """Whether the link needs emulation beyond a rate: a veth and two processes have a small delay anyway."""
        return bool(self.delay_us >= LEAST_DELAY_US or self.jitter_us or self.loss or self.duplicate or self.reorder)

    @property
    def takes_super_packets(self) -> bool:
        """Whether several datagrams may cross the link as one packet."""
        is_fast = self.rate_mbps is None or self.rate_mbps * 1e6 * LONGEST_SUPER_PACKET_S >= SUPER_PACKET_BITS
        return is_fast and self.queue_packets >= LEAST_QUEUE_OF_SUPER_PACKETS

    def queues(self, *, joins: bool) -> tuple[str, ...]:
        """The kinds of queues at its ends (links.py). Args: joins: whether the switches take super-packets."""
        if self.rate_mbps is None:
            return ()
        return ("htb", "bfifo") if joins and self.takes_super_packets else ("htb", "tbf", "pfifo")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostNode:
    name: str
    ip: str
    role: HostRole
    rank: int = -1
    job: int = 0
    cpu: float | None = None
    """Share of one core that its processes may use together; None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchNode:
    name: str
    level: Level = "root"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """A link between two nodes. Ports of hosts are 0; those of switches count from 1."""

    node: str
    other: str
    port: int = 0
    other_port: int = 0
    quality: LinkQuality = field(default_factory=LinkQuality)


class NetworkLayout:
    """The nodes and cables of a network."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostNode] = {}
        self.switches: dict[str, SwitchNode] = {}
        self.cables: list[Cable] = []

    # --- building -----------------------------------------------------------------------------------------------------

    def add_host(self, host: HostNode) -> None:
        self.hosts[host.name] = host

    def add_switch(self, switch: SwitchNode) -> None:
        self.switches[switch.name] = switch

    def connect(
        self, node: str, other: str, quality: LinkQuality, *, port: int | None = None, other_port: int | None = None
    ) -> None:
        """Adds a link. Args: port, other_port: of switches; default: the first free. Raises: UserError: none is free."""
        port = self._free_port(node) if port is None else port
        other_port = self._free_port(other) if other_port is None else other_port
        self.cables.append(Cable(node=node, other=other, port=port, other_port=other_port, quality=quality))

    def _free_port(self, node: str) -> int:
        if node in self.hosts:
            return 0
        used = {port for port, _ in self.neighbours(node)}
        port = next(number for number in itertools.count(1) if number not in used)
        if port > MOST_PORT:
            raise UserError(f"switch {node}: all of its ports, 1 to {MOST_PORT}, are in use, and one more is needed")
        return port

    # --- queries ------------------------------------------------------------------------------------------------------

    def neighbours(self, node: str) -> list[tuple[int, str]]:
        """(port, neighbour) of every link of a node."""
        found = [(c.port, c.other) for c in self.cables if c.node == node]
        return found + [(c.other_port, c.node) for c in self.cables if c.other == node]

    def queues(self, *, joins: bool) -> tuple[str, ...]:
        """The kinds of queues of its links. Args: as those of LinkQuality.queues."""
        return tuple(dict.fromkeys(kind for cable in self.cables for kind in cable.quality.queues(joins=joins)))

    def workers(self, job: int = 0) -> list[HostNode]:
        """The workers of a job, by rank."""
        return sorted((h for h in self.hosts.values() if h.role == "worker" and h.job == job), key=lambda h: h.rank)

    @property
    def jobs(self) -> int:
        return 1 + max((h.job for h in self.hosts.values()), default=0)

    @property
    def server(self) -> HostNode:
        """The parameter server's host."""
        return next(h for h in self.hosts.values() if h.role == "server")

    @property
    def root(self) -> SwitchNode:
        """The root switch of aggregation."""
        return next(s for s in self.switches.values() if s.level == "root")

    def ports(self, switch: str) -> dict[str, int]:
        """By IP address of each host: the port of a switch on the shortest path to it."""
        found: dict[str, int] = {}
        reached = {switch}
        queue: deque[tuple[str, int]] = deque()
        for port, node in sorted(self.neighbours(switch)):
            if node not in reached:
                reached.add(node)
                queue.append((node, port))
        while queue:
            node, port = queue.popleft()
            if node in self.hosts:
                found[self.hosts[node].ip] = port
                continue
            for _, further in sorted(self.neighbours(node)):
                if further not in reached:
                    reached.add(further)
                    queue.append((further, port))
        return found

    def port_towards(self, switch: str, other: str) -> int:
        """The port of a switch towards a neighbour."""
        return next(port for port, node in self.neighbours(switch) if node == other)

    def switch_file(self, grpc: Mapping[str, str], mark_above: int) -> dict[str, Any]:
        """The content of the file for `sa-atp ps --switches`.

        Args: grpc: P4Runtime address of each switch; mark_above: queue length of a port above which packets are marked
            as congested.
        """
        root = self.root.name
        switches: list[dict[str, Any]] = []
        for switch in self.switches.values():
            entry: dict[str, Any] = {"grpc": grpc[switch.name], "level": switch.level, "hosts": self.ports(switch.name)}
            entry["mark_above"] = mark_above
            if switch.level == "leaf":
                entry["uplink_port"] = self.port_towards(switch.name, root)
            else:
                entry["leaf_ports"] = [port for port, node in self.neighbours(switch.name) if node in self.switches]
            switches.append(entry)
        return {"switches": switches}

    def check(self, where: str) -> None:
        """Checks that the network can be built. Raises: UserError."""
        if sum(s.level == "root" for s in self.switches.values()) != 1:
            raise UserError(f"{where}: exactly one switch must be the root of aggregation")
        root = self.root.name
        for switch in self.switches.values():
            if switch.level == "leaf" and root not in {node for _, node in self.neighbours(switch.name)}:
                raise UserError(f"{where}: switch {switch.name} must have a link to {root}, which aggregates last")
        for name in self.switches:
            missing = {h.ip for h in self.hosts.values()} - self.ports(name).keys()
            if missing:
                raise UserError(f"{where}: no way from switch {name} to {', '.join(sorted(missing))}")
