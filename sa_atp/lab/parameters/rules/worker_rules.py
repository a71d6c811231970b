"""What a worker decides under a policy: which task is next, what it says to whom. No I/O: messages in, messages out."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from sa_atp.lab.parameters.rules.messages import Any, Outgoing, Task, Tasks
from sa_atp.lab.parameters.rules.tasks import TaskQueue


@dataclass(frozen=True, slots=True)
class Taken:
    """Other workers' tasks that it begins now."""

    tasks: Tasks
    says: tuple[Outgoing, ...] = ()


class WorkerRules:
    """Computes what it is told to compute, and nothing else."""

    gathers: ClassVar[bool] = False
    """Whether it computes others' tasks before it pushes its own, in one update; else its own go first, by themselves."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.queue = TaskQueue()
        self._foreign: deque[Tasks] = deque()

    def begin(self, clock: int, tasks: Tasks) -> None:
        """A clock begins. What it had of the last one is done."""
        self.queue.begin(clock, tasks)

    def next(self) -> Task | None:
        """Its own task that it begins now."""
        return self.queue.next()

    def finished(self, task: Task, took_us: int) -> list[Outgoing]:
        """It has computed a task, its own or another's."""
        return []

    def settle(self) -> list[Outgoing]:
        """It has begun all of its own tasks: what it says about those that it gave away."""
        return []

    @property
    def is_settled(self) -> bool:
        """Whether nothing of its own tasks is open: it may push."""
        return True

    def take(self) -> Taken | None:
        """Others' tasks that it begins now, when its own are pushed."""
        return Taken(self._foreign.popleft()) if self._foreign else None

    def receive(self, sender: int, message: Any) -> list[Outgoing]:
        """A message has come, from another worker or from the server."""
        return []
