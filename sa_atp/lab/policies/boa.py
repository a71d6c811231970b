"""BOA: batch sizes that follow each worker's speed; alone, and with help against temporary slowness."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.protocol.batches.orchestrator import LEAST_GAIN, LEAST_MEASUREMENTS, Orchestrator
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.dealt import DealtStepper
from sa_atp.steps.effects import Host, StepRunner, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class BoaPlan:
    """[boa], for the policies boa and sa-atp+boa. The global batch is topology.workers times job.batch_size."""

    least: int = setting(1, between=(0, 1 << 20))
    """Smallest batch of a worker, in samples."""
    most: int = setting(0, between=(0, 1 << 20))
    """Largest batch of a worker, as its memory allows; 0: no limit."""
    granularity: int = setting(1, between=(1, 1 << 20))
    """Batch sizes are multiples of this."""
    least_gain: float = setting(LEAST_GAIN, between=(0.0, 1.0))
    """Share of a step's time that new sizes have to save, beyond the error of the speed models."""
    measurements: int = setting(LEAST_MEASUREMENTS, between=(1, 1000))
    """Measurements of each worker before sizes change for the first time."""


class Boa(SwitchPolicy):
    name = "boa"
    title = "BOA"
    summary = (
        "As ATP, and the batch is divided among the workers by their measured speeds (a min-max integer program), so "
        "that all finish at the same time; the update is the mean over the same global batch."
    )
    source = "the published idea is its abstract's; docs/deviations.md says what of this is ours"
    colour = "#999933"
    place = 32
    settings: ClassVar[type[Any] | None] = BoaPlan
    table = "boa"

    def check(self, plan: PlanTables, where: str) -> None:
        try:
            self.orchestrator(plan)
        except UserError as error:
            raise UserError(f"{where}: policy {self.name}: {error}") from None

    def orchestrator(self, plan: PlanTables) -> Orchestrator:
        """Makes the object that chooses a run's batch sizes. Raises: UserError: the batch cannot be divided."""
        own: BoaPlan = self.settings_in(plan)
        workers = plan.topology.workers
        batch = workers * plan.job.batch_size
        return Orchestrator(
            workers,
            batch,
            bounds=[(own.least, own.most or batch)] * workers,
            granularity=own.granularity,
            least_measurements=own.measurements,
            least_gain=own.least_gain,
        )

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        helps = self.help_grade(plan) is not HelpGrade.NONE
        return DealtStepper(
            host, workload, self.orchestrator(plan), helps=helps, patience=plan.help.patience, pause_us=pause_us,
            cancels=plan.help.cancels,
        )  # fmt: skip


class HelpedBoa(Boa):
    name = "sa-atp+boa"
    title = "SA-ATP with BOA"
    summary = (
        "Batch sizes as with BOA against permanent slowness, and help as with SA-ATP against temporary slowness; the "
        "update is the mean over the same global batch."
    )
    source = "this project"
    colour = "#BB5500"
    place = 34

    def help_grade(self, plan: PlanTables) -> HelpGrade:
        return HelpGrade(plan.help.grade)

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.3


POLICIES = (Boa(), HelpedBoa())
