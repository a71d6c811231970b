"""A worker's decisions under a policy: its next task, and its messages. No I/O: messages in, messages out."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from sa_atp.lab.parameters.rules.messages import AnyMessage, Outgoing, Task, Tasks
from sa_atp.lab.parameters.rules.tasks import TaskQueue


@dataclass(frozen=True, slots=True)
class TakenTasks:
    """Tasks of other workers that a worker begins now, and messages to send because of it."""

    tasks: Tasks
    says: tuple[Outgoing, ...] = ()


class WorkerRules:
    """The rules of a worker that computes its own tasks, and never gives any away."""

    gathers: ClassVar[bool] = False
    """True: others' tasks go into the same update as its own; False: its own are pushed first, in an own update."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.queue = TaskQueue()
        self._foreign: deque[Tasks] = deque()

    def begin(self, clock: int, tasks: Tasks) -> None:
        """Begins a clock with these tasks; those of the last one are done."""
        self.queue.begin(clock, tasks)

    def note_computed(self, task: Task, took_us: int) -> list[Outgoing]:
        """Notes that a task, its own or another worker's, is computed. Returns: messages to send."""
        return []

    def settle(self) -> list[Outgoing]:
        """Called when all own tasks are begun. Returns: messages about the tasks given away."""
        return []

    @property
    def is_settled(self) -> bool:
        """Whether it may push: no task that it gave away can still come back."""
        return True

    def take(self) -> TakenTasks | None:
        """Removes and returns tasks of other workers to begin now; None: there are none."""
        return TakenTasks(self._foreign.popleft()) if self._foreign else None

    def receive(self, sender: int, message: AnyMessage) -> list[Outgoing]:
        """Handles a message from another worker or the server. Returns: messages to send."""
        return []
