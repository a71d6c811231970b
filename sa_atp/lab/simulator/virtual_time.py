"""Runs a worker's steps in virtual time: the counterpart of `steps.real_time`."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.lab.simulator.network import Clock
from sa_atp.protocol.job.errors import TransportError
from sa_atp.steps.step import Compute, Effect, Wait

Gradient = Callable[[Compute], tuple[Values, float]]


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
    ) -> None:
        """Args:
        duration_us: compute time of a piece of work on this worker's device.
        gradient: computes the gradient; called when that time is over.
        finished: called with what the generator returns, or with the TransportError that ended it.
        """
        self._clock = clock
        self._effects = effects
        self._duration_us = duration_us
        self._gradient = gradient
        self._finished = finished
        self._turn = 0  # counts resumptions: of several events that may resume it, only the first does
        self._resume_at(clock.now_us, lambda: None)

    def _resume_at(self, when_us: int, answer: Callable[[], Any]) -> None:
        turn = self._turn

        def resume() -> None:
            if turn == self._turn:
                self._turn += 1
                self._send(answer())

        self._clock.at(when_us, resume)

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
        if effect.stop is not None:
            self._resume_when(effect.stop, lambda: None)
        self._resume_at(now_us + self._duration_us(effect), lambda: self._gradient(effect))
