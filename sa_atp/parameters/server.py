"""The server of the parameters of one job: messages and the time go in, messages come out."""

from collections.abc import Callable
from typing import NamedTuple

from sa_atp.arrays import Values
from sa_atp.parameters.messages import Any, Applied, Failed, GoAhead, Join, Outgoing, Over, Pull, Push, Tasks
from sa_atp.parameters.rules import Rules
from sa_atp.parameters.store import Store
from sa_atp.parameters.tasks import Book, TwiceError


class Taken(NamedTuple):
    """An update that the server has taken."""

    number: int
    """1 for the first."""
    rank: int
    clock: int
    tasks: Tasks
    staleness: int
    """Updates that it had taken since its pusher got its parameters."""
    update: Values
    values: Values
    """The parameters after it."""


class Snapshot(NamedTuple):
    """The parameters when so many whole clocks' worth of tasks had gone into them."""

    clocks: int
    at_us: int
    values: Values


class ParameterServer:
    def __init__(
        self,
        rules: Rules,
        *,
        taken: Callable[[Taken], None] = lambda _: None,
        reached: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        """Args:
        taken: called with each update, in order.
        reached: called each time when a clock's worth of tasks more is in the parameters.
        """
        self.rules = rules
        self.book = Book(rules.terms.world_size, rules.terms.micro_batches)
        self.store: Store | None = None
        self.is_over = False
        self.tasks_in = 0
        """Tasks that are in the parameters."""
        self.most_ahead = 0
        """Most clocks that a worker was ahead of the slowest when it began one."""
        self._merging = rules.merging()
        self._taken = taken
        self._reached = reached
        self._joined: set[int] = set()
        self._waiting: dict[int, int] = {}  # rank -> clock that it wants to begin, in the order of asking
        self._pulled: dict[int, int] = {}  # rank -> version that it has
        self._clocks = 0

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Whom those that wait are waiting for."""
        everybody = range(self.rules.terms.world_size)
        if len(self._joined) < len(everybody):
            return tuple(rank for rank in everybody if rank not in self._joined)
        return tuple(rank for rank in everybody if self.book.clocks[rank] == self.book.slowest)

    def receive(self, rank: int, message: Any, values: Values | None, now_us: int) -> list[Outgoing]:
        """Args: values: what came beside the message. Returns: what is to be sent, in order."""
        match message:
            case Join():
                self._joined.add(rank)
                if values is not None and self.store is None:
                    self.store = Store(values)
                return self._go_on(now_us)
            case Pull(clock=clock):
                self._waiting[rank] = clock
                orders = self.rules.observe(rank, message, now_us)
                return [*self._go_on(now_us), *orders]
            case Push() if values is not None:
                return self._push(rank, message, values, now_us)
        return [] if self.is_over else self.rules.observe(rank, message, now_us)

    def lost(self, rank: int, reason: str) -> list[Outgoing]:
        """A worker is gone: nobody can go on. Nothing is lost once the job is over."""
        if self.is_over:
            return []
        self.is_over = True
        others = [other for other in range(self.rules.terms.world_size) if other != rank]
        return [Outgoing(other, Failed(reason=f"rank {rank}: {reason}")) for other in others]

    def _push(self, rank: int, push: Push, update: Values, now_us: int) -> list[Outgoing]:
        if self.is_over or self.store is None:
            return []
        if update.shape != self.store.values.shape:
            sizes = f"{update.size} values, and the parameters {self.store.values.size}"
            return [Outgoing(rank, Failed(reason=f"rank {rank}: its update has {sizes}"))]
        slowest = self.book.slowest
        stranger = next((task for task in push.tasks if not self.book.knows(task)), None)
        if stranger is not None or not push.tasks:
            return [Outgoing(rank, Failed(reason=f"rank {rank}: its update has {stranger or 'no tasks'}"))]
        try:
            self.book.enter(push.tasks)
        except TwiceError as error:
            return [Outgoing(rank, Failed(reason=f"rank {rank}: {error}"))]
        staleness = self.store.version - self._pulled.get(rank, 0)
        self.store.version += 1
        self.tasks_in += self._merging.merge(self.store, push.clock, push.tasks, update)
        values = self.store.values.copy()
        self._taken(Taken(self.store.version, rank, push.clock, push.tasks, staleness, update, values))
        terms = self.rules.terms
        while self._clocks < min(terms.clocks, self.tasks_in // terms.tasks_of_clock):
            self._clocks += 1
            self._reached(Snapshot(self._clocks, now_us, values))
        answers = [Outgoing(rank, Applied(version=self.store.version))]
        if self._clocks == terms.clocks:
            self.is_over = True
            return answers + [Outgoing(other, Over()) for other in range(terms.world_size)]
        orders = self.rules.observe(rank, push, now_us)
        # who waits may go on when the slowest has
        return [*answers, *(self._go_on(now_us) if self.book.slowest > slowest else ()), *orders]

    def _go_on(self, now_us: int) -> list[Outgoing]:
        """Answers those who may begin what they asked for."""
        if self.store is None or len(self._joined) < self.rules.terms.world_size:
            return []
        answers = []
        for rank, clock in list(self._waiting.items()):
            if self.is_over:
                answers.append(Outgoing(rank, Over()))
            elif self.rules.may_begin(clock, self.book.slowest):
                self.most_ahead = max(self.most_ahead, clock - self.book.slowest)
                self._pulled[rank] = self.store.version
                tasks = self.rules.tasks(rank, clock, now_us)
                go = GoAhead(clock=clock, version=self.store.version, tasks=tasks)
                answers.append(Outgoing(rank, go, self.store.values.copy()))
            else:
                continue
            del self._waiting[rank]
        return answers
