"""The request of the all-reduce benchmark, and the cluster that it runs on."""

from dataclasses import dataclass, field

from sa_atp.lab.backends.peer_switch import PeerSwitch
from sa_atp.lab.runs.processes import Process


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceRequest:
    workers: int
    bytes: int
    iterations: int
    lanes: int
    switch: str = "embedded"
    link_mbps: float | None = None
    """Rate of every link; None: unlimited."""
    stations: bool = False
    """Whether workers measure the time at every station of a packet (`stations`)."""
    mtu: int = 1500
    """MTU of every link."""
    shares: bool = True
    """Whether workers on the switch's machine may share memory with it."""


@dataclass(slots=True)
class Cluster:
    """The processes of the benchmark, started by a backend."""

    workers: list[Process]
    server: str
    """Address of the parameter server, for `sa_atp.connect`; "": there is none."""
    services: list[Process]
    """Switch and parameter server, whose CPU time counts, too."""
    store: tuple[str, int]
    """Address at which rank 0 may listen for the peer's rendezvous."""
    interfaces: list[str | None] = field(default_factory=list)
    """By rank: network interface for the peer; None: it chooses."""
    peers: PeerSwitch | None = None
    """The switch, if it is for protocols with a program of their own."""
    beside: "Cluster | None" = None
    """The cluster for these protocols."""
