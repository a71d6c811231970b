"""Logs changes of the windows. Their rules (window.py) are compiled as well and tell nothing, so callers compare."""

from typing import Literal

from sa_atp.protocol.log.event import Log
from sa_atp.protocol.log.rank_events import WindowChanged
from sa_atp.protocol.rank.pace.window import Window


class WindowLog:
    """Knows the windows as they were after the last rule, and logs how the next one has changed them."""

    def __init__(self, window: Window, log: Log) -> None:
        self._window, self._log = window, log
        self._known = window.network, window.slots, window.threshold

    def note(self, cause: Literal["loss", "mark", "stream"]) -> None:
        """Compares the windows after a rule. Args: cause: why that rule makes the network window smaller, if it does."""
        window, (network, slots, threshold) = self._window, self._known
        self._known = window.network, window.slots, window.threshold
        if cause == "stream":  # any of the rules, and any number of them
            if window.network < network or window.slots < slots:
                self._tell("stream", window.network, window.slots, network, slots)
            return
        if cause == "mark" and threshold == float("inf") and window.threshold != threshold:
            self._tell("queue", network, slots, network, slots)
        if window.network < network:
            self._tell(cause, window.network, slots, network, slots)
        if window.slots < slots:
            self._tell("collision", window.network, window.slots, window.network, slots)

    def _tell(
        self,
        why: Literal["loss", "mark", "collision", "queue", "stream"],
        network: float,
        slots: float,
        network_before: float,
        slots_before: float,
    ) -> None:
        self._log(WindowChanged(why, int(network), int(slots), int(network_before), int(slots_before)))
