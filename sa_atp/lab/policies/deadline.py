"""Deadline: the switch sends what it has, some time after the first contribution, and leaves out those that are late.

M. Yang et al., Using Trio: Juniper Networks' Programmable Chipset - for Emerging In-Network Applications, SIGCOMM 2022:
timers of the switch end sums that wait for too long. The update lacks what is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.flow.cut_off import CutOff
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.lab.policies.sync_opt import BackupStepper
from sa_atp.protocol.packets.spec import TICK_US
from sa_atp.steps.step import Host, PendingSum, StepRunner, Steps, Workload
from sa_atp.steps.step_record import StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadlineSettings:
    """[deadline]"""

    after: float = setting(0.25, between=(0.0, 1000.0))
    """How long the switch waits after the first contribution to a sum, as a share of the time of a shard on a device of
    speed 1. Rounded up to ticks of the switch's clock, of about a millisecond."""
    least: int = setting(0, between=(0, 1 << 20))
    """The sum waits for so many workers, however late they are; 0: half of them, rounded up."""


class CutSum(PendingSum, Protocol):
    """A sum that may lack contributions."""

    @property
    def bits(self) -> int:
        """Bitmap of the contributions in it, once it is complete."""


class DeadlineStepper(BackupStepper):
    """A worker's steps: compute its shard, contribute it, take the sum, and divide by the number of shards in it."""

    def _contribute(self, number: int, sum_: PendingSum, parts: list[Values], record: StepRecord) -> Steps:
        self._host.contribute(sum_, parts, self._map.bits_of(self._rank), on_behalf=False)
        yield from ()

    def _settle(self, sum_: PendingSum, parts: list[Values] | None, record: StepRecord) -> np.float32:
        bits = cast(CutSum, sum_).bits
        if parts is not None and bits & self._map.bits_of(self._rank):
            self._note_contributed(parts, record)
        return np.float32(self._map.contributions / bits.bit_count())


class DeadlinePolicy(SwitchPolicy):
    name = "deadline"
    title = "Deadline"
    summary = (
        "Every worker computes its shard, and the switch sends the sum of those shards that have come deadline.after the "
        "first one; late ones are dropped, and the update is the mean over the shards in the sum."
    )
    source = (
        "the straggler mitigation of Yang et al., Using Trio: Juniper Networks' Programmable Chipset for Emerging "
        "In-Network Applications, SIGCOMM 2022"
    )
    colour = "#009988"
    place = 31
    backends = ("sim",)
    networks = ("flows",)
    settings = DeadlineSettings
    shards_vary = True

    def check(self, plan: PlanTables, where: str) -> None:
        workers, least = plan.topology.workers, self.settings_in(plan).least
        if least > workers:
            raise UserError(f"{where}: deadline.least = {least}: expected 0 to {workers} (topology.workers)")
        if plan.topology.kind != "star":
            raise UserError(
                f"{where}: policy deadline with topology.kind = {plan.topology.kind!r}: expected 'star', as one switch has "
                "the deadline"
            )

    def cut_off(self, plan: PlanTables) -> CutOff:
        own: DeadlineSettings = self.settings_in(plan)
        ticks = -(-own.after * plan.job.shard_us // TICK_US)
        return CutOff(after_us=int(ticks) * TICK_US, least=own.least or (plan.topology.workers + 1) // 2)

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
