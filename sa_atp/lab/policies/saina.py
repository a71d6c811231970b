"""SAINA: an update has the gradients of the fastest k workers, and k grows where training makes no progress with so few.

H. Lee, J. Lee, H. Kim, S. Pack, Straggler-Aware In-Network Aggregation for Accelerating Distributed Deep Learning, IEEE
Transactions on Services Computing 16(6), 2023, and its authors' published P4 programs. Where many values of a sum have
another sign than in the sum before, steps lead to and fro, and more gradients would make less noise. That is the
diagnostic of Pflug, on signs; S. Kas Hanna et al., Adaptive Distributed Stochastic Gradient Descent for Minimizing Delay
in the Presence of Stragglers, ICASSP 2020, use inner products.

All workers know the sums, so they agree on k. A sum has as many seats as there are workers (protocol section 10.6), of
which the first k count: whoever has seat 0 claims the bits of the others with zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.lab.policies.sync_opt import BackupStepper
from sa_atp.steps.effects import Host, PendingSum, StepRunner, Steps, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class SainaSettings:
    """[saina]"""

    first: int = setting(1, between=(1, 1 << 20))
    """k at the beginning: how many gradients an update has."""
    flips: float = setting(0.4, between=(0.0, 1.0))
    """A sum speaks for a larger k if this share of its values, or more, have another sign than in the sum before."""
    count: int = setting(5, between=(1, 100_000))
    """k grows by one as soon as so many more sums have spoken for it than against it since it last grew."""


class Fastest:
    """Decides how many gradients the next sum has, from sums that all workers have: so all of them decide alike."""

    def __init__(self, workers: int, *, first: int, flips: float, count: int) -> None:
        """Args: see SainaSettings."""
        self.k = first
        """Number of gradients in the present step's sum."""
        self._most, self._flips, self._enough = workers, flips, count
        self._count = 0
        self._signs: NDArray[np.int8] = np.zeros(0, np.int8)  # of the last sum

    def follow(self, total: Values) -> None:
        """Decides on the next sum. Args: total: float32[values], the present one."""
        before, self._signs = self._signs, np.sign(total).astype(np.int8)
        if not before.size:
            return
        same = before * self._signs  # 0: one of the two is zero, as in dead units, and says nothing
        known, other = np.count_nonzero(same), np.count_nonzero(same < 0)
        speaks = known > 0 and other >= self._flips * known
        self._count = self._count + 1 if speaks else max(0, self._count - 1)
        if self._count == self._enough and self.k < self._most:
            self._count, self.k = 0, self.k + 1


class FastestStepper(BackupStepper):
    """A worker's steps: as with backup workers, whose number differs from step to step."""

    def __init__(self, host: Host, workload: Workload, fastest: Fastest, *, pause_us: Callable[[int], int]) -> None:
        """Args: fastest: this worker's own, with the same settings as the others'."""
        super().__init__(host, workload, pause_us=pause_us)
        self.fastest = fastest
        self._nothing = np.zeros(workload.values, np.float32)

    def run(self, step: int) -> Steps:
        record, sum_ = yield from super().run(step)
        self.fastest.follow(sum_.future.result())
        return record, sum_

    def _take_seat(self, number: int, sum_: PendingSum) -> Steps:
        seated = yield from super()._take_seat(number, sum_)
        return seated if seated is not None and seated.seat < self.fastest.k else None

    def _give(self, sum_: PendingSum, parts: list[Values], bits: int, *, shards: int) -> None:
        """Gives zeros for the seats that do not count as well, from the first seat: that one is taken in every step."""
        if bits == self._map.bits_of_seat(0):
            left_out = range(self.fastest.k, self._map.seats)
            bits += sum(map(self._map.bits_of_seat, left_out))
            parts = parts + [self._nothing] * (len(parts) * len(left_out))
        super()._give(sum_, parts, bits, shards=shards)

    def _weight(self, sum_: PendingSum) -> np.float32:
        return np.float32(self._host.membership.world_size / self.fastest.k)


class Saina(SwitchPolicy):
    name = "saina"
    title = "SAINA"
    summary = (
        "Every worker computes its shard, the switch sums the gradients of the fastest k, and late ones are dropped; the "
        "update is the mean over these k shards, and k grows when the signs of successive sums say that training has "
        "converged with so few."
    )
    source = (
        "Lee et al., Straggler-Aware In-Network Aggregation for Accelerating Distributed Deep Learning, IEEE Transactions "
        "on Services Computing 2023"
    )
    colour = "#EE3377"
    place = 31
    settings = SainaSettings
    shards_vary = True

    def check(self, plan: PlanTables, where: str) -> None:
        workers, first = plan.topology.workers, self.settings_in(plan).first
        if first > workers:
            raise UserError(f"{where}: saina.first = {first}: expected 1 to {workers} (topology.workers)")

    def seats(self, plan: PlanTables) -> int:
        return plan.topology.workers

    def shards(self, plan: PlanTables) -> int:
        first: int = self.settings_in(plan).first
        return first

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        own: SainaSettings = self.settings_in(plan)
        fastest = Fastest(plan.topology.workers, first=own.first, flips=own.flips, count=own.count)
        return FastestStepper(host, workload, fastest, pause_us=pause_us)


POLICIES = (Saina(),)
