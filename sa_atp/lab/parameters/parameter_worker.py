"""The loop of a worker with parameters on a server, for all such policies: pull, compute, push, and compute for others.

It is a generator of effects, as steps are (steps/step.py). `WorkerRules` decide which task is next and which messages are
sent; a `ParameterHost` carries them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.parameters.rules.messages import (
    SERVER,
    Applied,
    FromServer,
    GoAhead,
    JobFailed,
    JoinTraining,
    Outgoing,
    Over,
    Pull,
    Push,
    Task,
    Tasks,
)
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.net.promise import first_of
from sa_atp.protocol.job.errors import TransportError
from sa_atp.steps.effects import Beside, Compute, Steps, Wait, computed, paused
from sa_atp.steps.parallel import NO_GAIN, Curve, TaskTime
from sa_atp.steps.step_record import Piece, StepRecord, account

ANSWER_US = 120_000_000  # how long to wait for the reply to a push, which depends on no other worker


class ParameterError(TransportError):
    """A job with parameters on a server has failed."""


class DivergedError(ParameterError):
    """A worker's values were NaN or infinite, which ends a job."""


class ParameterWorkload(Protocol):
    """The model and data to train with, the same on every worker."""

    values: int
    micro_batch_size: int

    def initial(self) -> Values: ...
    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]: ...
    def samples(self, step: int, shard: int, micro_batch: int) -> Octets: ...


class ParameterHost(Protocol):
    """The clock and the messages of a worker; no call blocks."""

    rank: int
    world_size: int

    def now_us(self) -> int: ...
    def listen(self, receive: Callable[[int, Any, Values | None], None]) -> None:
        """Sets the callback for messages: `receive(sender, message, values)`, called from any thread, one at a time."""

    def send(self, outgoing: Outgoing) -> None:
        """Sends a message; messages to one receiver arrive in order."""


class ParameterWorker:
    def __init__(
        self,
        host: ParameterHost,
        workload: ParameterWorkload,
        rules: WorkerRules,
        *,
        curve: Curve = NO_GAIN,
        pause_us: Callable[[int], int] = lambda clock: 0,
        patience_us: int | None = None,
        begins: Callable[[int], None] = lambda clock: None,
        ended: Callable[[StepRecord], None] = lambda record: None,
    ) -> None:
        """Args:
        curve: the throughput of its device with several tasks at a time (steps/parallel.py).
        pause_us: returns how long to pause in the middle of a clock, in which no task begins.
        patience_us: how long to wait for a go-ahead; None: without limit.
        begins: called when a clock begins.
        ended: called with the record of a clock when its update is applied, or when the job ends before.
        """
        self.host = host
        self.rules = rules
        self.clock = 0
        self.pushed: list[tuple[int, Tasks, Values]] = []
        """(version, tasks, update) of each push since the last call of `ended`."""
        self._workload = workload
        self._pause_us = pause_us
        self._patience_us = patience_us
        self._begins = begins
        self._ended = ended
        self._over: Future[None] = Future()
        self._news: Future[None] = Future()
        self._go: Future[tuple[GoAhead, Values]] = Future()
        self._applied: Future[Applied] = Future()
        self._weights: Values = np.empty(0, np.float32)
        self._sending: list[tuple[int, int]] = []
        self._own_done: list[Task] = []  # tasks of this clock, in the order in which they were done
        self._parallel = 1  # tasks at a time
        self._is_pausing = False
        self._task_time = TaskTime(curve)
        self._lock = (
            threading.Lock()
        )  # the rules hear messages while the worker computes, and it may compute in threads
        host.listen(self._receive)

    def run(self) -> Steps:
        """Trains clock by clock until the server ends the job. Raises: ParameterError."""
        initial = self._workload.initial() if self.host.rank == 0 else None
        self.host.send(Outgoing(SERVER, JoinTraining(), initial))
        while True:
            self._begins(self.clock)
            record = StepRecord(self.clock, self.host.now_us())
            self._sending, self._own_done = [], []
            go = yield from self._go_ahead(record)
            record.is_finished = go is not None and (yield from self._compute_and_push(go, record))
            record.end_us = self.host.now_us()
            record.samples = len(self._own_done) * self._workload.micro_batch_size or None
            account(record, record.start_us, self._sending)
            record.dropped = record.micro_batches + record.helped - len(record.pieces)
            self._ended(record)
            if not record.is_finished:
                break
            self.clock += 1
        self._over.result(timeout=0)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _receive(self, sender: int, message: Any, values: Values | None) -> None:
        if isinstance(message, FromServer) and sender != SERVER:
            message = JobFailed(
                reason=f"rank {sender}: a message {type(message).__name__}, which only the server sends"
            )
        match message:
            case Over() | JobFailed() if self._over.done():
                pass  # the job has ended for another reason before
            case Over():
                self._over.set_result(None)
            case JobFailed(reason=reason, not_finite=not_finite):
                self._over.set_exception((DivergedError if not_finite else ParameterError)(reason))
            case GoAhead() if values is not None:
                self._go.set_result((message, values))
            case Applied():
                self._applied.set_result(message)
            case _:
                with self._lock:
                    says = self.rules.receive(sender, message)
                    news, self._news = self._news, Future()
                self._say(says)
                news.set_result(None)

    def _say(self, says: Any) -> None:
        for each in says:
            self.host.send(each)

    # --- a clock ------------------------------------------------------------------------------------------------------

    def _go_ahead(self, record: StepRecord) -> Steps:
        """Asks for parameters, and computes others' tasks until they come. Returns: the go-ahead; None: the job is over."""
        self._go = Future()
        self.host.send(Outgoing(SERVER, Pull(clock=self.clock)))
        asked_us = self.host.now_us()
        while not self._over.done():
            with self._lock:
                news, taken = self._news, self.rules.take()
            if taken is not None:
                self._say(taken.says)
                yield from self._others(taken.tasks, record)
            elif self._go.done():
                return self._go.result(timeout=0)
            elif not (yield Wait(first_of(self._go, news, self._over), self._left_us(asked_us))):
                seconds = (self.host.now_us() - asked_us) / 1e6
                raise ParameterError(f"rank {self.host.rank}: no go-ahead for clock {self.clock} after {seconds:.0f} s")
        return None

    def _left_us(self, asked_us: int) -> int | None:
        return None if self._patience_us is None else max(0, asked_us + self._patience_us - self.host.now_us())

    def _compute_and_push(self, go: tuple[GoAhead, Values], record: StepRecord) -> Steps:
        """Computes a clock's tasks and pushes the update. Returns: whether it was applied; False: the job is over."""
        answer, self._weights = go
        with self._lock:
            self.rules.begin(self.clock, answer.tasks)
        self._parallel = answer.parallel
        pause_us, middle = self._pause_us(self.clock), len(answer.tasks) // 2
        gathered: list[Task] = []
        total = np.zeros(self._workload.values, np.float32)
        beside: list[Future[None]] = []
        while not self._over.done():
            beside = _unfinished(beside)
            with self._lock:
                news, task = self._news, self.rules.queue.next()
                says = self.rules.settle() if task is None else []
                is_settled = self.rules.is_settled
                taken = self.rules.take() if task is None and is_settled and self.rules.gathers else None
            self._say(says)
            if taken is not None:
                self._say(taken.says)
                gathered += yield from self._compute_for_others(
                    taken.tasks, total, record, self._parallel - len(beside)
                )
                continue
            if task is None and is_settled and not beside:
                return (yield from self._push((*self._own_done, *gathered), total, record))
            if task is None:
                yield Wait(first_of(news, self._over, *beside))
                continue
            if pause_us and len(self._own_done) >= middle:
                self._is_pausing = True
                yield from paused(pause_us, record, self.host.now_us, self._over)
                self._is_pausing, pause_us = False, 0
                beside = _unfinished(beside)
            for _ in range(min(self.rules.queue.blocked, self._parallel - 1 - len(beside))):
                beside.append((yield Beside(self._compute_each(self._next_own, self._own_done, total, record))))
            yield from self._compute(task, total, record, self._own_done)
        return False

    def _next_own(self) -> Task | None:
        with self._lock:
            return None if self._is_pausing else self.rules.queue.next()

    def _others(self, tasks: Tasks, record: StepRecord) -> Steps:
        """Computes tasks of other workers, and pushes the update."""
        total = np.zeros(self._workload.values, np.float32)
        done = yield from self._compute_for_others(tasks, total, record, self._parallel)
        yield from self._push(tuple(done), total, record)

    def _compute_for_others(self, tasks: Tasks, total: Values, record: StepRecord, parallel: int) -> Steps:
        """Adds the gradients of others' tasks to a total, so many at a time.

        Returns: the tasks done; fewer if the job ends first.
        """
        done: list[Task] = []
        next_task = partial(next, iter(tasks), None)  # each task once, whichever thread asks
        beside = []
        for _ in range(min(len(tasks), parallel) - 1):
            beside.append((yield Beside(self._compute_each(next_task, done, total, record))))
        yield from self._compute_each(next_task, done, total, record)
        while beside := _unfinished(beside):
            yield Wait(first_of(*beside))
        return done

    def _compute_each(
        self, next_task: Callable[[], Task | None], done: list[Task], total: Values, record: StepRecord
    ) -> Steps:
        """Computes task after task while there are any, and the job is not over."""
        while not self._over.done() and (task := next_task()) is not None:
            if not (yield from self._compute(task, total, record, done)):
                return

    def _compute(self, task: Task, total: Values, record: StepRecord, done: list[Task]) -> Steps:
        """Adds a task's gradient, its share of the shard's mean, to a total. Returns: False if the job ends first.

        A task counts as help if its shard is another worker's, whichever way the worker got it.
        """
        is_own = task.shard == self.host.rank
        with self._lock:
            began_us = self._task_time.begin(self.host.now_us())
        work = Compute(task.clock, task.shard, task.micro_batch, self._over, self._weights)
        gradient = yield from computed(work, record, self.host.now_us, self.host.rank)
        with self._lock:
            alone_us = round(self._task_time.end(self.host.now_us()) - began_us)
            if gradient is None:
                return False
            total += np.float32(self.host.world_size) * gradient
            record.micro_batches += is_own
            record.helped += not is_own
            says = self.rules.note_computed(task, alone_us)
            done.append(task)
        self._say(says)
        return True

    def _push(self, tasks: Tasks, update: Values, record: StepRecord) -> Steps:
        """Pushes an update, unless it has no tasks. Returns: False if the job ends first."""
        if not tasks:
            return True
        self._applied = Future()
        start_us = self.host.now_us()
        self.host.send(Outgoing(SERVER, Push(clock=self.clock, tasks=tasks), update))
        if not (yield Wait(first_of(self._applied, self._over), ANSWER_US)):
            raise ParameterError(
                f"rank {self.host.rank}: the server did not apply its update within {ANSWER_US / 1e6:.0f} s"
            )
        self._sending.append((start_us, self.host.now_us()))
        if not self._applied.done():
            return False
        self.pushed.append((self._applied.result(timeout=0).version, tasks, update))
        end_us = self.host.now_us()
        record.pieces += [Piece(task.clock, task.shard, task.micro_batch, end_us) for task in tasks]
        return True


def _unfinished(futures: "list[Future[None]]") -> "list[Future[None]]":
    """The futures that are not done. Raises: the error of one that failed."""
    for future in futures:
        if future.done():
            future.result()
    return [future for future in futures if not future.done()]
