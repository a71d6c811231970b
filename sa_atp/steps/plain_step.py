"""A synchronous step whose sum any all-reduce may make, such as Gloo's: compute the shard, sum, apply."""

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.steps.effects import Compute, Steps, Wait, Workload, paused
from sa_atp.steps.step_record import Activity, Piece, StepRecord, account


class PlainStepper:
    """Runs the steps of one worker that computes its own shard alone, whoever makes the sum (a StepRunner)."""

    def __init__(
        self,
        rank: int,
        workload: Workload,
        micro_batches: int,
        all_reduce: "Callable[[Values], Future[Values]]",
        *,
        now_us: Callable[[], int],
        pause_us: Callable[[int], int],
    ) -> None:
        """Args:
        micro_batches: of a shard.
        all_reduce: begins the sum of float32[values] over all ranks; it may keep what it is given.
        pause_us: for how long to stop in the middle of a step.
        """
        self._rank = rank
        self._workload = workload
        self._micro_batches = micro_batches
        self._all_reduce = all_reduce
        self._now_us = now_us
        self._pause_us = pause_us

    def run(self, step: int) -> Steps:
        """See StepRunner. The sum is float32[values]."""
        record = StepRecord(step, self._now_us())
        total = np.zeros(self._workload.values, np.float32)
        for m in range(self._micro_batches):
            pause_us = self._pause_us(step) if m == self._micro_batches // 2 else 0
            if pause_us:
                yield from paused(pause_us, record, self._now_us)
            start_us = self._now_us()
            gradient, loss = yield Compute(step, self._rank, m, None)
            record.activities.append(Activity("compute", start_us, self._now_us()))
            total += gradient
            record.losses.append(loss)
            record.pieces.append(Piece(step, self._rank, m, self._now_us()))
        record.micro_batches = self._micro_batches
        contributed_us = self._now_us()
        future = self._all_reduce(total)
        yield Wait(future)
        found = future.result()
        self._workload.apply(found)
        record.end_us = self._now_us()
        account(record, contributed_us, ())  # sending and waiting cannot be told apart
        return record, found
