"""The queue of a worker's tasks, and the server's book of finished ones."""

from collections import defaultdict
from collections.abc import Iterable

from sa_atp.lab.parameters.rules.messages import Task, Tasks


def shard_of(clock: int, shard: int, micro_batches: int) -> Tasks:
    return tuple(Task(clock, shard, m) for m in range(micro_batches))


class TaskQueue:
    """A worker's own tasks of a clock: begun from the head, given away from the tail."""

    def __init__(self) -> None:
        self.clock = -1
        self._waiting: list[Task] = []

    def begin(self, clock: int, tasks: Tasks) -> None:
        self.clock = clock
        self._waiting = list(tasks)

    @property
    def blocked(self) -> int:
        """Number of tasks not begun."""
        return len(self._waiting)

    def next(self) -> Task | None:
        """Removes and returns the next task to begin; None: there is none."""
        return self._waiting.pop(0) if self._waiting else None

    def give(self, count: int) -> Tasks:
        """Removes and returns up to so many tasks from the tail."""
        count = min(count, len(self._waiting))
        at = len(self._waiting) - count
        given, self._waiting = self._waiting[at:], self._waiting[:at]
        return tuple(given)

    def take_back(self, tasks: Tasks) -> None:
        self._waiting.extend(tasks)


class TwiceError(ValueError):
    """An update contains a task that was pushed before."""


class Book:
    """The tasks that have been pushed, each once. A shard's clock is the number of its complete clocks."""

    def __init__(self, world_size: int, micro_batches: int) -> None:
        self.clocks = [0] * world_size
        self.slowest = 0
        """Number of clocks complete on all shards."""
        self._micro_batches = micro_batches
        self._all = (1 << micro_batches) - 1
        self._done: list[dict[int, int]] = [defaultdict(int) for _ in range(world_size)]  # by shard: clock -> bits

    def enter(self, tasks: Iterable[Task]) -> None:
        """Adds tasks. Raises: TwiceError: one was pushed before; none is added then."""
        new = set()
        for task in tasks:
            if task in new or self.has(task):
                raise TwiceError(f"{task} was pushed twice")
            new.add(task)
        for task in new:
            self._done[task.shard][task.clock] |= 1 << task.micro_batch
        for shard in {task.shard for task in new}:
            done = self._done[shard]
            while done.get(self.clocks[shard]) == self._all:
                del done[self.clocks[shard]]
                self.clocks[shard] += 1
        self.slowest = min(self.clocks)

    def knows(self, task: Task) -> bool:
        """Whether the job has such a task."""
        return 0 <= task.shard < len(self.clocks) and 0 <= task.micro_batch < self._micro_batches and task.clock >= 0

    def has(self, task: Task) -> bool:
        if task.clock < self.clocks[task.shard]:
            return True
        return bool(self._done[task.shard].get(task.clock, 0) >> task.micro_batch & 1)
