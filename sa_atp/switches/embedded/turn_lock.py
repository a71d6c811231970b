"""A lock whose busiest user lets others go first."""

import threading
from collections.abc import Callable
from types import TracebackType


class TurnLock:
    """An RLock that knows how many wait for it.

    A loop that takes it again as soon as it has let it go would keep everybody else out: a lock in Python goes to whoever
    asks first, and that is the one who runs.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._count = threading.Lock()
        self.waiting = 0
        self.wake: Callable[[], None] | None = None  # called by who has to wait; the holder may set it

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        with self._count:
            self.waiting += 1
        try:
            if self.wake is not None:
                self.wake()
            self._lock.acquire()
        finally:
            with self._count:
                self.waiting -= 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
