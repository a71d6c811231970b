"""A lock that tells its holder how many threads wait for it."""

import threading
from collections.abc import Callable
from types import TracebackType


class TurnLock:
    """An RLock that counts the threads that wait for it.

    A loop that releases a lock of Python and takes it again at once would starve all other threads, because the running
    thread gets it. With the count, the loop can pause for them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._count = threading.Lock()
        self.waiting = 0
        self.wake: Callable[[], None] | None = None  # called by a thread that has to wait; the holder may set it

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
