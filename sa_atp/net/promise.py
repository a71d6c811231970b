"""Futures that the connection's thread completes, and whose callbacks run in other threads.

A callback may wait for another sum, as PyTorch's PowerSGD hook does between its two. In the connection's thread it would
block that thread, and with it everything that could end the wait: results, timers, the connection's failure.
"""

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")
MOST_CALLBACKS = 256  # that may run at the same time


class Callbacks:
    """The threads that run one connection's callbacks; the first callback starts the first one."""

    def __init__(self, is_loop_here: Callable[[], bool]) -> None:
        """Args: is_loop_here: whether the calling thread runs the connection at the moment."""
        self._pool = ThreadPoolExecutor(MOST_CALLBACKS, thread_name_prefix="sa-atp-callback")
        self._is_loop_here = is_loop_here

    def run(self, action: Callable[[Any], object], future: Any) -> None:
        """Calls action(future): in the calling thread, unless that runs the connection."""
        if not self._is_loop_here():
            action(future)
            return
        try:
            self._pool.submit(_logged, action, future)
        except RuntimeError:  # an interpreter that ends starts no more threads
            _logged(action, future)

    def close(self) -> None:
        """Starts no more callbacks; running ones go on."""
        self._pool.shutdown(wait=False)


class Promise(Future[_T]):
    """A future that cannot be cancelled: its packets have been sent."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    def cancel(self) -> bool:
        """Returns False."""
        return False

    def add_done_callback(self, fn: Callable[["Future[_T]"], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(fn, future))

    def add_inline_callback(self, fn: Callable[["Future[_T]"], object]) -> None:
        """Adds a callback that does not block, and so may run in the thread that completes this future."""
        super().add_done_callback(fn)


def add_inline_callback(future: "Future[_T]", fn: Callable[["Future[_T]"], object]) -> None:
    """Adds a callback that does not block, and so may run in a connection's thread, to any future."""
    getattr(future, "add_inline_callback", future.add_done_callback)(fn)


def first_of(*futures: "Future[Any]") -> "Future[None]":
    """A future that is done as soon as one of the given ones is."""
    found: Future[None] = Future()

    def end(_: "Future[Any]") -> None:
        with contextlib.suppress(InvalidStateError):  # another future was done first
            found.set_result(None)

    for future in futures:
        add_inline_callback(future, end)
    return found


def _logged(action: Callable[[Any], object], future: Any) -> None:
    try:
        action(future)
    except Exception:
        logging.getLogger(__name__).exception("a callback of %r failed", future)
