"""Says what a command waits for, before nothing has been said for five seconds: in lines on standard error."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from sa_atp.basics import terminal

SILENCE_VARIABLE = "SA_ATP_SILENCE_S"
DEFAULT_SILENCE_S = 4.0  # with Python's start, and a moment until the thread looks again, below five


def _silence_s() -> float:
    try:
        return float(os.environ.get(SILENCE_VARIABLE, DEFAULT_SILENCE_S))
    except ValueError:
        return DEFAULT_SILENCE_S


SILENCE_S = _silence_s()
LOOK_EVERY_S = 0.25


class _Waits:
    """What is waited for: the newest entry is what is said. A thread looks, as long as there are entries."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: list[Callable[[], None]] = []
        self.said_at = time.monotonic()
        self.is_looking = False

    def look(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self.lock:
                if not self.entries:
                    self.is_looking = False
                    return
                now, tell = time.monotonic(), self.entries[-1]
                is_due = now - self.said_at >= SILENCE_S
                if is_due:
                    self.said_at = now
            if is_due:
                with contextlib.suppress(OSError, ValueError):  # standard error is closed
                    tell()


_waits = _Waits()


def said() -> None:
    """Notes that the user was told something just now."""
    _waits.said_at = time.monotonic()


@contextlib.contextmanager
def told(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` from time to time, in another thread, while a block runs and the terminal is otherwise silent."""
    waits = _waits
    with waits.lock:
        if not waits.entries:
            said()  # not for one within another, else many short ones would be a long silence
        waits.entries.append(tell)
        if not waits.is_looking:
            waits.is_looking = True
            threading.Thread(target=waits.look, name="waiting", daemon=True).start()
    try:
        yield
    finally:
        with waits.lock:
            waits.entries.remove(tell)


@contextlib.contextmanager
def nothing_waited_for() -> Iterator[None]:
    """A block in which a command waits for others to use it, or shows by itself what it does: nothing is said."""
    with told(lambda: None):
        yield
        said()  # what follows has only begun


def waiting(what: str, command: str = "sa-atp") -> contextlib.AbstractContextManager[None]:
    """Says `what` and for how long it has taken, while a block runs for more than some seconds."""
    begun = time.monotonic()
    return told(lambda: terminal.say(f"{command}: {what}, {time.monotonic() - begun:.0f} s so far"))


def announced(what: str, command: str) -> contextlib.AbstractContextManager[None]:
    """Says `what` now, and as `waiting` does while a block runs."""
    terminal.say(f"{command}: {what}")
    return waiting(what, command)
