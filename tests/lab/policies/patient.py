"""SA-ATP with another patience than the plan's."""

from collections.abc import Callable
from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.steps.effects import Host, StepRunner, Workload
from sa_atp.steps.step import Stepper


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """[patient]"""

    patience: float = setting(0.5, between=(0.0, 10.0))
    """How long a leader waits before it offers help, as a share of the time that its own shard took."""


class Patient(SwitchPolicy):
    name = "patient"
    title = "Patient SA-ATP"
    summary = "As SA-ATP, and leaders wait longer before they help; the update is the same as ATP's."
    source = "an example"
    colour = "#116611"
    settings = Settings

    def help_grade(self, plan: PlanTables) -> HelpGrade:
        return HelpGrade.STEAL

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        patience = self.settings_in(plan).patience
        return Stepper(host, workload, helps=True, patience=patience, pause_us=pause_us)


POLICIES = (Patient(),)
