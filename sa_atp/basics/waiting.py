"""Says what a command waits for, before nothing has been said for five seconds: in lines on standard error. While the same
thing is waited for, it is said again after 10, 30 and 60 s, and each further minute.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
SAID_AGAIN_S = (10.0, 30.0, 60.0)  # since a wait began
THEN_EVERY_S = 60.0


def said_next_s(taken_s: float) -> float:
    """When a wait that has taken so long is said again, in seconds since it began."""
    later = (at_s for at_s in SAID_AGAIN_S if at_s > taken_s)
    return next(later, (taken_s // THEN_EVERY_S + 1) * THEN_EVERY_S)


@dataclass(slots=True, eq=False)
class Wait:
    """A thing that is waited for."""

    tell: Callable[[], None]
    begun: float
    due_s: float = 0.0
    """When it is said, in seconds since it began, if nothing else has been said just before."""

    def begin_again(self) -> None:
        """Notes that something else is waited for from now on, which was said."""
        self.begun, self.due_s = time.monotonic(), said_next_s(0.0)

    @property
    def taken_s(self) -> float:
        return time.monotonic() - self.begun


class _Waits:
    """What is waited for: the newest entry is what is said. A thread looks, as long as there are entries."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: list[Wait] = []
        self.said_at = time.monotonic()
        self.is_looking = False

    def look(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self.lock:
                if not self.entries:
                    self.is_looking = False
                    return
                self.tell()

    def tell(self) -> None:
        """Says the newest entry, if that is due."""
        now, wait = time.monotonic(), self.entries[-1]
        if now - self.said_at >= SILENCE_S and now - wait.begun >= wait.due_s:
            self.said_at = now
            with contextlib.suppress(OSError, ValueError):  # standard error is closed
                wait.tell()
            wait.due_s = said_next_s(now - wait.begun)


_waits = _Waits()


def said() -> None:
    """Notes that the user was told something just now."""
    _waits.said_at = time.monotonic()


@contextlib.contextmanager
def told(tell: Callable[[], None]) -> Iterator[Wait]:
    """Calls `tell` from time to time, in another thread, while a block runs and the terminal is otherwise silent."""
    waits, wait = _waits, Wait(tell, time.monotonic())
    with waits.lock:
        if not waits.entries:
            said()  # not for one within another, else many short ones would be a long silence
        waits.entries.append(wait)
        if not waits.is_looking:
            waits.is_looking = True
            threading.Thread(target=waits.look, name="waiting", daemon=True).start()
    try:
        yield wait
    finally:
        with waits.lock:  # and so not while it is said
            waits.entries.remove(wait)


@contextlib.contextmanager
def nothing_waited_for() -> Iterator[None]:
    """A block in which a command waits for others to use it, or shows by itself what it does: nothing is said."""
    with told(lambda: None):
        yield
        said()  # what follows has only begun


@contextlib.contextmanager
def waiting(what: str, command: str = "sa-atp") -> Iterator[Wait]:
    """Says `what` and for how long it has taken, while a block runs for more than some seconds."""
    with told(lambda: terminal.say(f"{command}: {what}, {wait.taken_s:.0f} s so far")) as wait:
        yield wait


@contextlib.contextmanager
def announced(what: str, command: str) -> Iterator[None]:
    """Says `what` now, and as `waiting` does while a block runs."""
    terminal.say(f"{command}: {what}")
    with waiting(what, command) as wait:
        wait.begin_again()
        yield
