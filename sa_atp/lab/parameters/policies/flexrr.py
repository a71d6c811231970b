"""FlexRR: SSP, and a worker that is behind gives tasks to its helpers."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.flexrr import Reassignment
from sa_atp.lab.parameters.rules.rules import Rules, SspRules
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables


@dataclass(frozen=True, kw_only=True, slots=True)
class FlexRrSettings:
    """[flexrr]"""

    bound: int = setting(1, between=(0, 10_000))
    """How many clocks a worker may be ahead of the slowest."""
    helpers: int = setting(4, between=(0, 4096))
    """How many workers may help each one, at most: those whose ranks follow its own. 0: all others."""
    learning_rate: float = setting(0.05, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class FlexRr(ParameterPolicy):
    name = "flexrr"
    title = "FlexRR"
    summary = (
        "As SSP, and a worker that is clearly behind one of its helpers gives it tasks that it has not begun, a few at "
        "a time; updates are added on arrival, each with its full weight."
    )
    source = "Harlap et al., Addressing the straggler problem for iterative convergent parallel ML, SoCC 2016"
    colour = "#CC6677"
    place = 70
    settings = FlexRrSettings

    def rules(self, plan: PlanTables) -> Rules:
        return SspRules(self.terms(plan, bound=self.settings_in(plan).bound))

    def worker_rules(self, plan: PlanTables, rank: int) -> WorkerRules:
        return Reassignment(rank, plan.topology.workers, self.settings_in(plan).helpers)

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.5


POLICIES = (FlexRr(),)
