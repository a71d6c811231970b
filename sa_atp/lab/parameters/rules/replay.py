"""An independent computation of the parameters from the logged updates, against which the store is checked.

It shares no code with store.py: a mistake has to be made in both to go unnoticed.
"""

from typing import Literal

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.messages import Tasks

Rule = Literal["sum", "version-mean", "whole-clock"]


class Replay:
    """Applies updates in the server's order; `values` are the parameters that must result."""

    def __init__(self, values: Values, *, rule: Rule, rate: float, world_size: int, micro_batches: int) -> None:
        """Args: rate: the learning rate times the weight of an update."""
        self.values = np.array(values, np.float32)
        self._rule = rule
        self._rate = np.float32(rate)
        self._workers = world_size
        self._all = world_size * micro_batches
        self._open: dict[int, list[tuple[Values, int]]] = {}  # by clock: updates, with their tasks
        self._means: dict[int, tuple[Values, int]] = {}
        self._seen: set[tuple[int, int, int]] = set()

    def take(self, clock: int, tasks: Tasks, update: Values) -> bool:
        """Applies an update. Returns: whether all of its tasks are new."""
        names = {(task.clock, task.shard, task.micro_batch) for task in tasks}
        is_new = len(names) == len(tasks) and not names & self._seen
        self._seen |= names
        if self._rule == "sum":
            self.values = self.values - self._rate * update
        elif self._rule == "version-mean":
            self._version(clock, update)
        else:
            self._whole(tasks, update)
        return is_new

    def _version(self, clock: int, update: Values) -> None:
        """Moves the clock's mean towards the new update, so that all updates of the clock weigh the same."""
        mean, count = self._means.get(clock, (np.zeros(len(update), np.float32), 0))
        moved = (update - mean) / np.float32(count + 1)
        self.values = self.values - self._rate * moved
        self._means[clock] = (mean + moved, count + 1)
        if count + 1 == self._workers:
            del self._means[clock]

    def _whole(self, tasks: Tasks, update: Values) -> None:
        parts = self._open.setdefault(tasks[0].clock, [])
        parts.append((update.copy(), len(tasks)))
        if sum(count for _, count in parts) == self._all:
            total = np.zeros(len(update), np.float32)
            for part, _ in parts:
                total = total + part
            self.values = self.values - self._rate * total
            del self._open[tasks[0].clock]
