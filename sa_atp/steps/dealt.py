"""Steps with balanced batches: shards have different numbers of samples, by the workers' measured speeds.

A second sum of a few packets accompanies the gradient's: the samples that each worker computed, and the time they took,
each at a position of its own. Every contribution goes to both sums, with the same bits, and a step is over when both
are. So all workers have the same measurements, and decide the same sizes for the next step, without a further round
trip.
"""

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.net.promise import add_inline_callback
from sa_atp.protocol.batches.deal import Deal
from sa_atp.protocol.batches.orchestrator import Measured, Orchestrator
from sa_atp.protocol.help.progress import SendProgress
from sa_atp.steps.step import Host, PendingSum, Stepper, Steps, Workload
from sa_atp.steps.step_record import StepRecord

# A worker's numbers: samples of its shard that it computed, and microseconds in two halves of 16 bits. Sums of such
# whole numbers are exact, as long as a worker contributes a few times in a step (see steps/workloads/exact.py).
NUMBERS = 3
_HALF = 1 << 16


class MeasuredSum:
    """The gradient's sum and that of the measurements, as one pending sum (see step.PendingSum)."""

    def __init__(self, gradient: Any, measured: Any) -> None:
        self.gradient = gradient
        self.measured = measured
        self.future: Future[Values] = Future()
        self._left = 2
        self._lock = threading.Lock()  # the connection's thread may complete one sum while this one adds callbacks
        for each in (gradient, measured):
            add_inline_callback(each.future, self._on_done)

    def _on_done(self, future: "Future[Values]") -> None:
        error = future.exception()
        with self._lock:
            self._left -= 1
            over = self._left == 0
        with contextlib.suppress(InvalidStateError):  # the other sum has failed before
            if error is not None:
                self.future.set_exception(error)
            elif over:
                self.future.set_result(self.gradient.future.result())

    @property
    def _pending(self) -> list[PendingSum]:
        return [each for each in (self.gradient, self.measured) if not each.future.done()]

    @property
    def missing_bits(self) -> int | None:
        """Contributions that either sum lacks; None: not known."""
        known = [each.missing_bits for each in self._pending if each.missing_bits is not None]
        return functools.reduce(operator.or_, known) if known else None

    @property
    def overtaken(self) -> bool:
        overtaken: bool = self.gradient.overtaken
        return overtaken

    @property
    def progress(self) -> SendProgress | None:
        progress: SendProgress | None = self.gradient.progress
        return progress

    @property
    def sending(self) -> tuple[tuple[int, int], ...]:
        sending: tuple[tuple[int, int], ...] = self.gradient.sending
        return sending

    @property
    def sent_share(self) -> float:
        share: float = self.gradient.sent_share
        return share

    @property
    def finished(self) -> Any:
        """The gradient's sum as integers; see net.session.Sum."""
        return self.gradient.finished


class MeasuringHost:
    """A host that sums measurements beside each gradient. Everything else it leaves to the given host."""

    def __init__(self, host: Host) -> None:
        self.membership = host.membership
        self.now_us = host.now_us
        self.helping = host.helping
        self.take_seat = host.take_seat
        self._host = host
        self._nothing = np.zeros(NUMBERS * host.membership.world_size, np.float32)
        self._noted: dict[int, tuple[int, int]] = {}  # contribution: samples, microseconds

    def begin(self, values: int, key: object = "gradient") -> MeasuredSum:
        self._noted.clear()
        gradient = self._host.begin(values, key)
        return MeasuredSum(gradient, self._host.begin(NUMBERS * self.membership.world_size, ("measured", key)))

    def note_measurement(self, bit: int, samples: int, took_us: int) -> None:
        """Notes the time of a micro-batch of the worker's own shard, to be summed when that is contributed."""
        self._noted[bit] = samples, took_us

    def contribute(self, sum_: MeasuredSum, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        noted = [found for bit, found in self._noted.items() if bit & bits]
        numbers = [self._nothing] * (len(parts) - 1) + [np.zeros_like(self._nothing)]
        samples, took_us = (sum(column) for column in zip(*noted, strict=True)) if noted else (0, 0)
        at = NUMBERS * self.membership.rank
        numbers[-1][at : at + NUMBERS] = samples, took_us // _HALF, took_us % _HALF
        self._host.contribute(
            sum_.measured, numbers, bits, on_behalf=on_behalf
        )  # the small one first, or it would wait
        self._host.contribute(sum_.gradient, parts, bits, on_behalf=on_behalf)

    def probe(self, sum_: MeasuredSum) -> None:
        for each in sum_._pending[:1]:
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
    ) -> None:
        """Args: orchestrator: this worker's own, with the same settings as the others'. The rest: see Stepper."""
        measuring = MeasuringHost(host)
        super().__init__(measuring, workload, helps=helps, patience=patience, pause_us=pause_us)
        self.orchestrator = orchestrator
        self._measuring = measuring

    def run(self, step: int) -> Steps:
        """See StepRunner."""
        self.deal = Deal(self.orchestrator.sizes, self.micro_batches)
        record, sum_ = yield from super().run(step)
        record.samples = self.deal.sizes[self.rank]
        numbers, sizes = sum_.measured.future.result(), self.deal.sizes
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
