"""Records of what processes tell: one for each kind of process. JSON at the door; times are in microseconds.

Counters count from the start of what they are about: a process, a connection, an epoch of a job.
"""

from pathlib import PurePath

from msgspec import Struct, field


class RankState(Struct, frozen=True, kw_only=True):
    """A rank as the parameter server sees it, by its signs of life, five a second."""

    rank: int
    address: str
    heard_ms: int
    """Time since it was last heard of."""
    still_ms: int
    """Time since it last made progress, or joined."""
    is_waiting: bool
    """Whether it has sums under way."""
    has_left: bool
    owes: int = 0
    """Its contributions to its oldest sum under way that its program has not handed over; 0 while it has none."""
    late: int = 0
    last: int = 0
    """Sums in which it was late, and the latest of all. (protocol section 7.7)"""
    late_us: int = 0
    late_computing_us: int = 0
    late_sending_us: int = 0
    """Its delay behind the others in these sums, and what it was due to."""
    waited_us: int = 0
    """Time from its contributions to the sums that were compared."""


class JobState(Struct, frozen=True, kw_only=True):
    """A job of a parameter server, in its newest epoch."""

    name: str
    number: int
    epoch: int
    state: str
    """gathering, admitting, running, failed or ended."""
    world_size: int
    micro_batches: int
    slots: int
    """Slots of each switch that it may use; 0: not known."""
    verdict: str
    """A sentence about what the job waits for."""
    is_stuck: bool
    waited_for: list[int]
    """The ranks that it waits for; empty: none, or no rank is the cause."""
    missing: list[int]
    """Ranks that have not joined."""
    sums: int = 0
    """Sums for which the waits of all ranks were compared."""
    slow: str = ""
    """A sentence about which ranks were slow, and at what; empty: nothing is known of it."""
    ranks: list[RankState] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    """The parameter server's counters. (protocol section 8)"""


class ServerState(Struct, frozen=True, kw_only=True, tag="parameter server"):
    address: str
    """HOST:PORT, where it listens."""
    reached: list[str] = field(default_factory=list)
    """HOST:PORT, where ranks reach it, if it listens on all addresses of its host."""
    process: int = 0
    parent: int = 0
    switches: list[str] = field(default_factory=list)
    """P4Runtime addresses of its switches."""
    slots: int = 0
    """Slots of each switch that jobs may use."""
    malformed: int = 0
    foreign: int = 0
    """Packets of no job."""
    jobs: list[JobState] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        """All addresses by which it is known."""
        return [self.address, *self.reached]


class ConnectionState(Struct, frozen=True, kw_only=True, tag="rank"):
    """A rank's own view of its connection."""

    server: str
    """HOST:PORT of the parameter server."""
    job: int
    """The job's number at the parameter server."""
    epoch: int
    rank: int
    world_size: int
    process: int = 0
    parent: int = 0
    connected_us: int
    """Time since it joined."""
    steps: int
    """Sums done that are measured (protocol section 7.7); with the DDP hook one for each step. In a job
    with seats, where none is measured: sums begun."""
    sums: int
    """Sums begun."""
    is_waiting: bool
    """Whether sums are under way."""
    helps: int | None = None
    """The rank whose micro-batches it computes; None: nobody's."""
    helped: int = 0
    """Micro-batches of other ranks that it was given to compute."""
    waited_us: int
    """Time from its contributions to their sums, of the measured sums; other time is computing, and everything else."""
    sent_us: int
    """The part of that time in which its contributions left."""
    computed_us: int = 0
    """Other time up to the newest of these sums; in a job with seats: since it joined."""
    window: float
    """Fragments that may be on their way."""
    slot_window: float
    """Slots that its job tries to hold at once."""
    round_trip_us: int
    shares_memory: bool
    counters: dict[str, int] = field(default_factory=dict)
    """Its counters: `WorkerStats`."""


class PortState(Struct, frozen=True, kw_only=True):
    number: int
    name: str


class DropState(Struct, frozen=True, kw_only=True):
    """Packets that a switch dropped for one reason."""

    where: str
    """The port; empty: the switch."""
    cause: str
    reason: str
    """The cause as a word, and in words."""
    packets: int


class SwitchState(Struct, frozen=True, kw_only=True, tag="switch"):
    grpc: str
    """Its P4Runtime address."""
    process: int = 0
    parent: int = 0
    device_id: int
    running_us: int
    """Time since it started."""
    ports: list[PortState] = field(default_factory=list)
    packets_in: int
    packets_out: int
    unattached: int
    """Packets for ports that are not attached."""
    drops: list[DropState] = field(default_factory=list)
    slots: int = 0
    slots_open: int = 0
    """Slots of the program, and those whose sum is not complete; 0 if it is another program than the aggregation's."""
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    """Packets by job's number and event (protocol section 8); events that have not occurred are left out."""

    @property
    def name(self) -> str:
        """Its P4Runtime address, or of a Unix socket the file's name, which in Mininet is the switch's."""
        return PurePath(self.grpc).stem if self.grpc.startswith("unix:") else self.grpc


Told = ServerState | SwitchState | ConnectionState
