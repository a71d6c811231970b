"""Runs steps in real time, on a communicator and an emulated device."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.net.clock import now_us
from sa_atp.net.communicator import Communicator
from sa_atp.net.session import Sum
from sa_atp.steps.device import Cancelled, Device
from sa_atp.steps.effects import Beside, Compute, HostAround, StepRunner, Steps, Wait, Workload, gradient_of, samples_of
from sa_atp.steps.step_record import StepRecord


class CommunicatorHost(HostAround):
    """A communicator as a step's host (see effects.Host)."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm, now_us)
        self.contribute = comm.contribute
        self.probe = comm.probe
        self._comm = comm

    def begin(self, values: int, key: object = "gradient", *, whole: bool = False) -> Sum:
        return self._comm.begin(values, key=key, whole=whole)


def run_step(stepper: StepRunner, device: Device, workload: Workload, step: int) -> tuple[StepRecord, Any]:
    """Runs one step; blocks until it is over. Raises: TransportError."""
    record, sum_ = drive(stepper.run(step), lambda effect: compute(effect, device, workload))
    return record, sum_


def drive(effects: Steps, compute: Callable[[Compute], tuple[Values, float] | None]) -> Any:
    """Carries out the effects that a generator yields; blocks until it is over.

    Effects beside others are carried out in a thread of their own.

    Args: compute: returns gradient and loss of a micro-batch, or None if it was stopped. Called from several threads.
    Returns: what the generator returns.
    """
    answer: Any = None
    while True:
        try:
            effect = effects.send(answer)
        except StopIteration as over:
            return over.value
        match effect:
            case Wait():
                answer = _wait(effect)
            case Beside():
                answer = _beside(effect, compute)
            case _:
                answer = compute(effect)


def _beside(effect: Beside, compute: Callable[[Compute], tuple[Values, float] | None]) -> "Future[Any]":
    """Starts a thread that carries out effects. Returns: a future of what their generator returns."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(drive(effect.effects, compute))
        except Exception as error:  # whoever waits for the future raises it
            found.set_exception(error)

    threading.Thread(target=run, name="sa-atp-task", daemon=True).start()
    return found


def _wait(effect: Wait) -> bool:
    timeout = None if effect.timeout_us is None else effect.timeout_us / 1e6
    try:
        (effect.future or Future()).exception(timeout)
    except TimeoutError:
        return False
    return True


def compute(effect: Compute, device: Device, workload: Workload) -> tuple[Values, float] | None:
    """Computes a micro-batch's gradient and loss, in the time that the device takes; None: it was stopped."""
    try:
        return device.run(samples_of(workload, effect), lambda: gradient_of(workload, effect), effect.stop)
    except Cancelled:
        return None
