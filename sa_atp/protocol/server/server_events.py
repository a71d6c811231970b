"""What a parameter server's connection is told, and what it asks of the control plane. (protocol section 7.1)"""

from collections.abc import Mapping
from dataclasses import dataclass

from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.datagrams import Address
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    lanes: int = 64
    """Lanes of the program that the switches run."""
    contribution_bits: int = CONTRIBUTION_BITS
    """... and how many bits its bitmaps have: the most contributions of a job."""
    switch_address: Address | None = None
    """Where workers send contributions, if the switch does not lie on the way to the parameter server."""
    aggregates: bool = True
    """False: no switch aggregates; workers send everything here, and results go to each of them."""
    levels: int = 1
    """Switches that aggregate on the way from a worker: 2 where leaves aggregate for a spine."""
    slots: int = 1024
    """Slots of the switch that jobs may use; a power of two."""
    slots_per_job: int = 1024
    """Quota of a job; a power of two. When no slots are free, jobs share them."""
    alive_every_us: int = 200_000
    dead_after_us: int = 10_000_000
    """A worker that has not been heard of for so long is lost, and its job fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admit:
    """All workers of a job are here: install it on the switches, then call `admitted` or `refused`.

    Says how the job was then: until the switches know it, it may have gone on to another epoch.
    """

    number: int
    epoch: int
    addresses: Mapping[int, Address]
    """Of the workers, by rank."""
    map: ContributionMap
    slot_base: int
    slot_count: int


@dataclass(frozen=True, slots=True)
class Retire:
    """The job, in this epoch, is over: switches may forget it."""

    number: int
    epoch: int


ServerEvent = Admit | Retire
