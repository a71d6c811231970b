"""A job on the flow network: its sums and its members."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab.flow.aggregation import Aggregation
from sa_atp.lab.flow.arrays import Floats
from sa_atp.lab.flow.fabric import FRAME_BYTES, SERVER, Fabric
from sa_atp.lab.flow.help_groups import Answer, HelpGroups, Question
from sa_atp.lab.flow.network import BYTES_PER_US
from sa_atp.lab.flow.sums import Adder, Total
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES
from sa_atp.protocol.job.membership import Membership
from sa_atp.protocol.numbers.fragments import plan_of
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.packets.control import CutOff, encode
from sa_atp.protocol.packets.header import size_of
from sa_atp.protocol.packets.help_messages import Assignment
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, UDP_PORT, Kind
from sa_atp.protocol.rank.pace.window import INITIAL_WINDOW

ALIVE_EVERY_US = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """The settings of a job."""

    world_size: int
    micro_batches: int
    help_grade: HelpGrade = HelpGrade.NONE
    seats: int = 0
    """Number of workers in a sum, the first to finish; 0: all."""
    lanes: int = 256
    contribution_bits: int = CONTRIBUTION_BITS
    slots: int = 1024
    """The job's quota of the switch's memory."""
    at_server: bool = False
    """Whether the parameter server sums, not the switches."""
    cut_off: CutOff | None = None
    """When seats close; None: when all are taken."""
    sizes_only: int = 0
    """Sums of so many values are transferred but not added up; 0: all are added up."""


@dataclass(slots=True, eq=False)
class FlowOperation:
    """One sum of the job."""

    index: int
    values: int
    key: object
    aggregation: Aggregation
    adds: bool
    parts: dict[int, Values] = field(default_factory=dict)
    """The values of each contribution."""
    total: Total | None = None
    waiting: int = 0
    """Number of ranks that do not have the sum yet."""


class FlowJob:
    """A job on the flow network. All ranks are members from the start; failures are only simulated with packets."""

    def __init__(self, fabric: Fabric, settings: JobSettings, arrived: Callable[[int, FlowOperation], None]) -> None:
        """Args: arrived: called with a rank and an operation when the rank has its sum."""
        n = settings.world_size
        self.fabric = fabric
        self.settings = settings
        self.map = ContributionMap(n, settings.micro_batches, settings.seats)
        self.fan_in = self.map.fan_in
        racks = fabric.settings.racks
        self._leaves = [range(k, n, racks) for k in range(racks)]
        self.help = HelpGroups(self.map, settings.help_grade, self._leaves, settings.cut_off)
        self._arrived = arrived
        self.assigned: dict[int, Callable[[Assignment], None]] = {}
        """Functions, by rank, called with what the parameter server says though the rank has not asked just now."""
        self._operations: dict[int, FlowOperation] = {}
        self._adders: dict[object, Adder] = {}
        self._gathered: set[object] = set()  # keys whose scale has been gathered once
        self._results = np.zeros(n)  # by rank: fragments of sums received
        self.window_bytes: Floats = np.full(n, min(INITIAL_WINDOW, settings.slots) * self.fragment_bytes)
        self._sizes: dict[type, int] = {}

    @property
    def fragment_bytes(self) -> float:
        """Bytes of a fragment on the wire, with all headers and gaps."""
        return float(
            size_of(Kind.DATA, self.settings.lanes, self.settings.contribution_bits) + FRAME_BYTES + WIRE_OVERHEAD_BYTES
        )

    def sequential_us(self, values: int) -> float:
        """Time of a sum if all contributions, and then all results, cross the slowest link one by one."""
        network = self.fabric.network
        slowest = min(filter(None, map(network.rate_mbps, range(len(network.delay_us)))))
        size = plan_of(values, self.settings.lanes).data_fragments * self.fragment_bytes
        return 2 * self.settings.world_size * size / (slowest * BYTES_PER_US)

    def membership(self, rank: int) -> Membership:
        """A rank's membership, as a connection would have it."""
        settings = self.settings
        below = self._leaves[self.fabric.rack_of(rank)] if self._leaves else ()
        return Membership(
            job=1,
            epoch=0,
            rank=rank,
            world_size=settings.world_size,
            micro_batches=settings.micro_batches,
            seats=settings.seats,
            lanes=settings.lanes,
            contribution_bits=settings.contribution_bits,
            slot_base=0,
            slot_count=settings.slots,
            first_seq=0,
            data_address=("", UDP_PORT),
            server_address=("", UDP_PORT),
            alive_every_us=ALIVE_EVERY_US,
            help_grade=settings.help_grade,
            levels=self.fabric.levels,
            leaf_ranks=sum(1 << other for other in below),
        )

    # --- sums ---------------------------------------------------------------------------------------------------------

    def begin(self, rank: int, index: int, values: int, key: object) -> FlowOperation:
        """A rank begins its n-th sum; the first rank creates the operation."""
        operation = self._operations.get(index)
        if operation is None:
            operation = self._operations[index] = self._new(index, values, key)
        operation.aggregation.begin(rank)
        return operation

    def _new(self, index: int, values: int, key: object) -> FlowOperation:
        plan = plan_of(values, self.settings.lanes, self.settings.contribution_bits)
        adds = values != self.settings.sizes_only
        gathers = key is None or key not in self._gathered
        self._gathered.add(key)

        def arrived(rank: int) -> None:
            self._results[rank] += plan.data_fragments
            window = min(self.settings.slots, INITIAL_WINDOW + self._results[rank])
            self.window_bytes[rank] = window * self.fragment_bytes
            operation.waiting -= 1
            if not operation.waiting:
                del self._operations[index]
            self._arrived(rank, operation)

        def complete() -> float:
            if not adds:
                return 0.0
            adder = self._adders.get(key) or Adder(values, self.map, self.settings.lanes)
            if key is not None:
                self._adders[key] = adder
            operation.total = adder.add(index, operation.parts)
            operation.parts.clear()
            return operation.total.redone * plan.chunk_fragments * self.fragment_bytes

        aggregation = Aggregation(
            self.fabric,
            size=plan.data_fragments * self.fragment_bytes,
            fragment_bytes=self.fragment_bytes,
            fan_in=self.fan_in,
            window_bytes=self.window_bytes,
            most_bytes=self.settings.slots * self.fragment_bytes,
            gathers=gathers,
            at_server=self.settings.at_server,
            arrived=arrived,
            complete=complete,
        )
        operation = FlowOperation(index, values, key, aggregation, adds, waiting=self.settings.world_size)
        return operation

    def keep(self, operation: FlowOperation, parts: Mapping[int, Values]) -> None:
        """Keeps the values of contributions for the sum; duplicates are equal."""
        if operation.total is None:
            for contribution, part in parts.items():
                operation.parts.setdefault(contribution, part)

    # --- questions ----------------------------------------------------------------------------------------------------

    def assign(self, rank: int) -> None:
        """Tells workers what a rank's report has brought them."""
        for worker, told in self.help.unasked(rank):
            size = self.message_bytes(told)
            self.fabric.message(self.fabric.path(SERVER, worker), size, functools.partial(self.assigned[worker], told))

    def message_bytes(self, message: Question | Answer) -> int:
        """Size of a message on the wire, taken from the first one of its kind."""
        kind = type(message)
        if kind not in self._sizes:
            self._sizes[kind] = len(encode(message, request=1 << 30, job=1, epoch=1))
        return self._sizes[kind]
