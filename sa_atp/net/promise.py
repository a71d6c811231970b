"""Futures that the connection's thread completes, and whose callbacks run elsewhere.

A callback may wait for another sum, as PyTorch's PowerSGD hook does between its two. In the connection's thread it would
wait for itself, and with it everything that could end the wait: results, timers, the word that the connection has failed.
"""

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")
MOST_CALLBACKS = 256  # that may wait at the same time


class Callbacks:
    """The threads in which one connection's callbacks run; there are none as long as there is nothing to call."""

    def __init__(self, is_loop_here: Callable[[], bool]) -> None:
        """Args: is_loop_here: whether this thread does the connection's work at the moment."""
        self._pool = ThreadPoolExecutor(MOST_CALLBACKS, thread_name_prefix="sa-atp-callback")
        self._is_loop_here = is_loop_here

    def run(self, action: Callable[[Any], object], future: Any) -> None:
        """Calls action(future): here, unless this thread does the connection's work."""
        if not self._is_loop_here():
            action(future)
            return
        try:
            self._pool.submit(_logged, action, future)
        except RuntimeError:  # the interpreter ends, and starts no more threads
            _logged(action, future)

    def close(self) -> None:
        """What was begun goes on."""
        self._pool.shutdown(wait=False)


class Promise(Future[_T]):
    """A future that cannot be cancelled: what has been sent cannot be called back."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[["Future[_T]"], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(fn, future))

    def then_at_once(self, fn: Callable[["Future[_T]"], object]) -> None:
        """For callbacks of our own, which wait for nothing: called in whatever thread completes this."""
        super().add_done_callback(fn)


def then_at_once(future: "Future[_T]", fn: Callable[["Future[_T]"], object]) -> None:
    """Adds a callback that waits for nothing, so that it may run in a connection's own thread; to any future."""
    getattr(future, "then_at_once", future.add_done_callback)(fn)


def first_of(*futures: "Future[Any]") -> "Future[None]":
    """A future that is done as soon as one of these is."""
    found: Future[None] = Future()

    def end(_: "Future[Any]") -> None:
        with contextlib.suppress(InvalidStateError):  # another one came first
            found.set_result(None)

    for future in futures:
        then_at_once(future, end)
    return found


def _logged(action: Callable[[Any], object], future: Any) -> None:
    try:
        action(future)
    except Exception:
        logging.getLogger(__name__).exception("a callback of %r failed", future)
