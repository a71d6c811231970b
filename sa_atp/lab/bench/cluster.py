"""What the all-reduce benchmark is asked for, and what it runs on."""

from dataclasses import dataclass, field

from sa_atp.lab.runs.processes import Process


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceRequest:
    workers: int
    bytes: int
    iterations: int
    lanes: int
    switch: str = "embedded"
    link_mbps: float | None = None
    """Rate of every link; None: there are no links that limit."""
    stations: bool = False
    """Whether workers look at the clock at every station of a packet's way."""
    mtu: int = 1500
    """Of every link."""


@dataclass(slots=True)
class Cluster:
    """Where the benchmark runs, as a backend has set it up."""

    workers: list[Process]
    server: str
    """Address of the parameter server, as `sa_atp.connect` takes it."""
    services: list[Process]
    """Switch and parameter server, whose CPU time counts too."""
    store: tuple[str, int]
    """Where rank 0 may listen for the peer's rendezvous."""
    interfaces: list[str | None] = field(default_factory=list)
    """Interface that each worker's peer must use; none: whatever it chooses."""
