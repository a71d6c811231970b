"""Limits the number of concurrent RPCs, and ends idle ones for new ones.

An RPC occupies a thread also while it waits for its client, to send a request or to take an answer, so silent clients could
block all others. Instead, the oldest RPC that waits for its client is ended for a new one. A client that has announced
itself on its stream channel is not ended; `arbitration` limits the number of these.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sa_atp.switches.p4runtime.errors import Code, Refusal


@dataclass(slots=True, eq=False)
class Rpc:
    """An RPC. end: ends it, called from another RPC's thread. waits: whether it waits for its client."""

    end: Callable[[], None]
    waits: bool = True


class ActiveRpcs:
    """The RPCs that are active. Thread-safe."""

    def __init__(self, most: int) -> None:
        """Args: most: RPCs at a time."""
        self.most = most
        self._calls: dict[Rpc, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def enter(self, call: Rpc) -> None:
        """Adds an RPC. Raises: Refusal: the limit is reached, and no RPC waits for its client."""
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

    def leave(self, call: Rpc) -> None:
        with self._lock:
            self._calls.pop(call, None)
