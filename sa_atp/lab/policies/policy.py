"""The interface of a policy: what workers do in a step, and how updates are made and applied.

A policy uses no socket, process or clock: it acts through a `Host`, and yields everything that takes time as an effect
(steps/step.py). So the same policy runs in real processes, in an emulated network and in virtual time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from sa_atp.basics.errors import UserError
from sa_atp.lab.parameters.rules.rules import Rules, Terms
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.lab.peers.peer import Peer
from sa_atp.protocol.packets.control import CutOff
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.effects import Host, StepRunner, Workload
from sa_atp.steps.parallel import Curve, most_gain
from sa_atp.steps.step import Stepper

BACKENDS = ("local", "sim", "mininet")


class Family(Enum):
    """The way that updates travel, which decides which processes a run has."""

    SWITCH = "switch"
    """Synchronous: every worker gets the same sum in every step, from the switch or a parameter server."""
    PEERS = "peers"
    """Synchronous, by an all-reduce among the workers."""
    PARAMETERS = "parameters"
    """Parameters on a server: workers pull them and push updates."""


# --- the part of a plan that policies read ----------------------------------------------------------------------------


class TopologyTable(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def link_mbps(self) -> float: ...
    @property
    def delay_us(self) -> int: ...
    @property
    def worker_mbps(self) -> tuple[float, ...]: ...
    @property
    def workers(self) -> int: ...


class JobTable(Protocol):
    @property
    def batch_size(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def compute_us_per_sample(self) -> int: ...
    @property
    def shard_us(self) -> int: ...
    @property
    def parallel(self) -> int: ...
    @property
    def momentum(self) -> float: ...
    def parallel_curve(self, rank: int) -> Curve: ...


class HelpTable(Protocol):
    @property
    def grade(self) -> str: ...
    @property
    def patience(self) -> float: ...
    @property
    def cancels(self) -> bool: ...


class StragglerTable(Protocol):
    @property
    def by(self) -> str: ...
    @property
    def slowdown(self) -> float: ...


class RunTable(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...


class PlanTables(Protocol):
    """The part of a plan that policies read; `plans.plan.Plan` implements it."""

    @property
    def run(self) -> RunTable: ...
    @property
    def topology(self) -> TopologyTable: ...
    @property
    def job(self) -> JobTable: ...
    @property
    def help(self) -> HelpTable: ...
    @property
    def straggler(self) -> StragglerTable: ...
    @property
    def lanes(self) -> int: ...
    def settings_of(self, table: str) -> Any:
        """A policy's own table (`Policy.settings`), with defaults for keys that the plan leaves out."""


# --- policies ---------------------------------------------------------------------------------------------------------


class Policy(ABC):
    """A policy. It has one instance, without state: the state of a run is in the objects that its methods return."""

    name: ClassVar[str]
    """Its name in plans and records, as "sa-atp"."""
    title: ClassVar[str]
    """Its name in reports, as "SA-ATP"."""
    summary: ClassVar[str]
    """One sentence: what workers do with their time, and what happens to updates."""
    source: ClassVar[str]
    """The publication."""
    colour: ClassVar[str]
    """Its colour in all figures, "#rrggbb", of no other policy."""
    place: ClassVar[int] = 1000
    """Sort key in lists and documents."""
    family: ClassVar[Family]
    backends: ClassVar[tuple[str, ...]] = BACKENDS
    """Backends that can run it."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Optional packages that it needs."""
    settings: ClassVar[type[Any] | None] = None
    """Its own keys: a frozen dataclass of fields made by `tables.setting`, the table [NAME] of a plan."""
    table: ClassVar[str] = ""
    """The name of that table, if not the policy's; policies may share one."""
    has_tasks_at_a_time: ClassVar[bool] = False
    """Whether workers compute `job.parallel` micro-batches at a time; False: one."""
    shards_vary: ClassVar[bool] = False
    """Whether updates differ in their number of shards."""

    def check(self, plan: PlanTables, where: str) -> None:  # noqa: B027 (most policies run every plan)
        """Refuses plans that this policy cannot run. Args: where: the plan's name. Raises: UserError, in one line."""

    def settings_in(self, plan: PlanTables) -> Any:
        """Its own table of a plan, an instance of `settings`."""
        return plan.settings_of(self.table or self.name)

    def momentum(self, plan: PlanTables) -> float:
        """The momentum of its SGD."""
        return plan.job.momentum

    def shards(self, plan: PlanTables) -> int:
        """Number of shards in an update; the fewest, if it varies."""
        return plan.topology.workers

    def most_parallel(self, plan: PlanTables) -> int:
        """The most micro-batches that a worker computes at a time."""
        return plan.job.parallel if self.has_tasks_at_a_time else 1

    def most_gain(self, plan: PlanTables, rank: int) -> float:
        """The highest throughput that a worker's device has under this policy, relative to one micro-batch at a time."""
        return most_gain(plan.job.parallel_curve(rank), self.most_parallel(plan))

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        """About how many times longer a step takes than one without stragglers, to estimate the time of a run.

        Args: slow: slowdown of the slowest worker in a typical step.
        """
        return slow


class SwitchPolicy(Policy):
    """Synchronous: one sum a step, through the switch or at a parameter server."""

    family = Family.SWITCH
    aggregates_at: ClassVar[Literal["switch", "server"]] = "switch"

    def help_grade(self, plan: PlanTables) -> HelpGrade:
        """How leaders help stragglers."""
        return HelpGrade.NONE

    def seats(self, plan: PlanTables) -> int:
        """Number of workers in a sum, the first to finish; 0: all (protocol section 10.6)."""
        return 0

    def cut_off(self, plan: PlanTables) -> CutOff | None:
        """When seats close, before all are taken; None: never (protocol section 10.6)."""
        return None

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        """Makes the object that runs a worker's steps.

        Args: pause_us: returns the pause in the middle of a step.
        """
        helps = self.help_grade(plan) is not HelpGrade.NONE
        return Stepper(
            host, workload, helps=helps, patience=plan.help.patience, pause_us=pause_us, cancels=plan.help.cancels
        )


class PeerPolicy(Policy):
    """Synchronous, by an all-reduce that is not this project's: a library's, or another protocol's on the same switch."""

    family = Family.PEERS
    peer: ClassVar[Peer | None] = None
    """The protocol; None: a library's, which has no switch."""

    def check(self, plan: PlanTables, where: str) -> None:
        """Raises: UserError: the protocol has one switch, and has no such width, or not enough workers."""
        if self.peer is None:
            return
        topology = plan.topology
        if topology.kind != "star":
            raise UserError(
                f"{where}: {self.name}: topology.kind = {topology.kind!r}: its program is for one switch, a star"
            )
        if topology.workers > self.peer.most_workers:
            raise UserError(
                f"{where}: {self.name}: topology.workers = {topology.workers}: expected at most {self.peer.most_workers}"
            )
        self.peer.program(self.lanes(plan))

    def lanes(self, plan: PlanTables) -> int:
        """Values in a packet: as the plan says, or as many as its program has, if these are fewer."""
        return plan.lanes if self.peer is None else self.peer.lanes(plan.lanes)

    def slots(self, plan: PlanTables) -> int:
        """The most packets of a worker that the switch holds at a time."""
        return 0 if self.peer is None else self.peer.slots

    def timeout_us(self, plan: PlanTables) -> int:
        """After what time a worker sends a packet again: a time that fits its slowest link, at its slowest."""
        if self.peer is None:
            return 0
        slowest_mbps = min([plan.topology.link_mbps, *plan.topology.worker_mbps])
        if plan.straggler.by == "congestion":
            slowest_mbps /= plan.straggler.slowdown
        return self.peer.timeout_us(self.slots(plan), self.lanes(plan), slowest_mbps, plan.topology.delay_us)


class ParameterPolicy(Policy):
    """Parameters on a server: workers pull them and push updates, each at its own pace.

    The server applies plain SGD: parameters -= learning rate x weight x update. An update is the mean gradient over the
    samples that a worker computed; momentum would mix updates of different staleness, which the weights keep apart.
    """

    family = Family.PARAMETERS
    has_tasks_at_a_time = True

    @abstractmethod
    def rules(self, plan: PlanTables) -> Rules:
        """The server's rules: pure, with the time as an argument."""

    def worker_rules(self, plan: PlanTables, rank: int) -> WorkerRules:
        """A worker's rules, likewise."""
        return WorkerRules(rank, plan.topology.workers)

    def momentum(self, plan: PlanTables) -> float:
        """The server's SGD has none."""
        return 0.0

    def terms(self, plan: PlanTables, **more: Any) -> Terms:
        """The settings of a job. Args: more: bound."""
        return Terms(
            world_size=plan.topology.workers,
            micro_batches=plan.job.micro_batches,
            learning_rate=self.settings_in(plan).learning_rate,
            clocks=plan.run.steps,
            parallel=plan.job.parallel,
            curves=tuple(plan.job.parallel_curve(rank) for rank in range(plan.topology.workers)),
            **more,
        )

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        """The mean of two extremes: a clock takes as long as with no slow worker, or as long as the slow worker takes."""
        return (1 + slow) / 2
