"""Several tasks at a time on one device: processor sharing, with a throughput that depends on how many there are.

With n tasks at a time a device finishes gain(n) times as many tasks in a time as with one, so each of them takes
n / gain(n) times as long. The number may change at any moment; tasks that are under way then go on at the new rate.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from sa_atp.basics.arrays import Measurements

POINTS = (1, 2, 4, 8)
"""Numbers of tasks at a time for which a curve of `job.parallel_gain` has the throughput."""
MOST_TASKS = POINTS[-1]
"""The largest number of tasks that a device computes at a time, as its memory allows."""
NO_GAIN = (1.0, 1.0, 1.0, 1.0)
MEASURED = (1.0, 1.41, 1.56, 1.69)
"""The default of plans: `sa-atp bench parallel --samples 32` on two cores (docs/policies.md says under which load)."""
Curve = tuple[float, ...]
"""The throughput with POINTS tasks at a time, relative to one task at a time."""


def is_curve(curve: Curve) -> bool:
    """Whether these are gains of a device: one for each of POINTS, the first 1, and no task faster than alone.

    The rate of a single task, gain(n) / n, must not rise with n.
    """
    if len(curve) != len(POINTS) or curve[0] != 1.0 or min(curve) <= 0:
        return False
    rates = [gain / n for n, gain in zip(POINTS, curve, strict=True)]
    return all(more <= less for less, more in itertools.pairwise(rates))


@cache
def gains(curve: Curve) -> Measurements:
    """The throughput with 0 to MOST_TASKS tasks at a time, interpolated linearly; 1 with no task."""
    found = np.interp(np.arange(MOST_TASKS + 1), POINTS, curve)
    found.setflags(write=False)
    return found


def most_gain(curve: Curve, most: int = MOST_TASKS) -> float:
    """The highest throughput with up to `most` tasks at a time."""
    return float(gains(curve)[: most + 1].max())


@dataclass(slots=True)
class TaskTime:
    """How far the tasks of a device have come: the time for which each would have been computed if it were alone.

    Tasks that share a device advance alike. So a task that needs w microseconds alone and begins when `us` is u ends when
    `us` is u + w, whatever begins or ends in between.
    """

    curve: Curve = NO_GAIN
    us: float = 0.0
    running: int = 0
    """Number of tasks under way."""
    at_us: int = 0
    """The time at which `us` was known last."""

    def advance(self, now_us: int) -> float:
        """Moves on to the present. Returns: `us`."""
        if self.running:
            self.us += (now_us - self.at_us) * float(gains(self.curve)[min(self.running, MOST_TASKS)]) / self.running
        self.at_us = now_us
        return self.us

    def begin(self, now_us: int) -> float:
        """A task begins. Returns: `us` at its beginning."""
        began = self.advance(now_us)
        self.running += 1
        return began

    def end(self, now_us: int) -> float:
        """A task ends or is stopped. Returns: `us` at its end."""
        ended = self.advance(now_us)
        self.running -= 1
        return ended

    def when_us(self, us: float) -> int:
        """The first whole microsecond at which `us` is reached if no task begins or ends before."""
        left = max(0.0, us - self.us) * self.running / float(gains(self.curve)[min(self.running, MOST_TASKS)])
        return self.at_us + math.ceil(left - 1e-6)
