"""The parameters on the server, and how updates get into them.

All arithmetic is float32, in the order in which updates come, so that it can be repeated bit for bit (replay.py).
"""

from typing import Protocol

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.messages import Tasks


class Store:
    """float32[values] and a version: how many updates have come."""

    def __init__(self, values: Values) -> None:
        self.values = np.array(values, np.float32)
        self.version = 0

    def add(self, update: Values, factor: float) -> None:
        """values += factor x update."""
        self.values += np.float32(factor) * update


class Merging(Protocol):
    """How an update is weighted and applied."""

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        """Takes an update in. Args: clock: its pusher's. Returns: how many tasks are in the parameters by that."""
        ...


class Additive:
    """Every update with the same weight, as soon as it is there."""

    def __init__(self, rate: float) -> None:
        """Args: rate: the learning rate times the weight."""
        self.rate = rate

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        store.add(update, -self.rate)
        return len(tasks)


class VersionMeans:
    """Of all updates of a clock, the mean is in the parameters, at any time. (DynSGD, Jiang et al. 2017)

    The d-th update of a clock (of staleness d - 1) gets the weight 1/d, and so do those before it: what of the clock is in
    the parameters already is revised to the new mean, which changes it by (update - mean) / d. A clock's weights sum to 1
    however many of its updates have come. What is kept for each clock that is not complete: its mean, and how many.
    """

    def __init__(self, rate: float, world_size: int) -> None:
        self.rate = rate
        self.world_size = world_size
        self.versions: dict[int, tuple[Values, int]] = {}

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        mean, count = self.versions.pop(clock, (np.zeros_like(update), 0))
        count += 1
        change = (update - mean) / np.float32(count)
        store.add(change, -self.rate)
        if count < self.world_size:
            self.versions[clock] = mean + change, count
        return len(tasks)


class WholeClocks:
    """The updates of a clock together, when all of its tasks are there: nobody sees half a clock."""

    def __init__(self, rate: float, tasks_of_clock: int) -> None:
        self.rate = rate
        self.tasks_of_clock = tasks_of_clock
        self.gathered: dict[int, tuple[Values, int]] = {}

    def merge(self, store: Store, clock: int, tasks: Tasks, update: Values) -> int:
        """All tasks of an update are of one clock."""
        sum_, count = self.gathered.pop(tasks[0].clock, (np.zeros_like(update), 0))
        sum_ = sum_ + update
        count += len(tasks)
        if count < self.tasks_of_clock:
            self.gathered[tasks[0].clock] = sum_, count
            return 0
        store.add(sum_, -self.rate)
        return count
