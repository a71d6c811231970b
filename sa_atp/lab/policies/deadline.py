"""Deadline: a sum has the gradients that are there some time after the first one, and leaves out those that are late.

M. Yang et al., Using Trio: Juniper Networks' Programmable Chipset for Emerging In-Network Applications, SIGCOMM 2022:
timers of the switch end sums that wait for too long. The update lacks what is left out. Here the parameter server has
the timer: a step's seats close, and a worker that waits contributes zeros for those that are empty (protocol 10.6).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.lab.policies.sync_opt import BackupStepper
from sa_atp.protocol.packets.control import CutOff
from sa_atp.steps.effects import Host, PendingSum, StepRunner, Workload
from sa_atp.steps.sum_pair import SumPair


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadlineSettings:
    """[deadline]"""

    after: float = setting(0.25, between=(0.0, 1000.0))
    """How long a sum waits after the first worker is done, as a share of the time of a shard on a device of speed 1."""
    least: int = setting(0, between=(0, 1 << 20))
    """The sum waits for so many workers, however late they are; 0: half of them, rounded up."""


class DeadlineStepper(BackupStepper):
    """A worker's steps, with the number of shards in each sum beside it, by which the sum is divided."""

    def _begin(self) -> PendingSum:
        return SumPair(super()._begin(), self._host.begin(1, "shards"))

    def _give(self, sum_: PendingSum, parts: list[Values], bits: int, *, shards: int) -> None:
        pair = cast(SumPair, sum_)
        self._host.contribute(pair.beside, [np.full(1, shards, np.float32)], bits, on_behalf=False)
        super()._give(pair.gradient, parts, bits, shards=shards)

    def _weight(self, sum_: PendingSum) -> np.float32:
        shards = cast(SumPair, sum_).beside.future.result()[0]
        return np.float32(self._host.membership.world_size / np.rint(shards))


class DeadlinePolicy(SwitchPolicy):
    name = "deadline"
    title = "Deadline"
    summary = (
        "Every worker computes its shard, and the switch sums those that are there when deadline.after has passed since "
        "the first one; late ones are dropped, and the update is the mean over the shards in the sum."
    )
    source = (
        "the straggler mitigation of Yang et al., Using Trio: Juniper Networks' Programmable Chipset for Emerging "
        "In-Network Applications, SIGCOMM 2022"
    )
    colour = "#009988"
    place = 31
    settings = DeadlineSettings
    shards_vary = True

    def check(self, plan: PlanTables, where: str) -> None:
        workers, least = plan.topology.workers, self.settings_in(plan).least
        if least > workers:
            raise UserError(f"{where}: deadline.least = {least}: expected 0 to {workers} (topology.workers)")

    def seats(self, plan: PlanTables) -> int:
        return plan.topology.workers

    def cut_off(self, plan: PlanTables) -> CutOff:
        own: DeadlineSettings = self.settings_in(plan)
        least = own.least or (plan.topology.workers + 1) // 2
        return CutOff(after_us=round(own.after * plan.job.shard_us), least=least)

    def shards(self, plan: PlanTables) -> int:
        return self.cut_off(plan).least

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        own: DeadlineSettings = self.settings_in(plan)
        return min(slow, 1.0 + own.after)

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        return DeadlineStepper(host, workload, pause_us=pause_us)


POLICIES = (DeadlinePolicy(),)
