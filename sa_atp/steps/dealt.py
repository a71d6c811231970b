"""Steps with balanced batches: shards have different numbers of samples, by the workers' measured speeds.

A second sum of a few packets accompanies the gradient's: the samples that each worker computed, and the time they took,
each at a position of its own. Every contribution goes to both sums, with the same bits, and a step is over when both
are. So all workers have the same measurements, and decide the same sizes for the next step, without a further round
trip.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.protocol.batches.deal import Deal
from sa_atp.protocol.batches.orchestrator import Measured, Orchestrator
from sa_atp.steps.effects import Host, HostAround, Steps, Workload
from sa_atp.steps.step import Stepper
from sa_atp.steps.step_record import StepRecord
from sa_atp.steps.sum_pair import SumPair

# A worker's numbers: samples of its shard that it computed, and microseconds in two halves of 16 bits. Sums of such
# whole numbers are exact, as long as a worker contributes a few times in a step (see steps/workloads/exact.py).
NUMBERS = 3
_HALF = 1 << 16


class MeasuringHost(HostAround):
    """A host that sums measurements beside each gradient. Everything else it leaves to the given host."""

    def __init__(self, host: Host) -> None:
        super().__init__(host, host.now_us)
        self._host = host
        self._nothing = np.zeros(NUMBERS * host.membership.world_size, np.float32)
        self._noted: dict[int, tuple[int, int]] = {}  # contribution: samples, microseconds

    def begin(self, values: int, key: object = "gradient") -> SumPair:
        self._noted.clear()
        gradient = self._host.begin(values, key)
        return SumPair(gradient, self._host.begin(NUMBERS * self.membership.world_size, ("measured", key)))

    def note_measurement(self, bit: int, samples: int, took_us: int) -> None:
        """Notes the time of a micro-batch of the worker's own shard, to be summed when that is contributed."""
        self._noted[bit] = samples, took_us

    def contribute(self, sum_: SumPair, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        noted = [found for bit, found in self._noted.items() if bit & bits]
        numbers = [self._nothing] * (len(parts) - 1) + [np.zeros_like(self._nothing)]
        samples, took_us = (sum(column) for column in zip(*noted, strict=True)) if noted else (0, 0)
        at = NUMBERS * self.membership.rank
        numbers[-1][at : at + NUMBERS] = samples, took_us // _HALF, took_us % _HALF
        self._host.contribute(sum_.beside, numbers, bits, on_behalf=on_behalf)  # the small one first, or it would wait
        self._host.contribute(sum_.gradient, parts, bits, on_behalf=on_behalf)

    def probe(self, sum_: SumPair) -> None:
        for each in sum_.pending[:1]:
            self._host.probe(each)


def measurements(numbers: Values, sizes: Sequence[int]) -> list[Measured | None]:
    """Each worker's measurement, from the sum of all; None: a worker has contributed none.

    If helpers did a part of a shard, the owner's time is scaled to the whole shard.

    Args: numbers: float32[3 * workers], the sum. sizes: samples of each shard.
    """
    found: list[Measured | None] = []
    rows = np.rint(numbers.astype(np.float64)).reshape(-1, NUMBERS).tolist()
    for size, (samples, upper, lower) in zip(sizes, rows, strict=True):
        took_s = (upper * _HALF + lower) / 1e6
        found.append(Measured(size, took_s * (size / samples)) if samples > 0 and took_s > 0 else None)
    return found


class DealtStepper(Stepper):
    """Steps in which worker i has b_i samples, as the orchestrators of all workers decide alike."""

    def __init__(
        self,
        host: Host,
        workload: Workload,
        orchestrator: Orchestrator,
        *,
        helps: bool,
        patience: float,
        pause_us: Callable[[int], int] = lambda step: 0,
        cancels: bool = True,
    ) -> None:
        """Args: orchestrator: this worker's own, with the same settings as the others'. The rest: see Stepper."""
        measuring = MeasuringHost(host)
        super().__init__(measuring, workload, helps=helps, patience=patience, pause_us=pause_us, cancels=cancels)
        self.orchestrator = orchestrator
        self._measuring = measuring

    def run(self, step: int) -> Steps:
        """See StepRunner."""
        self.deal = Deal(self.orchestrator.sizes, self.micro_batches)
        record, sum_ = yield from super().run(step)
        record.samples = self.deal.sizes[self.rank]
        numbers, sizes = sum_.beside.future.result(), self.deal.sizes
        self.orchestrator.decide_once(numbers.tobytes(), lambda: measurements(numbers, sizes))
        return record, sum_

    def _compute(
        self, step: int, shard: int, micro_batch: int, record: StepRecord, stop: "Future[Any] | None"
    ) -> Steps:
        gradient = yield from super()._compute(step, shard, micro_batch, record, stop)
        assert self.deal is not None
        samples = self.deal.samples(shard, micro_batch)
        if gradient is not None and samples and shard == self.rank:
            done = record.activities[-1]
            bit = self.host.membership.bit(shard, micro_batch)
            self._measuring.note_measurement(bit, len(samples), done.end_us - done.start_us)
        return gradient
