"""What the ledger believes of times to come. (protocol section 10.3)

A *forecast* says how long a unit of work will take a worker in the next step, and how far such forecasts have been off. All
times are microseconds.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

REMEMBERED = 5  # steps: a forecast is their median, which a straggler of a single step does not move
KEPT = 0.5  # share of the error of earlier forecasts that counts in the next step


@dataclass(slots=True)
class Forecast:
    """How long something takes from step to step: the median of recent steps, with the error that forecasts had."""

    error_us: float = 0.0
    """The largest recent difference between a forecast and what came; older ones count less."""
    mean_us: float | None = None
    """The forecast for the next step; None: nothing has been measured."""
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @classmethod
    def of(cls, mean_us: float, error_us: float = 0.0) -> "Forecast":
        """Makes a forecast with a known mean and error."""
        return cls(error_us, mean_us, deque([mean_us], maxlen=REMEMBERED))

    def note(self, took_us: float, *, is_new_step: bool = True) -> None:
        """Notes a measurement. Args: is_new_step: else it replaces the last one, which was of the same step."""
        if not is_new_step and self._seen:
            self._seen[-1] = took_us
        else:
            if self.mean_us is not None:
                self.error_us = max(KEPT * self.error_us, abs(took_us - self.mean_us))
            self._seen.append(took_us)
        self.mean_us = float(median(self._seen))
