"""A job on the flow network: its sums, and the parameter server's side of help, with the ledger that real jobs have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from sa_atp.arrays import Values
from sa_atp.flow.aggregation import Aggregation
from sa_atp.flow.fabric import FRAME_BYTES, Fabric
from sa_atp.flow.network import Floats
from sa_atp.flow.sums import Adder, Total
from sa_atp.sim.network import WIRE_OVERHEAD_BYTES
from sa_atp.spec import CONTRIBUTION_BITS, HEADER_BYTES, UDP_PORT
from sa_atp.straggler.ledger import Ledger
from sa_atp.tensor.fragments import plan_of
from sa_atp.transport import work_requests
from sa_atp.transport.job import Job, Member
from sa_atp.transport.membership import Membership
from sa_atp.transport.window import INITIAL_WINDOW
from sa_atp.transport.work_requests import WorkRequest
from sa_atp.wire.contributions import ContributionMap
from sa_atp.wire.control import HelpAnswer, HelpMode, JobCounters, Offer, encode

ALIVE_EVERY_US = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """What a job is."""

    world_size: int
    micro_batches: int
    help_mode: HelpMode = HelpMode.NONE
    lanes: int = 256
    slots: int = 1024
    """The job's quota of the switch's memory."""
    adds: bool = True
    """Numbers are really added up; False: only their sizes are on their way, and sums are zeros."""


class _Book(Job):
    """As much of a job as questions about work are answered from: its ledger, and who is below which leaf."""

    def __init__(self, settings: JobSettings, ledger: Ledger, leaves: tuple[frozenset[int], ...] | None) -> None:
        # nothing that packets need, such as a store of sums, whose bitmaps have 64 bits
        self.world_size = settings.world_size
        self.micro_batches = settings.micro_batches
        self.ledger = ledger
        self.leaves = leaves
        self.stats = JobCounters()


@dataclass(slots=True, eq=False)
class Operation:
    """One sum of the job."""

    index: int
    values: int
    aggregation: Aggregation
    parts: dict[int, Values] = field(default_factory=dict)
    """What has been contributed, by contribution."""
    total: Total | None = None
    waiting: int = 0
    """Ranks that have not got it yet."""


class FlowJob:
    """All ranks are there from the beginning, and none is ever lost: what fails is a question for packets."""

    def __init__(
        self,
        fabric: Fabric,
        settings: JobSettings,
        arrived: Callable[[int, Operation], None],
        ledger: Ledger | None = None,
    ) -> None:
        """Args: arrived: called with a rank and an operation whose sum it has now."""
        n = settings.world_size
        self.fabric = fabric
        self.settings = settings
        self.map = ContributionMap(n, settings.micro_batches)
        self.fan_in = self.map.fan_in
        self.ledger = ledger or Ledger(n, settings.micro_batches, settings.help_mode)
        self._arrived = arrived
        self._operations: dict[int, Operation] = {}
        self._adders: dict[int, Adder] = {}
        self._answered: set[int] = set()  # sizes of which a sum has been gathered, where nothing is added
        leaves = None
        if fabric.levels > 1:
            ranks = range(n)
            leaves = tuple(frozenset(r for r in ranks if fabric.rack_of(r) == k) for k in range(fabric.settings.racks))
        self._book = _Book(settings, self.ledger, leaves)
        self._members = [Member(rank, ("", UDP_PORT), 0, 0) for rank in range(n)]
        self._results = np.zeros(n)  # fragments of sums that each has got
        self.window_bytes: Floats = np.full(n, min(INITIAL_WINDOW, settings.slots) * self.fragment_bytes)
        self._sizes: dict[type, int] = {}

    @property
    def fragment_bytes(self) -> float:
        """One fragment on the wire, with every header and gap."""
        return float(4 * self.settings.lanes + HEADER_BYTES + FRAME_BYTES + WIRE_OVERHEAD_BYTES)

    def membership(self, rank: int) -> Membership:
        """A rank's place in the job, as a connection would have it."""
        settings = self.settings
        below = self._book.below_leaf_of(rank) if self._book.leaves is not None else frozenset()
        return Membership(
            job=1,
            epoch=0,
            rank=rank,
            world_size=settings.world_size,
            micro_batches=settings.micro_batches,
            lanes=settings.lanes,
            slot_base=0,
            slot_count=settings.slots,
            first_seq=0,
            data_address=("", UDP_PORT),
            server_address=("", UDP_PORT),
            alive_every_us=ALIVE_EVERY_US,
            help_mode=settings.help_mode,
            levels=self.fabric.levels,
            leaf_ranks=sum(1 << other for other in below),
        )

    # --- sums ---------------------------------------------------------------------------------------------------------

    def begin(self, rank: int, index: int, values: int) -> Operation:
        """A rank begins its n-th sum; the first one to do so brings it about."""
        operation = self._operations.get(index)
        if operation is None:
            operation = self._operations[index] = self._new(index, values)
        operation.aggregation.begin(rank)
        return operation

    def _new(self, index: int, values: int) -> Operation:
        plan = plan_of(values, self.settings.lanes)
        gathers = values not in self._answered
        if self.settings.adds:
            adder = self._adders.setdefault(values, Adder(values, self.map, self.settings.lanes))
            gathers = adder.gathers
        self._answered.add(values)

        def arrived(rank: int) -> None:
            self._results[rank] += plan.data_fragments
            window = min(self.settings.slots, INITIAL_WINDOW + self._results[rank])
            self.window_bytes[rank] = window * self.fragment_bytes
            operation.waiting -= 1
            if not operation.waiting:
                del self._operations[index]
            self._arrived(rank, operation)

        def complete() -> float:
            if not self.settings.adds:
                return 0.0
            operation.total = self._adders[values].add(index, operation.parts)
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
            arrived=arrived,
            complete=complete,
        )
        operation = Operation(index, values, aggregation, waiting=self.settings.world_size)
        return operation

    def keep(self, operation: Operation, parts: Mapping[int, Values]) -> None:
        """Contributions whose sum is to be added up; one that comes twice is the same."""
        if self.settings.adds and operation.total is None:
            for contribution, part in parts.items():
                operation.parts.setdefault(contribution, part)

    def counted(self) -> dict[str, int]:
        """What the parameter server has counted of help."""
        return {
            "helped_micro_batches": self.ledger.helped_micro_batches,
            "backups": self.ledger.backups,
            "questions": self._book.stats.questions,
        }

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, rank: int, request: WorkRequest, now_us: int) -> HelpAnswer:
        """What the parameter server says."""
        return work_requests.answer(self._book, self._members[rank], 0, request, now_us, levels=self.fabric.levels)

    def message_bytes(self, message: WorkRequest | HelpAnswer) -> int:
        """Of a question or an answer, as it would travel: that of the first one of its kind."""
        kind = type(message)
        if kind not in self._sizes:
            if isinstance(message, Offer):  # a packet's bitmap has 64 bits
                message = replace(message, missing=message.missing & ((1 << CONTRIBUTION_BITS) - 1))
            self._sizes[kind] = len(encode(message, request=1 << 30, job=1, epoch=1))
        return self._sizes[kind]
