"""The server of the parameters of one job, pure: messages and the time go in, messages come out."""

from collections.abc import Callable
from typing import NamedTuple

from sa_atp.basics.arrays import Values
from sa_atp.lab.parameters.rules.messages import (
    AmongWorkers,
    AnyMessage,
    Applied,
    GoAhead,
    JobFailed,
    JoinTraining,
    MessageRefused,
    Outgoing,
    Over,
    Pull,
    Push,
    Tasks,
    ToServer,
    ValuesNotFinite,
)
from sa_atp.lab.parameters.rules.rules import Rules
from sa_atp.lab.parameters.rules.store import Store, check_finite
from sa_atp.lab.parameters.rules.tasks import Book, TwiceError


class TakenUpdate(NamedTuple):
    """An update that the server has applied."""

    number: int
    """1 for the first."""
    rank: int
    clock: int
    tasks: Tasks
    staleness: int
    """Updates applied since the worker got its parameters."""
    update: Values
    values: Values
    """The parameters after the update."""


class Snapshot(NamedTuple):
    """The parameters when they first contained the tasks of so many whole clocks."""

    clocks: int
    at_us: int
    values: Values


class ParamsServer:
    """Handles workers' messages. A message that is not allowed in the job's state ends the job, and all workers are told
    which worker sent it and why it is wrong. Values that are not finite count as such, and are never applied; nor are
    values with which the parameters would not be finite.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        taken: Callable[[TakenUpdate], None] = lambda _: None,
        reached: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        """Args:
        taken: called with each update, in order.
        reached: called whenever the parameters contain the tasks of another whole clock.
        """
        self.rules = rules
        self.book = Book(rules.terms.world_size, rules.terms.micro_batches)
        self.store: Store | None = None
        self.is_over = False
        self.failure = ""
        """Why the job failed; empty: it did not."""
        self.tasks_in = 0
        """Number of tasks in the parameters."""
        self.most_ahead = 0
        """The largest number of clocks by which a worker was ahead of the slowest when it began one."""
        self._merging = rules.merging()
        self._taken = taken
        self._reached = reached
        self._joined: set[int] = set()
        self._waiting: dict[int, int] = {}  # rank -> clock that it waits to begin, in the order of requests
        self._pulled: dict[int, int] = {}  # rank -> version that it has
        self._next = [0] * rules.terms.world_size  # by rank: clock that it may ask for
        self._clocks = 0

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Ranks that the waiting workers are waiting for."""
        all_ranks = range(self.rules.terms.world_size)
        if len(self._joined) < len(all_ranks):
            return tuple(rank for rank in all_ranks if rank not in self._joined)
        return tuple(rank for rank in all_ranks if self.book.clocks[rank] == self.book.slowest)

    def receive(self, rank: int, message: AnyMessage, values: Values | None, now_us: int) -> list[Outgoing]:
        """Handles a message. Args: values: its payload. Returns: messages to send, in order."""
        if self.is_over:
            return []
        try:
            return self._take(rank, message, values, now_us)
        except (MessageRefused, TwiceError) as error:
            return self.fail(f"rank {rank}: {error}", not_finite=isinstance(error, ValuesNotFinite))

    def forward(self, rank: int, to: int, message: AnyMessage) -> list[Outgoing]:
        """Checks a message from one worker to another. Returns: messages to send if it is not allowed; none: forward it."""
        if self.is_over or (isinstance(message, AmongWorkers) and 0 <= to < self.rules.terms.world_size):
            return []
        return self.fail(f"rank {rank}: a message {type(message).__name__} for rank {to}, which workers do not send")

    def fail(self, reason: str, *, not_finite: bool = False) -> list[Outgoing]:
        """Ends the job as failed. Returns: messages that tell all workers why."""
        if self.is_over:
            return []
        self.is_over, self.failure = True, reason
        failed = JobFailed(reason=reason, not_finite=not_finite)
        return [Outgoing(rank, failed) for rank in range(self.rules.terms.world_size)]

    def _take(self, rank: int, message: AnyMessage, values: Values | None, now_us: int) -> list[Outgoing]:
        """Raises: MessageRefused, TwiceError; the parameters are unchanged then."""
        name = type(message).__name__
        if not isinstance(message, ToServer):
            raise MessageRefused(f"a message {name}, which workers do not send to the server")
        if isinstance(message, JoinTraining) == (rank in self._joined):
            raise MessageRefused(
                "it joins a second time" if rank in self._joined else f"a message {name} before it has joined"
            )
        match message:
            case JoinTraining():
                if (values is None) == (rank == 0):
                    raise MessageRefused(
                        "it joins without parameters" if rank == 0 else "it joins with parameters, as rank 0 does"
                    )
                if values is not None:
                    check_finite(values, "the parameters that it begins with have")
                    self.store = Store(values)
                self._joined.add(rank)
                return self._go_on(now_us)
            case Pull(clock=clock):
                if clock != self._next[rank] or rank in self._waiting:
                    raise MessageRefused(f"it asks for step {clock}, and step {self._next[rank]} is its next")
                self._waiting[rank] = clock
                orders = self.rules.observe(rank, message, now_us)
                return [*self._go_on(now_us), *orders]
            case Push():
                return self._push(rank, message, values, now_us)
        return self.rules.observe(rank, message, now_us)

    def remove_worker(self, rank: int, reason: str) -> list[Outgoing]:
        """Ends the job because a worker is gone; without effect if the job is over."""
        return [each for each in self.fail(f"rank {rank}: {reason}") if each.to != rank]

    def _check_push(self, rank: int, push: Push, update: Values | None) -> None:
        """Raises: Refused."""
        update_of = f"its update of step {push.clock} has"
        if self.store is None:
            raise MessageRefused(f"an update of step {push.clock}, before there are parameters")
        if update is None or update.size != self.store.values.size:
            sizes = f"{0 if update is None else update.size} values, and the parameters {self.store.values.size}"
            raise MessageRefused(f"{update_of} {sizes}")
        # tasks transferred from others may be pushed before the worker begins its next step or has its go-ahead
        if not self._next[rank] - 1 <= push.clock <= self._next[rank]:
            raise MessageRefused(f"an update of step {push.clock}, while it is in step {max(0, self._next[rank] - 1)}")
        begun = max(self._next)
        unknown = next((task for task in push.tasks if not self.book.knows(task) or task.clock >= begun), None)
        if unknown is not None or not push.tasks:
            raise MessageRefused(f"{update_of} {f'{unknown}, which no worker has begun' if unknown else 'no tasks'}")
        if self.rules.rule == "whole-clock" and len({task.clock for task in push.tasks}) > 1:
            raise MessageRefused(f"{update_of} tasks of several steps")
        check_finite(update, update_of)

    def _push(self, rank: int, push: Push, update: Values | None, now_us: int) -> list[Outgoing]:
        self._check_push(rank, push, update)
        assert self.store is not None
        assert update is not None
        slowest = self.book.slowest
        self.book.enter(push.tasks)
        staleness = self.store.version - self._pulled.get(rank, 0)
        self.tasks_in += self._merging.merge(self.store, push.clock, push.tasks, update)
        self.store.version += 1
        values = self.store.values.copy()
        self._taken(TakenUpdate(self.store.version, rank, push.clock, push.tasks, staleness, update, values))
        terms = self.rules.terms
        while self._clocks < min(terms.clocks, self.tasks_in // terms.tasks_of_clock):
            self._clocks += 1
            self._reached(Snapshot(self._clocks, now_us, values))
        answers = [Outgoing(rank, Applied(version=self.store.version))]
        if self._clocks == terms.clocks:
            self.is_over = True
            return answers + [Outgoing(other, Over()) for other in range(terms.world_size)]
        orders = self.rules.observe(rank, push, now_us)
        # waiting workers may go on if the slowest has advanced
        return [*answers, *(self._go_on(now_us) if self.book.slowest > slowest else ()), *orders]

    def _go_on(self, now_us: int) -> list[Outgoing]:
        """Answers the waiting workers that may begin their clock now."""
        if self.store is None or len(self._joined) < self.rules.terms.world_size:
            return []
        answers = []
        for rank, clock in list(self._waiting.items()):
            if self.rules.may_begin(clock, self.book.slowest):
                self.most_ahead = max(self.most_ahead, clock - self.book.slowest)
                self._pulled[rank] = self.store.version
                self._next[rank] = clock + 1
                tasks = self.rules.tasks(rank, clock, now_us)
                parallel = self.rules.parallel_of(rank)
                go = GoAhead(clock=clock, version=self.store.version, tasks=tasks, parallel=parallel)
                answers.append(Outgoing(rank, go, self.store.values.copy()))
                del self._waiting[rank]
        return answers
