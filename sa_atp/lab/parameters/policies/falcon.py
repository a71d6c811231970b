"""Falcon: shares of work in proportion to measured speed, and transfer of tasks that wait behind a slow one."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.parameters.rules.falcon import EnforcedFalconRules, FalconRules, FalconWorker
from sa_atp.lab.parameters.rules.rules import Rules
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.lab.policies.policy import ParameterPolicy, PlanTables
from sa_atp.steps.parallel import MOST_TASKS, most_gain


@dataclass(frozen=True, kw_only=True, slots=True)
class FalconSettings:
    """[falcon]"""

    sync: str = setting("enforced", one_of=("enforced", "slack"))
    """enforced: no worker begins a clock before all updates of the last one are in. slack: a bound as in SSP."""
    bound: int = setting(1, between=(0, 10_000), used_with={"falcon.sync": ("slack",)})
    """How many clocks a worker may be ahead of the slowest."""
    learning_rate: float = setting(0.2, between=(0.0, 100.0))
    """Learning rate of the server's SGD; `runs.tuning` finds one."""


class Falcon(ParameterPolicy):
    name = "falcon"
    title = "Falcon"
    summary = (
        "The server measures each worker's speed, deals a clock's tasks in proportion, says how many of them each worker "
        "computes at a time, and moves tasks that a straggler has not begun to the worker that will finish first; an "
        "update is the mean over the clock's tasks (falcon.sync says when it is applied)."
    )
    source = (
        "Zhou et al., Falcon: Addressing Stragglers in Heterogeneous Parameter Server via Multiple Parallelism, IEEE "
        "Transactions on Computers 2021; its abstract: docs/deviations.md says what of this is ours"
    )
    colour = "#44AA99"
    place = 95
    settings = FalconSettings

    def rules(self, plan: PlanTables) -> Rules:
        settings = self.settings_in(plan)
        if settings.sync == "enforced":
            return EnforcedFalconRules(self.terms(plan))
        return FalconRules(self.terms(plan, bound=settings.bound))

    def most_parallel(self, plan: PlanTables) -> int:
        curves = [plan.job.parallel_curve(rank) for rank in range(plan.topology.workers)]
        return MOST_TASKS if any(most_gain(curve) > 1 for curve in curves) else 1

    def worker_rules(self, plan: PlanTables, rank: int) -> WorkerRules:
        return FalconWorker(rank, plan.topology.workers)

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.5


POLICIES = (Falcon(),)
