"""Falcon's EPSP, as this project reconstructs it (docs/deviations.md says what is published and what is ours).

The server measures each worker's speed and knows its remaining tasks, and from that projects when it will finish
(straggler projection). It decides three things. When a clock begins: how many tasks each worker computes at a time, its
parallelism, and how many of the clock's tasks it has, in proportion to its speed (elastic parallelism control). While the
clock runs: whether a straggler's tasks that wait behind those that it computes move to the worker that will finish first, a
pioneer. They do only if that finishes the straggler's share sooner, with the measured cost of a transfer included.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import Counts, Measurements
from sa_atp.lab.parameters.rules.messages import (
    SERVER,
    AnyMessage,
    Arrived,
    Gave,
    GiveUp,
    MessageRefused,
    Outgoing,
    Pull,
    Push,
    Task,
    TaskComputed,
    Tasks,
    Transfer,
)
from sa_atp.lab.parameters.rules.rules import SspRules, Terms
from sa_atp.lab.parameters.rules.tasks import shard_of
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.steps.parallel import MOST_TASKS, gains

REMEMBERED = 8  # clocks whose times decide how many tasks are computed at a time
LENGTHS = 32  # lengths of a clock that are tried for it
NEWEST = 0.5  # weight of the newest measurement in a moving mean


class _Projection:
    """Projects when each worker will finish, from what the server knows of it. All arrays are by rank.

    Times of tasks are those that they take alone; a worker that computes n tasks at a time does gain(n) as many in a time
    (steps/parallel.py).
    """

    def __init__(self, terms: Terms) -> None:
        workers = terms.world_size
        self.left: Counts = np.zeros(workers, np.int64)
        """Tasks left in clocks that any worker has begun, those being computed included."""
        self.to_come: Counts = np.zeros(workers, np.int64)
        """The tasks in `left` of clocks that the worker has not begun itself."""
        self.task_us: Measurements = np.zeros(workers)
        """Time of a task, a moving mean; 0: none is done yet."""
        self.spread_us: Measurements = np.zeros(workers)
        """Moving mean of the deviations from `task_us`."""
        self.since_us: Measurements = np.zeros(workers)
        """When the worker began its current tasks, the mean over them."""
        self.at_a_time: Counts = np.ones(workers, np.int64)
        """How many tasks the worker may compute at a time."""
        self.gain: Measurements = np.stack([gains(terms.curve_of(rank)) for rank in range(workers)])
        """Throughput with n tasks at a time; [rank, n]."""
        self.remembered: deque[Measurements] = deque(maxlen=REMEMBERED)
        """The longest time of a task in each of the last clocks."""
        self._longest_us: Measurements = np.zeros(workers)
        self._begun_us: list[deque[int]] = [deque() for _ in range(workers)]  # when each task under way began

    def add_measurement(self, rank: int, took_us: int, now_us: int) -> None:
        """Adds the measurement of a finished task."""
        known = float(self.task_us[rank])
        if known:
            self.spread_us[rank] = _mean(float(self.spread_us[rank]), abs(took_us - known))
        self.task_us[rank] = max(1.0, _mean(known, took_us) if known else took_us)
        self._longest_us[rank] = max(self._longest_us[rank], took_us)
        self.left[rank] = max(0, int(self.left[rank]) - 1)
        begun = self._begun_us[rank]
        if begun:
            begun.popleft()
        if len(begun) < min(self.left[rank], self.at_a_time[rank]):
            begun.append(now_us)
        self.since_us[rank] = sum(begun) / len(begun) if begun else now_us

    def begin(self, rank: int, now_us: int, tasks: int) -> None:
        """A worker without work begins so many tasks, as many at a time as it may."""
        self._begun_us[rank] = deque([now_us] * min(tasks, int(self.at_a_time[rank])))
        self.since_us[rank] = now_us

    def remember(self) -> None:
        """Ends the measurements of a clock."""
        if self._longest_us.any():
            self.remembered.append(np.where(self._longest_us > 0, self._longest_us, self.task_us_or_mean()))
            self._longest_us[:] = 0

    def task_us_or_mean(self) -> Measurements:
        """Time of a task; of a worker without a finished task, the others' mean."""
        known = self.task_us > 0
        return np.where(known, self.task_us, self.task_us[known].mean())

    def pace(self, at_a_time: Counts) -> Measurements:
        """Throughput of each worker with so many tasks at a time, relative to one."""
        found: Measurements = self.gain[np.arange(len(self.gain)), at_a_time]
        return found

    def done_us(self, now_us: int) -> Measurements:
        """When each worker will have finished its tasks.

        Tasks in progress count with their time so far once that exceeds the mean: their worker may have stopped.
        """
        running = np.minimum(self.at_a_time, self.left)
        present_us = np.maximum(self.task_us * running / self.pace(running), now_us - self.since_us)
        done_us = self.since_us + present_us + (self.left - running) * self.task_us / self.pace(self.at_a_time)
        return np.where(self.left > 0, np.maximum(done_us, now_us), now_us).astype(np.float64)


@dataclass(slots=True)
class _Order:
    given_us: int
    giver: int
    taker: int
    count: int


class FalconRules(SspRules):
    """The slack scheme: SSP's bound. Each of M workers' updates has the weight 1/M."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._seen = _Projection(terms)
        self._shares: dict[int, dict[int, Tasks]] = {}  # by clock: the tasks of each worker that has not begun it
        self._to_give: dict[int, _Order] = {}  # orders that the giver has not answered
        self._to_arrive: dict[int, _Order] = {}  # those that the taker has not
        self._number = 0
        self.transfer_us: float | None = None
        """Time of a transfer, from order to arrival; None: none has been made."""
        self.transferred = 0
        """Tasks."""

    @property
    def rate(self) -> float:
        return self.terms.learning_rate / self.terms.world_size

    # --- parallelism ------------------------------------------------------------------------------------------------------

    def parallel_of(self, rank: int) -> int:
        return int(self._seen.at_a_time[rank])

    def parallelism(self) -> Counts:
        """How many tasks each worker should compute at a time, from how long tasks took in the last clocks.

        With more at a time a device does more in a time. But a task that is begun cannot move any more: if its worker
        turns out to be slow, the clock waits for all that it has begun. So for a given length of a clock, each worker gets
        the highest throughput whose first tasks end within that length on a worker that is as slow as any was lately. Of
        all lengths, the one is taken with which the last clocks would have been shortest.
        """
        seen = self._seen
        chosen = np.ones(self.terms.world_size, np.int64)
        if not seen.remembered or (seen.gain == 1.0).all():
            return chosen
        clocks_us = np.stack(seen.remembered)  # [clock, rank]
        usual_us = np.median(clocks_us, axis=0)
        slowest_us = usual_us * (clocks_us / usual_us).max()
        stretch = np.arange(MOST_TASKS + 1) / seen.gain  # times as long as alone; [rank, n]
        ends_us = slowest_us[:, None] * stretch[:, 1:]
        shortest_us = np.inf
        for limit_us in np.quantile(ends_us, np.linspace(0, 1, LENGTHS)):
            fits = np.where(ends_us <= limit_us, seen.gain[:, 1:], 0.0)
            tried = 1 + np.argmax(fits, axis=1)  # the least of those with the highest throughput; 1 if none fits
            first_us = (clocks_us * stretch[np.arange(len(tried)), tried]).max(axis=1)
            all_us = self.terms.tasks_of_clock / (seen.pace(tried) / clocks_us).sum(axis=1)
            length_us = float(np.maximum(first_us, all_us).mean())
            if length_us < shortest_us:
                chosen, shortest_us = tried, length_us
        return chosen

    def task_counts(self) -> list[int]:
        """Tasks of a clock for each worker, at least one, so that the last worker finishes soonest."""
        if not (self._seen.task_us > 0).any():
            return [self.terms.micro_batches] * self.terms.world_size
        task_us = (self._seen.task_us_or_mean() / self._seen.pace(self._seen.at_a_time)).tolist()
        counts = [1] * self.terms.world_size
        done = [(2 * each, rank) for rank, each in enumerate(task_us)]  # when a worker would finish with one task more
        heapq.heapify(done)
        for _ in range(self.terms.tasks_of_clock - self.terms.world_size):
            _, rank = done[0]
            counts[rank] += 1
            heapq.heapreplace(done, ((counts[rank] + 1) * task_us[rank], rank))
        return counts

    def _even_rounds(self, rank: int, count: int) -> int:
        """How many of its tasks a worker computes at a time, at most as many as now, so that it finishes soonest.

        With 10 tasks, rounds of 5 and 5 may be shorter than of 8 and 2.
        """
        gain = self._seen.gain[rank]

        def length(at_a_time: int) -> float:
            rounds, rest = divmod(count, at_a_time)
            return float(rounds * at_a_time / gain[at_a_time] + rest / gain[rest])

        return min(range(1, int(self._seen.at_a_time[rank]) + 1), key=length)

    def tasks(self, rank: int, clock: int, now_us: int) -> Tasks:
        seen = self._seen
        if clock not in self._shares:
            seen.remember()
            seen.at_a_time = self.parallelism()
            self._shares[clock] = self._deal(clock)
            counts = np.array([len(share) for share in self._shares[clock].values()])
            seen.at_a_time = np.array([self._even_rounds(r, int(count)) for r, count in enumerate(counts)])
            for idle in np.flatnonzero(seen.left == 0):
                # an idle worker begins at once: it asks for a clock now, or is about to
                seen.begin(int(idle), now_us, int(counts[idle]))
            seen.left += counts
            seen.to_come += counts
        mine = self._shares[clock].pop(rank)
        if not self._shares[clock]:
            del self._shares[clock]
        seen.to_come[rank] -= len(mine)
        seen.begin(rank, now_us, len(mine))
        return mine

    def _deal(self, clock: int) -> dict[int, Tasks]:
        """Deals the tasks of a clock: to each worker from its own shard first, then from shards with a surplus."""
        counts = self.task_counts()
        size = self.terms.micro_batches
        shares = [list(shard_of(clock, rank, size)[: counts[rank]]) for rank in range(self.terms.world_size)]
        over = [t for rank in range(self.terms.world_size) for t in shard_of(clock, rank, size)[counts[rank] :]]
        for rank, share in enumerate(shares):
            while len(share) < counts[rank]:
                share.append(over.pop(0))
        return {rank: tuple(share) for rank, share in enumerate(shares)}

    # --- transfers --------------------------------------------------------------------------------------------------------

    def observe(self, rank: int, message: AnyMessage, now_us: int) -> list[Outgoing]:
        match message:
            case TaskComputed(took_us=took_us):
                self._seen.add_measurement(rank, took_us, now_us)
            case Gave(order=number, tasks=tasks):
                self._on_gave(rank, number, tasks)
            case Arrived(order=number):
                cost_us = now_us - self._on_arrived(rank, number).given_us
                self.transfer_us = cost_us if self.transfer_us is None else _mean(self.transfer_us, cost_us)
            case Pull() | Push():
                pass
            case _:
                return []
        return self._balance(now_us)

    def _on_gave(self, rank: int, number: int, tasks: Tasks) -> None:
        order = self._to_give.pop(number, None)
        if order is None or order.giver != rank or len(tasks) > order.count:
            raise MessageRefused(f"it has given {len(tasks)} tasks away by order {number}, which it was not given")
        self._seen.left[order.giver] -= len(tasks)
        self._seen.left[order.taker] += len(tasks) - order.count  # as many as ordered were counted as its own
        self.transferred += len(tasks)
        if not tasks:
            self._to_arrive.pop(number, None)

    def _on_arrived(self, rank: int, number: int) -> _Order:
        order = self._to_arrive.pop(number, None)
        if order is None or order.taker != rank:
            raise MessageRefused(f"it has received tasks by order {number}, which is not for it")
        return order

    def _balance(self, now_us: int) -> list[Outgoing]:
        """At most one order: the last worker to finish, among those without an open order, gives to the first."""
        seen, done_us = self._seen, self._seen.done_us(now_us)
        free = done_us.copy()
        free[[order.giver for order in self._to_give.values()]] = -1.0
        last, first = int(np.argmax(free)), int(np.argmin(done_us))
        if free[last] <= done_us[first] or not seen.task_us[first]:
            return []
        # for a worker without a finished task, the time of its first one so far is known
        at_a_time = int(seen.at_a_time[last])
        here_us = (float(seen.task_us[last]) or float(now_us - seen.since_us[last])) / seen.gain[last, at_a_time]
        there_us = float(seen.task_us[first])
        arrives_us = max(float(done_us[first]), now_us + (self.transfer_us or 0.0))
        count, best_us = 0, float(done_us[last])
        held = int(seen.left[last] - seen.to_come[last])
        for n in range(1, held - min(held, at_a_time) + 1):  # all but its current tasks can move
            gain = seen.gain[first, min(n, int(seen.at_a_time[first]))]
            would_us = max(float(done_us[last]) - n * here_us, arrives_us + n * there_us / gain)
            if would_us >= best_us:
                break
            count, best_us = n, would_us
        # the gain must exceed the error of the projections
        if not count or done_us[last] - best_us <= seen.spread_us[last] + seen.spread_us[first]:
            return []
        self._number += 1
        self._to_give[self._number] = self._to_arrive[self._number] = _Order(now_us, last, first, count)
        if not seen.left[first]:
            seen.begin(first, now_us, count)
        seen.left[first] += count
        return [Outgoing(last, GiveUp(order=self._number, to=first, count=count))]


class EnforcedFalconRules(FalconRules):
    """The enforced scheme: a clock begins after all updates of the last one are in, and they are applied together."""

    rule = "whole-clock"


class FalconWorker(WorkerRules):
    """Reports each finished task to the server, and transfers tasks when the server orders it.

    Tasks that arrive while the worker computes its own go into the same update.
    """

    gathers = True

    def note_computed(self, task: Task, took_us: int) -> list[Outgoing]:
        return [Outgoing(SERVER, TaskComputed(clock=self.queue.clock, left=self.queue.blocked, took_us=took_us))]

    def receive(self, sender: int, message: AnyMessage) -> list[Outgoing]:
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
