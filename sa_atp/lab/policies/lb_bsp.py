"""LB-BSP: batch sizes that follow each worker's speed from step to step."""

from dataclasses import dataclass

from sa_atp.basics.tables import setting
from sa_atp.lab.policies.boa import Boa
from sa_atp.lab.policies.policy import PlanTables
from sa_atp.protocol.batches.orchestrator import Orchestrator


@dataclass(frozen=True, kw_only=True, slots=True)
class LbBspPlan:
    """[lb-bsp]. The global batch is topology.workers times job.batch_size."""

    weight: float = setting(0.5, between=(0.01, 1.0))
    """Weight of the newest measurement in a worker's speed, a moving average; 1: the last step alone."""
    least: int = setting(1, between=(0, 1 << 20))
    """Smallest batch of a worker, in samples."""


class LbBsp(Boa):
    name = "lb-bsp"
    title = "LB-BSP"
    summary = (
        "As BOA, and sizes change in every step, by a moving average of each worker's speed; the update is the mean over "
        "the same global batch."
    )
    source = (
        "Chen et al., Semi-dynamic Load Balancing: Efficient Distributed Learning in Non-dedicated Environments, SoCC "
        "2020"
    )
    colour = "#0F4C5C"
    place = 33
    settings = LbBspPlan
    table = "lb-bsp"

    def orchestrator(self, plan: PlanTables) -> Orchestrator:
        own: LbBspPlan = self.settings_in(plan)
        workers = plan.topology.workers
        batch = workers * plan.job.batch_size
        return Orchestrator(
            workers,
            batch,
            bounds=[(own.least, batch)] * workers,
            least_measurements=1,
            least_gain=0.0,
            weight=own.weight,
        )


POLICIES = (LbBsp(),)
