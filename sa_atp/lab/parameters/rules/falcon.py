"""Falcon's EPSP, as this project reconstructs it: docs/deviations.md says what is published and what is ours.

The server measures how fast each worker is and knows how much each has left: that projects when it will be done
(straggler projection). From that it decides two things. When a clock begins, how many of its tasks each worker runs: its
parallelism, in proportion to its speed (elastic parallelism control). While the clock runs, whether tasks that a straggler
has not begun, blocked behind the one that it computes, move to the worker that will be done first, a pioneer: only if the
straggler's share is done sooner by that, what the transfer costs counted as measured.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Counts, Measurements
from sa_atp.lab.parameters.rules.messages import (
    SERVER,
    Any,
    Arrived,
    Gave,
    GiveUp,
    Outgoing,
    Progress,
    Pull,
    Push,
    Refused,
    Task,
    Tasks,
    Transfer,
)
from sa_atp.lab.parameters.rules.rules import SspRules, Terms
from sa_atp.lab.parameters.rules.tasks import shard_of
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules

NEWEST = 0.5  # weight of the newest measurement in a moving mean


class _Projection:
    """What the server knows of each worker, and when that lets it be done. All arrays are by rank."""

    def __init__(self, workers: int) -> None:
        self.left: Counts = np.zeros(workers, np.int64)
        """Tasks that it has or will have of clocks that others have begun, the one that it computes included."""
        self.to_come: Counts = np.zeros(workers, np.int64)
        """Those of clocks that it has not begun itself."""
        self.task_us: Measurements = np.zeros(workers)
        """What a task takes there, a moving mean; 0: none is done yet."""
        self.spread_us: Measurements = np.zeros(workers)
        """By how much that varies, a moving mean of deviations."""
        self.since_us: Measurements = np.zeros(workers)
        """When it began the task that it computes."""

    def measured(self, rank: int, took_us: int, now_us: int) -> None:
        """It has done a task."""
        known = float(self.task_us[rank])
        if known:
            self.spread_us[rank] = _mean(float(self.spread_us[rank]), abs(took_us - known))
        self.task_us[rank] = max(1.0, _mean(known, took_us) if known else took_us)
        self.left[rank] = max(0, int(self.left[rank]) - 1)
        self.since_us[rank] = now_us

    def done_us(self, now_us: int) -> Measurements:
        """When each will be done with all that it has.

        A task that takes longer than those before it tells that its worker has stopped, before it is done.
        """
        present_us = np.maximum(self.task_us, now_us - self.since_us)
        done_us = self.since_us + present_us + (self.left - 1) * self.task_us
        return np.where(self.left > 0, np.maximum(done_us, now_us), now_us).astype(np.float64)


@dataclass(slots=True)
class _Order:
    given_us: int
    giver: int
    taker: int
    count: int
    gave: bool = False
    arrived: bool = False


class FalconRules(SspRules):
    """The slack scheme: SSP's bound. Each update has the weight 1/M."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._seen = _Projection(terms.world_size)
        self._shares: dict[int, list[Tasks]] = {}  # by clock: each worker's tasks; forgotten when all have begun it
        self._begun: dict[int, int] = {}  # by clock: workers that have begun it
        self._orders: dict[int, _Order] = {}
        self._giving: set[int] = set()  # who has an order that it has not answered
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
        known = self._seen.task_us > 0
        if not known.any():
            return [self.terms.micro_batches] * self.terms.world_size
        task_us = np.where(known, self._seen.task_us, self._seen.task_us[known].mean()).tolist()
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
            counts = np.array([len(share) for share in self._shares[clock]])
            # who has nothing to do begins at once: it is asking, or about to
            self._seen.since_us[self._seen.left == 0] = now_us
            self._seen.left += counts
            self._seen.to_come += counts
        mine = self._shares[clock][rank]
        self._begun[clock] += 1
        if self._begun[clock] == self.terms.world_size:
            del self._shares[clock], self._begun[clock]
        self._seen.to_come[rank] -= len(mine)
        self._seen.since_us[rank] = now_us
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
        match message:
            case Progress(took_us=took_us):
                self._seen.measured(rank, took_us, now_us)
            case Gave(order=number, tasks=tasks):
                self._gave(rank, number, tasks)
            case Arrived(order=number):
                cost_us = now_us - self._arrived(rank, number).given_us
                self.transfer_us = cost_us if self.transfer_us is None else _mean(self.transfer_us, cost_us)
            case Pull() | Push():
                pass
            case _:
                return []
        return self._balance(now_us)

    def _gave(self, rank: int, number: int, tasks: Tasks) -> None:
        order = self._orders.get(number)
        if order is None or order.giver != rank or order.gave or len(tasks) > order.count:
            raise Refused(f"it has given {len(tasks)} tasks away by order {number}, which it has not got")
        order.gave = True
        self._forget(number, order)
        self._giving.discard(order.giver)
        self._seen.left[order.giver] -= len(tasks)
        self._seen.left[order.taker] += len(tasks) - order.count  # it was taken to get as many as were ordered
        self.transferred += len(tasks)
        if not tasks:
            self._orders.pop(number, None)

    def _arrived(self, rank: int, number: int) -> _Order:
        order = self._orders.get(number)
        if order is None or order.taker != rank or order.arrived:
            raise Refused(f"it has received tasks by order {number}, which is not for it")
        order.arrived = True
        self._forget(number, order)
        return order

    def _forget(self, number: int, order: _Order) -> None:
        """When both sides have answered it; their answers may come in any order."""
        if order.gave and order.arrived:
            del self._orders[number]

    def _balance(self, now_us: int) -> list[Outgoing]:
        """At most one order: from who will be done last, of those that have none to answer, to who will be done first."""
        seen, done_us = self._seen, self._seen.done_us(now_us)
        free = done_us.copy()
        free[list(self._giving)] = -1.0
        last, first = int(np.argmax(free)), int(np.argmin(done_us))
        if free[last] <= done_us[first] or not seen.task_us[first]:
            return []
        # of a worker that has done none yet it is known how long it has been at its first
        here_us = float(seen.task_us[last]) or float(now_us - seen.since_us[last])
        there_us = float(seen.task_us[first])
        arrives_us = max(float(done_us[first]), now_us + (self.transfer_us or 0.0))
        count, best_us = 0, float(done_us[last])
        for n in range(1, int(seen.left[last] - seen.to_come[last])):  # all but the one that it computes are blocked
            would_us = max(float(done_us[last]) - n * here_us, arrives_us + n * there_us)
            if would_us >= best_us:
                break
            count, best_us = n, would_us
        # what is gained must be more than what projections are off by
        if not count or done_us[last] - best_us <= seen.spread_us[last] + seen.spread_us[first]:
            return []
        self._number += 1
        self._orders[self._number] = _Order(now_us, last, first, count)
        self._giving.add(last)
        if not seen.left[first]:
            seen.since_us[first] = now_us
        seen.left[first] += count
        return [Outgoing(last, GiveUp(order=self._number, to=first, count=count))]


class EnforcedFalconRules(FalconRules):
    """The enforced scheme: nobody begins a clock before all tasks of the last one are in, and all enter together."""

    rule = "whole-clock"


class FalconWorker(WorkerRules):
    """Tells the server how far it is, and hands tasks over when the server says so.

    What has been handed to it while it computed its own tasks goes into the same update.
    """

    gathers = True

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
