"""Settings of a parameter server's connection, and its events for the control plane. (protocol section 7.1)"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.message_fields import Results
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    lanes: int = 64
    """Lanes of the switches' program."""
    contribution_bits: int = CONTRIBUTION_BITS
    """Bits of the bitmaps of the switches' program: the most contributions of a job."""
    switch_address: Address | None = None
    """The address for contributions; None: the parameter server's own, with the switch on the way to it."""
    aggregates: bool = True
    """False: no switch aggregates; workers send contributions to the parameter server, which sends results to each."""
    levels: int = 1
    """Switches that aggregate on the way from a worker: 2 where leaves aggregate for a spine."""
    slots: int = 1024
    """Slots of the switch that jobs may use; a power of two."""
    slots_per_job: int = 1024
    """Quota of a job; a power of two. When no slots are free, jobs share them."""
    alive_every_us: int = 200_000
    """Time between two signs of life of a worker."""
    dead_after_us: int = 10_000_000
    """Silence after which a worker is lost, and its job fails."""


@dataclass(frozen=True, slots=True)
class HostLeaf:
    """A leaf switch that runs on the host of its ranks. (protocol section 4.8)"""

    ip: str
    """The host's address, which is that of its ranks."""
    down: int
    """The UDP port at which it takes results."""
    grpc: int
    """The TCP port of P4Runtime."""

    @property
    def where(self) -> str:
        """The P4Runtime address."""
        return f"{self.ip}:{self.grpc}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit:
    """All ranks of a job have joined: install it on the switches, then call `on_admitted` or `on_refused`.

    The job may be in another epoch by the time that the switches know it.
    """

    number: int
    epoch: int
    addresses: Mapping[int, Address]
    """Addresses of the workers, by rank."""
    map: ContributionMap
    slot_base: int
    slot_count: int
    leaves: Mapping[HostLeaf, tuple[int, ...]] = field(default_factory=dict)
    """The ranks below each leaf that is on a host, at least two."""
    results: Results = Results.TO_ALL
    server: Address | None = None
    """The parameter server's address as packets of the job carry it; who owns the socket says it."""

    @property
    def scattered_to(self) -> int:
        """Number of ranks among which results are scattered; 0: results go to all."""
        return len(self.addresses) if self.results is Results.SCATTERED else 0


@dataclass(frozen=True, slots=True)
class Retire:
    """An epoch of a job is over: switches may forget it."""

    number: int
    epoch: int


ServerEvent = Admit | Retire
