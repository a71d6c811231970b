"""Ends PyTorch work from within, once its result is no longer needed.

A straggler whose work others have done should not finish it first. Under `abandonable`, each call of a module, each
gradient, and `sleep` of this module raise Cancelled once `stop` is done.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from sa_atp.steps.device import Cancelled


class _Current(threading.local):
    stop: "Future[Any] | None" = None


_current = _Current()


@contextlib.contextmanager
def abandonable(stop: "Future[Any] | None") -> Iterator[None]:
    """Makes this thread's work end once `stop` is done. Args: stop: None: it cannot be ended."""
    if stop is None:
        yield
        return
    from torch.nn.modules.module import register_module_forward_pre_hook

    before = _current.stop
    _current.stop = stop
    hook = register_module_forward_pre_hook(lambda module, arguments: check())
    try:
        yield
    finally:
        hook.remove()
        _current.stop = before


def current_stop() -> "Future[Any] | None":
    """The future that ends this thread's work, for other threads that take part in it."""
    return _current.stop


def check(stop: "Future[Any] | None" = None) -> None:
    """Checks that the work is still wanted. Raises: Cancelled: `stop` (default: this thread's) is done."""
    stop = stop or _current.stop
    if stop is not None and stop.done():
        raise Cancelled


def sleep(seconds: float) -> None:
    """Sleeps, until the work is abandoned at the latest. Raises: Cancelled."""
    stop = _current.stop
    if stop is None:
        time.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        stop.exception(timeout=seconds)
    check()
