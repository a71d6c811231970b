"""Runs steps in real time, on a communicator and an emulated device."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sa_atp.arrays import Values
from sa_atp.net.clock import now_us
from sa_atp.net.communicator import Communicator
from sa_atp.net.session import Asking, Sum
from sa_atp.train.device import Cancelled, Device
from sa_atp.train.step import Compute, Stepper, StepRecord, Wait, Workload
from sa_atp.wire.control import Reply, Request

T = TypeVar("T")


class CommunicatorHost(Asking):
    """A communicator as a step sees it."""

    def __init__(self, comm: Communicator) -> None:
        self.membership = comm.membership
        self.helping = comm.helping
        self._comm = comm

    def now_us(self) -> int:
        return now_us()

    def begin(self, values: int) -> Sum:
        return self._comm.begin(values, key="gradient")

    def contribute(self, sum_: Sum, parts: Sequence[Values], bits: int, *, on_behalf: bool) -> None:
        self._comm.contribute(sum_, parts, bits, on_behalf=on_behalf)

    def probe(self, sum_: Sum) -> None:
        self._comm.probe(sum_)

    def ask(self, question: Request, understand: Callable[[Reply | None], T]) -> "Future[T]":
        return self._comm.ask(question, understand)


def run_step(stepper: Stepper, device: Device, workload: Workload, step: int) -> tuple[StepRecord, Sum]:
    """One step; blocks until it is over. Raises: TransportError."""
    effects = stepper.run(step)
    answer: Any = None
    while True:
        try:
            effect = effects.send(answer)
        except StopIteration as over:
            record, sum_ = over.value
            return record, sum_
        answer = _wait(effect) if isinstance(effect, Wait) else _compute(effect, device, workload)


def _wait(effect: Wait) -> bool:
    timeout = None if effect.timeout_us is None else effect.timeout_us / 1e6
    try:
        (effect.future or Future()).exception(timeout)
    except TimeoutError:
        return False
    return True


def _compute(effect: Compute, device: Device, workload: Workload) -> tuple[Values, float] | None:
    def work() -> tuple[Values, float]:
        return workload.gradient(effect.step, effect.shard, effect.micro_batch)

    try:
        found: tuple[Values, float] = device.run(workload.micro_batch_size, work, effect.stop)
    except Cancelled:
        return None
    return found
