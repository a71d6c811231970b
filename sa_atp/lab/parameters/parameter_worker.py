"""The loop of a worker with parameters on a server, for all such policies: pull, compute, push, and compute for others.

It is a generator of effects, as steps are (steps/step.py). `WorkerRules` decide which task is next and which messages are
sent; a `ParameterHost` carries them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
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
from sa_atp.steps.step import Compute, Steps, Wait
from sa_atp.steps.step_record import Activity, Piece, StepRecord, account

ANSWER_US = 120_000_000  # how long to wait for the reply to a push, which depends on no other worker


class ParameterError(TransportError):
    """A job with parameters on a server has failed."""


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
        pause_us: Callable[[int], int] = lambda clock: 0,
        patience_us: int | None = None,
        begins: Callable[[int], None] = lambda clock: None,
        ended: Callable[[StepRecord], None] = lambda record: None,
    ) -> None:
        """Args:
        pause_us: returns how long to pause in the middle of a clock.
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
        self._lock = threading.Lock()  # the rules hear messages while the worker computes
        host.listen(self._receive)

    def run(self) -> Steps:
        """Trains clock by clock until the server ends the job. Raises: ParameterError."""
        initial = self._workload.initial() if self.host.rank == 0 else None
        self.host.send(Outgoing(SERVER, JoinTraining(), initial))
        while True:
            self._begins(self.clock)
            record = StepRecord(self.clock, self.host.now_us())
            self._sending = []
            go = yield from self._go_ahead(record)
            record.is_finished = go is not None and (yield from self._compute_and_push(go, record))
            record.end_us = self.host.now_us()
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
            case Over():
                _end(self._over)
            case JobFailed(reason=reason):
                _fail(self._over, ParameterError(reason))
            case GoAhead() if values is not None:
                self._go.set_result((message, values))
            case Applied():
                self._applied.set_result(message)
            case _:
                with self._lock:
                    says = self.rules.receive(sender, message)
                    news, self._news = self._news, Future()
                self._say(says)
                _end(news)

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
        pause_us, middle = self._pause_us(self.clock), len(answer.tasks) // 2
        done: list[Task] = []
        total = np.zeros(self._workload.values, np.float32)
        while not self._over.done():
            with self._lock:
                news, task = self._news, self.rules.next()
                says = self.rules.settle() if task is None else []
                is_settled = self.rules.is_settled
                taken = self.rules.take() if task is None and is_settled and self.rules.gathers else None
            self._say(says)
            if taken is not None:
                self._say(taken.says)
                done += yield from self._compute_for_others(taken.tasks, total, record)
                continue
            if task is None and is_settled:
                return (yield from self._push(tuple(done), total, record))
            if task is None:
                yield Wait(first_of(news, self._over))
                continue
            if pause_us and len(done) == middle:
                start_us, length_us, pause_us = self.host.now_us(), pause_us, 0
                yield Wait(self._over, length_us)
                record.activities.append(Activity("pause", start_us, self.host.now_us()))
            if (yield from self._compute(task, total, record)):
                done.append(task)
                record.samples += self._workload.micro_batch_size
        return False

    def _others(self, tasks: Tasks, record: StepRecord) -> Steps:
        """Computes tasks of other workers, and pushes the update."""
        total = np.zeros(self._workload.values, np.float32)
        done = yield from self._compute_for_others(tasks, total, record)
        yield from self._push(tuple(done), total, record)

    def _compute_for_others(self, tasks: Tasks, total: Values, record: StepRecord) -> Steps:
        """Adds the gradients of others' tasks to a total. Returns: the tasks done; fewer if the job ends first."""
        done: list[Task] = []
        for task in tasks:
            if not (yield from self._compute(task, total, record)):
                break
            done.append(task)
        return done

    def _compute(self, task: Task, total: Values, record: StepRecord) -> Steps:
        """Adds a task's gradient, its share of the shard's mean, to a total. Returns: False if the job ends first.

        A task counts as help if its shard is another worker's, whichever way the worker got it.
        """
        is_own = task.shard == self.host.rank
        kind = "compute" if is_own else "help"
        start_us = self.host.now_us()
        outcome = yield Compute(task.clock, task.shard, task.micro_batch, self._over, self._weights)
        end_us = self.host.now_us()
        label = f"shard {task.shard}, micro-batch {task.micro_batch}"
        if outcome is None:
            record.activities.append(Activity(kind, start_us, end_us, f"{label}, cancelled"))
            return False
        gradient, loss = outcome
        total += np.float32(self.host.world_size) * gradient
        record.activities.append(Activity(kind, start_us, end_us, label))
        record.losses.append(loss)
        record.micro_batches += is_own
        record.helped += not is_own
        with self._lock:
            says = self.rules.note_computed(task, end_us - start_us)
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


def _end(future: "Future[None]") -> None:
    try:
        future.set_result(None)
    except InvalidStateError:  # the future ended for another reason before
        return


def _fail(future: "Future[None]", error: Exception) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        return
