"""A second, small sum that accompanies the gradient's: a step is over when both are complete.

A worker gives every contribution to both, with the same bits. So when workers have the gradient's sum, they also have the
same numbers about one another, without a further round trip.
"""

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.net.promise import add_inline_callback


class SumsTogether:
    """Several sums as one pending sum, which is done when all of them are (see effects.PendingSum)."""

    def __init__(self, sums: Sequence[Any], result: Callable[[], Values]) -> None:
        """Args: result: returns the values, once all sums are complete."""
        self.sums = sums
        self.future: Future[Values] = Future()
        self._result = result
        self._left = len(sums)
        self._lock = threading.Lock()  # the connection's thread may complete one sum while this one adds callbacks
        for each in sums:
            add_inline_callback(each.future, self._on_done)

    def _on_done(self, future: "Future[Values]") -> None:
        error = future.exception()
        with self._lock:
            self._left -= 1
            over = self._left == 0
        with contextlib.suppress(InvalidStateError):  # another sum has failed before
            if error is not None:
                self.future.set_exception(error)
            elif over:
                self.future.set_result(self._result())

    @property
    def pending(self) -> list[Any]:
        """The sums that are not complete."""
        return [each for each in self.sums if not each.future.done()]

    @property
    def missing_bits(self) -> int | None:
        """Contributions that some sum lacks; None: not known."""
        known = [each.missing_bits for each in self.pending if each.missing_bits is not None]
        return functools.reduce(operator.or_, known) if known else None


class SumPair(SumsTogether):
    """The gradient's sum and a small one beside it, as one pending sum."""

    def __init__(self, gradient: Any, beside: Any) -> None:
        self.gradient = gradient
        self.beside = beside
        super().__init__((gradient, beside), gradient.future.result)

    def __getattr__(self, name: str) -> Any:
        """The rest is that of the gradient's sum: progress, overtaken, sending, sent_share, finished."""
        return getattr(self.gradient, name)
