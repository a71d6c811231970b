"""Ends a piece of PyTorch work that nobody needs any more, from within it.

A straggler whose work others have done must not finish it first. While work runs under `abandonable`, the next module
that is called, the next gradient that is ready, and every `sleep` of this module raise Cancelled once the stop is done.
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
    """Lets this thread's work end as soon as `stop` is done. None: it will not."""
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
    """What ends this thread's work; to be handed to other threads that take part in it."""
    return _current.stop


def check(stop: "Future[Any] | None" = None) -> None:
    """Raises: Cancelled, if `stop` is done, or what this thread computes is not needed any more."""
    stop = stop or _current.stop
    if stop is not None and stop.done():
        raise Cancelled


def sleep(seconds: float) -> None:
    """Sleeps, unless the work is abandoned first. Raises: Cancelled."""
    stop = _current.stop
    if stop is None:
        time.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        stop.exception(timeout=seconds)
    check()
