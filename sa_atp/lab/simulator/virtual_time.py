"""Runs a worker's steps in virtual time: the counterpart of `steps.real_time`."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.lab.simulator.network import Clock
from sa_atp.protocol.job.errors import TransportError
from sa_atp.steps.effects import Beside, Compute, Effect, Wait
from sa_atp.steps.parallel import NO_GAIN, Curve, TaskTime

Gradient = Callable[[Compute], tuple[Values, float]]


class VirtualDevice:
    """A device on which tasks run at the same time, with events for their ends."""

    def __init__(self, clock: Clock, curve: Curve = NO_GAIN) -> None:
        """Args: curve: the throughput with several tasks at a time (`steps.parallel`)."""
        self._clock = clock
        self._time = TaskTime(curve)
        # by the task's number: at how much work of the device it ends, and the function that is called then
        self._under_way: dict[int, tuple[float, Callable[[], None]]] = {}
        self._number = 0
        self._changes = 0  # tasks that began or ended: an event that was scheduled before is void

    def begin(self, work_us: int, ended: Callable[[], None]) -> int:
        """Begins a task. Args: work_us: its time alone; ended: called when it is over. Returns: its number."""
        self._number += 1
        self._under_way[self._number] = self._time.begin(self._clock.now_us) + work_us, ended
        self._schedule()
        return self._number

    def stop(self, number: int) -> None:
        """Stops a task; without effect if it is over."""
        if self._under_way.pop(number, None) is not None:
            self._time.end(self._clock.now_us)
            self._schedule()

    def _schedule(self) -> None:
        """Schedules the end of the task that ends first."""
        self._changes += 1
        if not self._under_way:
            return
        changes, number = self._changes, min(self._under_way, key=lambda each: (self._under_way[each][0], each))

        def ends() -> None:
            if changes != self._changes:
                return
            _, ended = self._under_way.pop(number)
            self._time.end(self._clock.now_us)
            self._schedule()
            ended()

        self._clock.at(self._time.when_us(self._under_way[number][0]), ends)


class VirtualProcess:
    """Runs a generator of effects; each effect that takes time becomes an event of the clock."""

    def __init__(
        self,
        clock: Clock,
        effects: Generator[Effect, Any, Any],
        *,
        duration_us: Callable[[Compute], int],
        gradient: Gradient,
        finished: Callable[[Any], None],
        device: VirtualDevice | None = None,
    ) -> None:
        """Args:
        duration_us: compute time of a piece of work on this worker's device, alone.
        gradient: computes the gradient; called when that time is over.
        finished: called with what the generator returns, or with the TransportError that ended it.
        device: the worker's device; None: one without a gain from several tasks at a time.
        """
        self._clock = clock
        self._effects = effects
        self._duration_us = duration_us
        self._gradient = gradient
        self._finished = finished
        self._device = device or VirtualDevice(clock)
        self._turn = 0  # counts resumptions: of several events that may resume it, only the first does
        self._resume_at(clock.now_us, lambda: None)

    def _resume(self, turn: int, answer: Callable[[], Any]) -> None:
        if turn == self._turn:
            self._turn += 1
            self._send(answer())

    def _resume_at(self, when_us: int, answer: Callable[[], Any]) -> None:
        turn = self._turn
        self._clock.at(when_us, lambda: self._resume(turn, answer))

    def _resume_when(self, future: "Future[Any]", answer: Callable[[], Any]) -> None:
        turn = self._turn

        def done(_: "Future[Any]") -> None:
            # not from within the callback, which runs in the middle of what completes the future
            if turn == self._turn:
                self._resume_at(self._clock.now_us, answer)

        future.add_done_callback(done)

    def _send(self, answer: Any) -> None:
        try:
            effect = self._effects.send(answer)
            while isinstance(effect, Beside):
                effect = self._effects.send(self._beside(effect))
        except StopIteration as over:
            self._finished(over.value)
            return
        except TransportError as error:
            self._finished(error)
            return
        now_us = self._clock.now_us
        if isinstance(effect, Wait):
            future = effect.future
            if future is not None:
                self._resume_when(future, lambda: True)
            if effect.timeout_us is not None:
                self._resume_at(now_us + effect.timeout_us, lambda: future is not None and future.done())
            return
        self._compute(effect)

    def _compute(self, effect: Compute) -> None:
        number = 0

        def stopped() -> None:
            self._device.stop(number)

        if effect.stop is not None:
            self._resume_when(effect.stop, stopped)
        turn = self._turn
        number = self._device.begin(
            self._duration_us(effect), lambda: self._resume(turn, lambda: self._gradient(effect))
        )

    def _beside(self, effect: Beside) -> "Future[Any]":
        """Starts a process on the same device. Returns: a future of its outcome."""
        found: Future[Any] = Future()

        def finished(outcome: Any) -> None:
            if isinstance(outcome, TransportError):
                found.set_exception(outcome)
            else:
                found.set_result(outcome)

        VirtualProcess(
            self._clock,
            effect.effects,
            duration_us=self._duration_us,
            gradient=self._gradient,
            finished=finished,
            device=self._device,
        )
        return found
