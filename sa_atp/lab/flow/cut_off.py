"""A switch's deadline for a sum: what has not begun to arrive by then is not in it. (docs/policies.md, Deadline)"""

from collections.abc import Callable
from dataclasses import dataclass

from sa_atp.lab.simulator.network import Clock


@dataclass(frozen=True, slots=True)
class CutOff:
    """When a switch sends a sum that is not complete."""

    after_us: int
    """Not before so long after the sum's first contribution."""
    least: int
    """Nor before so many workers have contributed."""


class Deadline:
    """The deadline of one sum.

    Its time begins when the sum's first contribution leaves. A contribution that has begun to leave before the deadline
    is in the sum with all fragments, and the sum waits for the rest of it.
    """

    def __init__(self, clock: Clock, rule: CutOff, close: Callable[[], None]) -> None:
        """Args: close: called once, when no further contribution may be in the sum."""
        self._clock = clock
        self._rule = rule
        self._close = close
        self._workers = 0
        self._has_passed = False
        self.is_closed = False

    def note_contribution(self) -> None:
        """Notes that a worker has begun to contribute, once for each worker."""
        self._workers += 1
        if self._workers == 1:
            self._clock.at(self._clock.now_us + self._rule.after_us, self._pass)
        self._close_if_due()

    def _pass(self) -> None:
        self._has_passed = True
        self._close_if_due()

    def _close_if_due(self) -> None:
        if self._has_passed and self._workers >= self._rule.least and not self.is_closed:
            self.is_closed = True
            self._close()
