"""Sync-opt: synchronous SGD with backup workers; a sum has the first gradients, and late ones are dropped.

J. Chen, X. Pan, R. Monga, S. Bengio, R. Jozefowicz, Revisiting Distributed Synchronous SGD, 2016, section 3: of N + b
workers the gradients of the first N are summed. Here the switch sums them: a sum has N seats, and a worker that has
computed its gradient asks the parameter server for one (protocol section 10.6).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.tables import setting
from sa_atp.lab.policies.policy import PlanTables, SwitchPolicy
from sa_atp.net.promise import first_of
from sa_atp.protocol.packets.control import Seated
from sa_atp.steps.effects import Beside, Compute, Host, PendingSum, StepRunner, Steps, Wait, Workload, computed, paused
from sa_atp.steps.step_record import Piece, StepRecord, account


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncOptSettings:
    """[sync-opt]"""

    backups: int = setting(1, between=(0, 63))
    """How many workers a step does not wait for: b of N + b. Fewer than N."""


class BackupStepper:
    """A worker's steps: compute its shard, take a seat, contribute or drop it, take the sum."""

    def __init__(self, host: Host, workload: Workload, *, pause_us: Callable[[int], int], parallel: int = 1) -> None:
        """Args: pause_us: see SwitchPolicy.stepper; parallel: micro-batches that are computed at a time."""
        self._host = host
        self._workload = workload
        self._pause_us = pause_us
        self._parallel = parallel
        member = host.membership
        self._rank, self._map = member.rank, member.map

    def run(self, step: int) -> Steps:
        """See `StepRunner`. The record has the sum over the seats; the mean of their gradients is applied."""
        record = StepRecord(step, self._host.now_us())
        number = self._host.helping.begin_step()
        sum_ = self._begin()
        parts = yield from self._shard(step, sum_, record)
        contributed_us = self._host.now_us()
        if parts is not None:
            contributed_us = yield from self._contribute(number, sum_, parts, record)
        yield Wait(sum_.future)
        if not record.micro_batches:
            record.dropped, record.pieces = len(record.pieces), []
        self._workload.apply(sum_.future.result() * self._weight(sum_))
        record.end_us = self._host.now_us()
        account(record, contributed_us, sum_.sending)
        return record, sum_

    def _shard(self, step: int, sum_: PendingSum, record: StepRecord) -> Steps:
        """Computes its micro-batches' gradients. Returns: them; None: the sum completed first, and does not need them."""
        parts: dict[int, Values] = {}
        count = self._map.micro_batches
        first, pause_us = 0, self._pause_us(step)
        if pause_us:
            first = count // 2
            yield from self._compute(step, range(first), sum_, record, parts)
            if sum_.future.done():
                return None
            yield from paused(pause_us, record, self._host.now_us)
        yield from self._compute(step, range(first, count), sum_, record, parts)
        return [parts[m] for m in range(count)] if len(parts) == count else None

    def _compute(
        self, step: int, pieces: range, sum_: PendingSum, record: StepRecord, parts: dict[int, Values]
    ) -> Steps:
        """Computes micro-batches, as many at a time as the worker may, unless the sum completes first."""
        left = iter(pieces)
        beside = []
        for _ in range(min(self._parallel, len(pieces)) - 1):
            beside.append((yield Beside(self._compute_each(step, left, sum_, record, parts))))
        yield from self._compute_each(step, left, sum_, record, parts)
        for each in beside:
            yield Wait(each)
            each.result(timeout=0)

    def _compute_each(
        self, step: int, left: Iterator[int], sum_: PendingSum, record: StepRecord, parts: dict[int, Values]
    ) -> Steps:
        """Computes one micro-batch after another, while there are any. Args: left: shared with other threads."""
        for m in left:
            if sum_.future.done():
                return
            gradient = yield from computed(
                Compute(step, self._rank, m, sum_.future), record, self._host.now_us, self._rank
            )
            if gradient is None:
                return
            record.pieces.append(Piece(step, self._rank, m, self._host.now_us()))
            parts[m] = gradient

    def _contribute(self, number: int, sum_: PendingSum, parts: list[Values], record: StepRecord) -> Steps:
        """Contributes a shard if it gets a seat, or drops it. Returns: when the worker has contributed.

        Args: number: of the step, as the parameter server knows it.
        """
        seated = yield from self._take_seat(number, sum_)
        contributed_us = self._host.now_us()
        if seated is not None:
            self._give(sum_, parts, self._map.bits_of_seat(seated.seat), shards=1)
            record.computed += [(self._rank, m, gradient) for m, gradient in enumerate(parts)]
            record.micro_batches = len(parts)
            yield from self._fill(number, sum_, seated)
        return contributed_us

    def _take_seat(self, number: int, sum_: PendingSum) -> Steps:
        """Asks for a seat until an answer comes. Returns: it; None: there is no seat, or the sum is complete."""
        while not sum_.future.done():
            answer = self._host.take_seat(number)
            yield Wait(first_of(answer, sum_.future))
            reply = answer.result(timeout=0) if answer.done() else None
            if reply is not None:
                return reply if isinstance(reply, Seated) else None
        return None

    def _fill(self, number: int, sum_: PendingSum, seated: Seated) -> Steps:
        """Contributes zeros for seats that stay empty because the step's time is over. (protocol section 10.6)"""
        while seated.again_us:
            if (yield Wait(sum_.future, seated.again_us)):
                return
            again: Seated | None = yield from self._take_seat(number, sum_)
            if again is None:
                return
            seated = again
        if seated.empty:
            bits = sum(self._map.bits_of_seat(seat) for seat in range(self._map.seats) if seated.empty >> seat & 1)
            zeros = np.zeros(self._workload.values, np.float32)
            self._give(sum_, [zeros], bits, shards=0)

    def _begin(self) -> PendingSum:
        return self._host.begin(self._workload.values)

    def _give(self, sum_: PendingSum, parts: list[Values], bits: int, *, shards: int) -> None:
        """Adds to a sum under these bits. Args: shards: how many shards' gradients that is."""
        self._host.contribute(sum_, parts, bits, on_behalf=False)

    def _weight(self, sum_: PendingSum) -> np.float32:
        """The factor that makes a complete sum a mean: gradients are scaled for a sum over all ranks."""
        member = self._host.membership
        return np.float32(member.world_size / member.seats)


class SyncOpt(SwitchPolicy):
    name = "sync-opt"
    title = "Sync-opt"
    summary = (
        "Every worker computes its shard, the switch sums the gradients of the first N of N + b workers, and late ones "
        "are dropped; the update is the mean over these N shards."
    )
    source = "Chen et al., Revisiting Distributed Synchronous SGD, 2016"
    colour = "#332288"
    place = 30
    settings = SyncOptSettings
    has_tasks_at_a_time = True

    def check(self, plan: PlanTables, where: str) -> None:
        workers, backups = plan.topology.workers, self.settings_in(plan).backups
        if backups >= workers - backups:
            raise UserError(
                f"{where}: sync-opt.backups = {backups} of topology.workers = {workers} leaves {workers - backups} workers "
                f"in a sum: expected fewer backups than that, 0 to {(workers - 1) // 2}"
            )

    def shards(self, plan: PlanTables) -> int:
        backups: int = self.settings_in(plan).backups
        return plan.topology.workers - backups

    def seats(self, plan: PlanTables) -> int:
        return self.shards(plan)

    def expected_stretch(self, plan: PlanTables, slow: float) -> float:
        return 1.0 if self.settings_in(plan).backups else slow

    def stepper(
        self, host: Host, workload: Workload, plan: PlanTables, *, pause_us: Callable[[int], int]
    ) -> StepRunner:
        return BackupStepper(host, workload, pause_us=pause_us, parallel=plan.job.parallel)


POLICIES = (SyncOpt(),)
