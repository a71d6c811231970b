"""What is believed of times to come, as distributions. (protocol section 10.3)

A *forecast* says how long a unit of work will take a worker in the next step, and how far such forecasts have been off. A
*due* says when a contribution should be in the sum. Late, lost and silent are not cases of their own, but the tail of
that distribution: the longer something is overdue, the longer it is expected to take still.

All times are microseconds.
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
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @classmethod
    def of(cls, mean_us: float, error_us: float = 0.0) -> "Forecast":
        """Makes a forecast with a known mean and error."""
        return cls(error_us, deque([mean_us], maxlen=REMEMBERED))

    @property
    def mean_us(self) -> float | None:
        """The forecast for the next step; None: nothing has been measured."""
        return float(median(self._seen)) if self._seen else None

    def note(self, took_us: float, *, is_new_step: bool = True) -> None:
        """Notes a measurement. Args: is_new_step: else it replaces the last one, which was of the same step."""
        if not is_new_step and self._seen:
            self._seen[-1] = took_us
            return
        known_us = self.mean_us
        if known_us is not None:
            self.error_us = max(KEPT * self.error_us, abs(took_us - known_us))
        self._seen.append(took_us)


@dataclass(frozen=True, slots=True)
class Due:
    """When something should arrive: not before a time, and then with a delay whose distribution has a heavy tail.

    The delay is Lomax-distributed (Pareto II) with exponent 2: P(delay > x) = (spread / (spread + x))^2. Its mean is the
    spread; that of the rest, once it has lasted x, is spread + x: a worker that is late is expected to take as much
    longer as it is late already.
    """

    at_us: float
    """The earliest time."""
    spread_us: float
    """The mean delay."""

    @property
    def mean_us(self) -> float:
        return self.at_us + self.spread_us

    def expected_us(self, now_us: float) -> float:
        """When it is expected, if it has not arrived yet."""
        return max(now_us, self.at_us) + self.spread_us + max(0.0, now_us - self.at_us)

    def chance_after(self, at_us: float, now_us: float) -> float:
        """The probability that it arrives after `at_us`, if it has not arrived yet."""
        if at_us <= max(now_us, self.at_us):
            return 1.0
        late_us = max(0.0, now_us - self.at_us)
        rest_us = self.spread_us + late_us
        return (rest_us / (rest_us + at_us - max(now_us, self.at_us))) ** 2 if rest_us else 0.0

    def later(self, by_us: float) -> "Due":
        """The same of something that follows `by_us` after this."""
        return Due(self.at_us + by_us, self.spread_us)

    def copied_is_expected_us(self, copy_at_us: float, now_us: float) -> float:
        """When the first of it and a copy is expected, if the copy arrives at a known time."""
        floor_us = max(now_us, self.at_us)
        if copy_at_us <= floor_us:
            return copy_at_us
        rest_us = self.spread_us + max(0.0, now_us - self.at_us)
        if not rest_us:
            return floor_us
        waits_us = copy_at_us - floor_us
        return floor_us + rest_us * waits_us / (rest_us + waits_us)  # the integral of the tail up to then

    def copy_saves_us(self, copy_at_us: float, now_us: float) -> float:
        """How much sooner it is expected if a copy of it arrives at a known time."""
        return self.expected_us(now_us) - self.copied_is_expected_us(copy_at_us, now_us)
