"""The parameters on the server, and the ways to apply updates.

All arithmetic is float32, in the order of arrival, so that it can be repeated bit for bit (replay.py).
"""

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.messages import Tasks, ValuesNotFinite


def check_finite(values: Values, what: str) -> None:
    """Args: what: has these values, for the message. Raises: ValuesNotFinite: one is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValuesNotFinite(
            f"{what} {bad.size} of {values.size} values that are NaN or infinite, the first at index {bad[0]}"
        )


class Store:
    """The parameters, float32[values], and their version: the number of updates so far."""

    def __init__(self, values: Values) -> None:
        self.values = np.array(values, np.float32)
        self.version = 0

    def add(self, update: Values, factor: float) -> None:
        """values += factor x update. Raises: ValuesNotFinite: the sum is too large for float32; the values stay."""
        with np.errstate(over="ignore", invalid="ignore"):
            changed = self.values + np.float32(factor) * update
        check_finite(changed, "with its update the parameters have")
        self.values = changed


class Merging:
    """A way to weight and apply updates: this one applies each on arrival, with the same weight."""

    def __init__(self, rate: float) -> None:
        """Args: rate: the learning rate times the weight."""
        self.rate = rate

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        """Takes an update. Args: clock: of the worker that pushed it. Returns: number of tasks added to the parameters."""
        store.add(update, -self.rate)
        return len(tasks)


class VersionMeans(Merging):
    """Keeps the mean of each clock's updates so far in the parameters. (DynSGD, Jiang et al. 2017)

    The d-th update of a clock (of staleness d - 1) gets the weight 1/d, and the earlier ones are reduced to the same: the
    parameters change by (update - mean) / d. A clock's weights always sum to 1. For each incomplete clock, the mean and the
    number of updates are kept.
    """

    def __init__(self, rate: float, world_size: int) -> None:
        super().__init__(rate)
        self.world_size = world_size
        self.versions: dict[int, tuple[Values, int]] = {}

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        mean, count = self.versions.pop(clock, (np.zeros_like(update), 0))
        count += 1
        with np.errstate(over="ignore"):
            change = (update - mean) / np.float32(count)
        store.add(change, -self.rate)
        if count < self.world_size:
            self.versions[clock] = mean + change, count
        return len(tasks)


class WholeClocks(Merging):
    """Applies the updates of a clock together, when all of its tasks have arrived."""

    def __init__(self, rate: float, tasks_of_clock: int) -> None:
        super().__init__(rate)
        self.tasks_of_clock = tasks_of_clock
        self.gathered: dict[int, tuple[Values, int]] = {}

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        """See `Merging`. All tasks of an update belong to one clock."""
        sum_, count = self.gathered.pop(tasks[0].clock, (np.zeros_like(update), 0))
        with np.errstate(over="ignore", invalid="ignore"):
            sum_ = sum_ + update
        count += len(tasks)
        if count < self.tasks_of_clock:
            self.gathered[tasks[0].clock] = sum_, count
            return 0
        store.add(sum_, -self.rate)
        return count
