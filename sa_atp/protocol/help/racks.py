"""Help below one leaf, and help across racks, which costs more than a contribution. (protocol section 10.5)

Work of helpers below the same leaf is summed there, and the trunk carries one sum as without help. Once a helper below
another leaf has done a part, the leaf cannot complete the sum, and each of its workers' contributions crosses the
trunk.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from sa_atp.protocol.help.assignment import Capacity, makespan
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection

TOLD_AFTER = 4  # steps: a worker that has not reported its sending time by then will not do so
FORGOTTEN = 0.98  # share of the measured cost of crossing racks that is kept in each step, because links change


class Racks:
    def __init__(self, workers: Sequence[Worker], projection: Projection) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._projection = projection
        self._everybody = range(len(workers))
        self.leaves: tuple[frozenset[int], ...] = ()
        """The ranks below each leaf; empty where one switch sums everything, or the leaves are not known."""
        self._steps = 0  # judged so far
        self._cost_us = 0.0  # of crossing racks, as measured

    def leaf_of(self, rank: int) -> frozenset[int]:
        """The ranks below the same leaf as this one, itself included. Empty: no leaf is known."""
        return next((leaf for leaf in self.leaves if rank in leaf), frozenset())

    def note_assignment(self, state: Step, rank: int, shard: int) -> None:
        """Notes that a worker is given a part of a shard."""
        leaf = self.leaf_of(shard)
        if rank not in leaf and (leaf or not self.leaves):  # ranks attached to the root have no leaf
            state.crossed.add(shard)

    def are_summed_together(self, state: Step, rank: int, shard: int) -> bool:
        """Whether a worker's part of a shard is summed at the same switch as its own contribution."""
        leaf = self.leaf_of(rank)
        return not self.leaves or (shard in leaf and state.crossed.isdisjoint(leaf))

    def sees(self, state: Step, rank: int, shard: int) -> bool:
        """Whether a worker can learn from switches which contributions of a shard have arrived: another leaf's stay in
        that leaf until it has all of its own.
        """
        leaf = self.leaf_of(shard)
        return not leaf or rank in leaf or not state.crossed.isdisjoint(leaf)

    def helpers_of(self, state: Step, shard: int, now_us: int) -> Collection[int]:
        """Ranks that may work on a shard now: those below its leaf; and all, once one of another rack has, or where
        that saves more time than it costs if each contribution below the leaf crosses the trunk by itself.
        """
        leaf = self.leaf_of(shard)
        if len(leaf) in (0, len(self._workers)) or not state.crossed.isdisjoint(leaf):
            return self._everybody
        saved_us = self._done_us(state, leaf, now_us) - self._done_us(state, self._everybody, now_us)
        return self._everybody if saved_us > self._costs_us(leaf) else leaf

    def patience_us(self, shard: int) -> float:
        """For how long a shard's missing contributions are left to helpers below its leaf: as long as crossing racks
        costs. Where no worker there has reported its sending time, that of the others counts.
        """
        leaf = self.leaf_of(shard)
        costs_us = self._costs_us(leaf)
        if not math.isinf(costs_us):
            return costs_us
        return len(leaf) * (max(worker.least_send_us for worker in self._workers) or LEAST_SENDING_US)

    def expected_helpers(
        self, end_us: Callable[[frozenset[int]], int]
    ) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """Which ranks may be expected to help which in the steps to come.

        Args: end_us: when a set of ranks could have done all their shards.
        Returns: for each leaf, the ranks below it, and the ranks that may work on their shards.
        """
        everybody = frozenset(self._everybody)
        for leaf in self.leaves:
            costs_us = self._costs_us(leaf)
            if math.isinf(costs_us) and self._steps < TOLD_AFTER:
                costs_us = 0.0  # it will be known soon; help without advice costs more than crossing for nothing
            crosses = len(leaf) < len(everybody) and end_us(leaf) - end_us(everybody) > costs_us
            yield leaf, everybody if crosses else leaf
        rest = everybody.difference(*self.leaves)
        if rest:
            yield rest, everybody

    def _costs_us(self, leaf: Collection[int]) -> float:
        """The cost of sending each contribution below a leaf across the trunk by itself; infinite: not known yet."""
        send_us = max(self._workers[rank].least_send_us for rank in leaf)
        return max(len(leaf) * send_us, self._cost_us) if send_us else math.inf

    def learn(self, state: Step, overhead_us: int) -> None:
        """Learns from a step what crossing racks costs. Args: overhead_us: the step's time beyond computing, and
        sending without help.
        """
        self._steps += 1
        if not self.leaves:
            return
        if not state.crossed:
            self._cost_us *= FORGOTTEN
            return
        self._cost_us = max(0.0, overhead_us, FORGOTTEN * self._cost_us)

    def _done_us(self, state: Step, ranks: Collection[int], now_us: int) -> int:
        """When a set of ranks could have done all that is left of their shards."""
        left, capacities = 0, []
        for rank in ranks:
            course, each_us = state.courses[rank], self._projection.expected_us(state, rank, rank)
            held = 0 if course.idle_us is not None else state.held(rank) - course.begun
            left += held + state.free(rank)
            free_us = self._projection.free_us(state, rank, now_us) - held * each_us
            capacities.append(Capacity(max(now_us, free_us), each_us))
        return max(makespan(left, capacities) or 0, *(c.free_us for c in capacities))
