"""What a policy is: what workers do with their time, and what happens to updates.

A policy knows no socket, process or clock. The same one runs in real processes, in an emulated network and in virtual
time, because all that it does goes through a `Host`, and all that takes time is an effect that it yields (steps/step.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from sa_atp.lab.parameters.rules.rules import Rules, Terms
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.step import Host, Stepper, StepRunner, Workload

BACKENDS = ("local", "sim", "mininet")


class Family(Enum):
    """How updates travel, which decides what processes a run has."""

    SWITCH = "switch"
    """Synchronous: every worker gets the same sum in every step, through the switch or from a parameter server."""
    PEERS = "peers"
    """Synchronous, among the workers alone."""
    PARAMETERS = "parameters"
    """Parameters live on a server; workers pull them and push updates."""


# --- what a policy reads of a plan ------------------------------------------------------------------------------------


class TopologyTable(Protocol):
    @property
    def workers(self) -> int: ...


class JobTable(Protocol):
    @property
    def batch_size(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def compute_us_per_sample(self) -> int: ...


class HelpTable(Protocol):
    @property
    def grade(self) -> str: ...
    @property
    def patience(self) -> float: ...


class RunTable(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...


class PlanTables(Protocol):
    """What policies need of a plan. `plans.plan.Plan` is one."""

    @property
    def run(self) -> RunTable: ...
    @property
    def topology(self) -> TopologyTable: ...
    @property
    def job(self) -> JobTable: ...
    @property
    def help(self) -> HelpTable: ...
    def settings_of(self, table: str) -> Any:
        """A policy's own table (see Policy.settings), with defaults for what the plan leaves out."""


# --- policies ---------------------------------------------------------------------------------------------------------


class Policy(ABC):
    """One instance a policy, without state: what a run needs to remember is in what the methods return."""

    name: ClassVar[str]
    """In plans and records: "sa-atp"."""
    title: ClassVar[str]
    """In reports: "SA-ATP"."""
    summary: ClassVar[str]
    """One sentence: what workers do with their time, and what happens to updates."""
    source: ClassVar[str]
    """Where it is published."""
    colour: ClassVar[str]
    """In all figures, "#rrggbb"; nobody else's."""
    place: ClassVar[int] = 1000
    """Where it stands in lists and documents: smaller ones first."""
    family: ClassVar[Family]
    backends: ClassVar[tuple[str, ...]] = BACKENDS
    """Where it runs."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Packages that it needs, and that not everybody has installed."""
    settings: ClassVar[type[Any] | None] = None
    """Keys of its own: a frozen dataclass of fields made by `tables.setting`, which a plan has as table [NAME]."""
    table: ClassVar[str] = ""
    """The name of that table, if it is not the policy's; policies may share one."""

    def check(self, plan: PlanTables, where: str) -> None:  # noqa: B027 (most policies run every plan)
        """Refuses plans that this policy cannot run. Args: where: the plan's name. Raises: UserError, in one line."""

    def settings_in(self, plan: PlanTables) -> Any:
        """Its own table of a plan, an instance of `settings`."""
        return plan.settings_of(self.table or self.name)

    def shards(self, plan: PlanTables) -> int:
        """How many workers' shards an update is made of."""
        return plan.topology.workers

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        """About how many times longer a step takes than one without stragglers: for telling how long a run will take.

        Args: slow: how many times slower the slowest worker usually is.
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
        """How many workers are in a sum, the first that are done; 0: all are (protocol section 10.6)."""
        return 0

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        """What one worker does in its steps.

        Args: pause_us: for how long it stops in the middle of a step.
        """
        helps = self.help_grade(plan) is not HelpGrade.NONE
        return Stepper(host, workload, helps=helps, patience=plan.help.patience, pause_us=pause_us)


class PeerPolicy(Policy):
    """Synchronous, by a collective operation of a library: no switch and no server of ours has a part in it."""

    family = Family.PEERS


class ParameterPolicy(Policy):
    """Parameters live on a server; workers pull them and push updates, each at its own pace.

    The server applies plain SGD: parameters -= learning rate x weight x update. An update is the mean gradient over the
    samples that a worker computed; momentum would mix updates of different staleness, which the weights keep apart.
    """

    family = Family.PARAMETERS

    @abstractmethod
    def rules(self, plan: PlanTables) -> Rules:
        """What the server decides: pure, with the time as an argument."""

    def worker_rules(self, plan: PlanTables, rank: int) -> WorkerRules:
        """What a worker decides; the same."""
        return WorkerRules(rank, plan.topology.workers)

    def terms(self, plan: PlanTables, **more: Any) -> Terms:
        """What a job is run with. Args: more: bound, helpers."""
        return Terms(
            world_size=plan.topology.workers,
            micro_batches=plan.job.micro_batches,
            learning_rate=self.settings_in(plan).learning_rate,
            clocks=plan.run.steps,
            **more,
        )

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        """A clock's worth of samples is computed at the speed of all workers together, or of the slowest: between."""
        return (1 + slow) / 2
