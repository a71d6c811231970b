"""RPCs that are under way: how many there may be, and which makes way for another.

Each keeps a thread, also while it waits for its client: for a request that does not come, or until an answer is taken. So
clients that are silent could keep everybody else out. Of those that wait, the oldest makes way instead; a client that has
announced itself on its stream does not, and of these `arbitration` knows how many there may be.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sa_atp.switches.p4runtime.errors import Code, Refusal


@dataclass(slots=True, eq=False)
class Call:
    """An RPC. end: called from another RPC's thread if this one is to make way. waits: for its client."""

    end: Callable[[], None]
    waits: bool = True


class Calls:
    """Thread-safe."""

    def __init__(self, most: int) -> None:
        """Args: most: RPCs at a time."""
        self.most = most
        self._calls: dict[Call, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def enter(self, call: Call) -> None:
        """Raises: Refusal: there are as many as there may be, and none of them waits for its client."""
        oldest = None
        with self._lock:
            if len(self._calls) >= self.most:
                oldest = next((each for each in self._calls if each.waits), None)
                if oldest is None:
                    raise Refusal(Code.RESOURCE_EXHAUSTED, f"{self.most} RPCs are under way, which is the limit")
                del self._calls[oldest]
            self._calls[call] = None
        if oldest is not None:
            oldest.end()

    def leave(self, call: Call) -> None:
        with self._lock:
            self._calls.pop(call, None)
