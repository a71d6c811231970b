"""Falcon's EPSP, as this project reconstructs it: docs/deviations.md says what is published and what is ours.

The server measures how fast each worker is and knows how much each has left: that projects when it will be done
(straggler projection). From that it decides two things. When a clock begins, how many of its tasks each worker runs: its
parallelism, in proportion to its speed (elastic parallelism control). While the clock runs, whether tasks that a straggler
has not begun, blocked behind the one that it computes, move to the worker that will be done first, a pioneer: only if the
straggler's share is done sooner by that, what the transfer costs counted as measured.
"""

import heapq
from dataclasses import dataclass

from sa_atp.parameters.messages import (
    SERVER,
    Any,
    Arrived,
    Gave,
    GiveUp,
    Outgoing,
    Progress,
    Pull,
    Push,
    Task,
    Tasks,
    Transfer,
)
from sa_atp.parameters.rules import SspRules, Terms
from sa_atp.parameters.tasks import shard_of
from sa_atp.parameters.worker_rules import WorkerRules

NEWEST = 0.5  # weight of the newest measurement in a moving mean


@dataclass(slots=True)
class _Seen:
    """What the server knows of a worker."""

    left: int = 0
    """Tasks that it has, the one that it computes included."""
    task_us: float | None = None
    """What a task takes there; None: none is done yet."""
    since_us: int = 0
    """When it began the task that it computes."""
    gives: int | None = None
    """The order that it has not answered."""

    def took(self, now_us: int) -> float:
        """What a task takes; one that takes longer than the last ones did tells of a slow-down before it is done."""
        return max(self.task_us or 0.0, float(now_us - self.since_us) if self.left else 0.0)

    def done_us(self, now_us: int) -> float:
        """When it will be done with all that it has."""
        return max(now_us, self.since_us + self.left * self.took(now_us)) if self.left else float(now_us)


@dataclass(slots=True)
class _Order:
    given_us: int
    giver: int
    taker: int
    count: int
    answers: int = 0


class FalconRules(SspRules):
    """The slack scheme: SSP's bound. Each update has the weight 1/M."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._workers = [_Seen() for _ in range(terms.world_size)]
        self._shares: dict[int, list[Tasks]] = {}  # by clock: each worker's tasks; forgotten when all have begun it
        self._begun: dict[int, int] = {}  # by clock: workers that have begun it
        self._orders: dict[int, _Order] = {}
        self._number = 0
        self.transfer_us: float | None = None
        """What a transfer costs, from order to arrival; None: none has been made."""
        self.transferred = 0
        """Tasks."""

    @property
    def rate(self) -> float:
        return self.terms.learning_rate / self.terms.world_size

    # --- parallelism ------------------------------------------------------------------------------------------------------

    def parallelism(self) -> list[int]:
        """How many tasks of a clock each worker runs, so that the last is done soonest; everybody runs one at least."""
        known = [seen.task_us for seen in self._workers if seen.task_us]
        if not known:
            return [self.terms.micro_batches] * self.terms.world_size
        typical = sum(known) / len(known)
        task_us = [seen.task_us or typical for seen in self._workers]
        counts = [1] * self.terms.world_size
        done = [(2 * each, rank) for rank, each in enumerate(task_us)]  # when it would be done with one more
        heapq.heapify(done)
        for _ in range(self.terms.tasks_of_clock - self.terms.world_size):
            _, rank = done[0]
            counts[rank] += 1
            heapq.heapreplace(done, ((counts[rank] + 1) * task_us[rank], rank))
        return counts

    def tasks(self, rank: int, clock: int, now_us: int) -> Tasks:
        if clock not in self._shares:
            self._shares[clock] = self._deal(clock)
            self._begun[clock] = 0
        mine = self._shares[clock][rank]
        self._begun[clock] += 1
        if self._begun[clock] == self.terms.world_size:
            del self._shares[clock], self._begun[clock]
        seen = self._workers[rank]
        seen.left += len(mine)
        seen.since_us = now_us
        return mine

    def _deal(self, clock: int) -> list[Tasks]:
        """All tasks of a clock: to each worker those of its own shard first, then what others have too many of."""
        counts = self.parallelism()
        size = self.terms.micro_batches
        shares = [list(shard_of(clock, rank, size)[: counts[rank]]) for rank in range(self.terms.world_size)]
        over = [t for rank in range(self.terms.world_size) for t in shard_of(clock, rank, size)[counts[rank] :]]
        for rank, share in enumerate(shares):
            while len(share) < counts[rank]:
                share.append(over.pop(0))
        return [tuple(share) for share in shares]

    # --- transfers --------------------------------------------------------------------------------------------------------

    def observe(self, rank: int, message: Any, now_us: int) -> list[Outgoing]:
        seen = self._workers[rank]
        match message:
            case Progress(took_us=took_us):
                seen.task_us = took_us if seen.task_us is None else _mean(seen.task_us, took_us)
                seen.left = max(0, seen.left - 1)
                seen.since_us = now_us
            case Gave(order=number, tasks=tasks):
                self._gave(number, tasks, now_us)
            case Arrived(order=number):
                cost_us = now_us - self._answered(number).given_us
                self.transfer_us = cost_us if self.transfer_us is None else _mean(self.transfer_us, cost_us)
            case Pull() | Push():
                pass
            case _:
                return []
        return self._balance(now_us)

    def _gave(self, number: int, tasks: Tasks, now_us: int) -> None:
        order = self._answered(number)
        giver, taker = self._workers[order.giver], self._workers[order.taker]
        giver.gives = None
        giver.left -= len(tasks)
        taker.left += len(tasks) - order.count  # what was expected of it when it was ordered
        self.transferred += len(tasks)
        if not tasks:
            self._orders.pop(number, None)

    def _answered(self, number: int) -> _Order:
        """An order, forgotten when both sides have answered it; their answers may come in any order."""
        order = self._orders[number]
        order.answers += 1
        if order.answers == 2:
            del self._orders[number]
        return order

    def _balance(self, now_us: int) -> list[Outgoing]:
        """At most one order: from who will be done last to who will be done first."""
        done_us = [seen.done_us(now_us) for seen in self._workers]
        straggler = max(range(len(done_us)), key=lambda r: (done_us[r], -r))
        pioneer = min(range(len(done_us)), key=lambda r: (done_us[r], r))
        last, first = self._workers[straggler], self._workers[pioneer]
        if last.gives is not None or straggler == pioneer or first.task_us is None:
            return []
        blocked = last.left - 1
        count, best_us = 0, done_us[straggler]
        arrives_us = max(done_us[pioneer], now_us + (self.transfer_us or 0.0))
        for n in range(1, blocked + 1):
            would_us = max(done_us[straggler] - n * last.took(now_us), arrives_us + n * first.task_us)
            if would_us >= best_us:
                break
            count, best_us = n, would_us
        if not count:
            return []
        self._number += 1
        self._orders[self._number] = _Order(now_us, straggler, pioneer, count)
        last.gives = self._number
        if not first.left:
            first.since_us = now_us
        first.left += count
        return [Outgoing(straggler, GiveUp(order=self._number, to=pioneer, count=count))]


class EnforcedFalconRules(FalconRules):
    """The enforced scheme: nobody begins a clock before all tasks of the last one are in, and all enter together."""

    rule = "whole-clock"


class FalconWorker(WorkerRules):
    """Tells the server how far it is, and hands tasks over when the server says so."""

    def finished(self, task: Task, took_us: int) -> list[Outgoing]:
        return [Outgoing(SERVER, Progress(clock=self.queue.clock, left=self.queue.blocked, took_us=took_us))]

    def receive(self, sender: int, message: Any) -> list[Outgoing]:
        match message:
            case GiveUp(order=order, to=to, count=count):
                tasks = self.queue.give(count)
                says = [Outgoing(SERVER, Gave(order=order, tasks=tasks))]
                if tasks:
                    says.insert(0, Outgoing(to, Transfer(order=order, tasks=tasks), samples_of=tasks))
                return says
            case Transfer(order=order, tasks=tasks):
                self._foreign.append(tasks)
                return [Outgoing(SERVER, Arrived(order=order))]
        return []


def _mean(mean: float, newest: float) -> float:
    return (1 - NEWEST) * mean + NEWEST * newest
