"""Help below one leaf, and help across racks, which costs more than a contribution. (protocol section 10.5)

What helpers below the same leaf do is summed there, and the trunk carries one sum as it always does. Once somebody from
elsewhere has done a part of it, the leaf cannot complete the sum, and each of its workers' contributions crosses the trunk.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from sa_atp.protocol.help.assignment import Capacity, makespan
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US, Projection

TOLD_AFTER = 4  # steps: who has not told by then how long sending takes will not do so
FORGOTTEN = 0.98  # of what crossing racks cost, in each step: links change


class Racks:
    def __init__(self, workers: Sequence[Worker], now: Projection) -> None:
        """Args: workers: what is known of each, by rank."""
        self._workers = workers
        self._now = now
        self._everybody = range(len(workers))
        self.leaves: tuple[frozenset[int], ...] = ()
        """The ranks below each leaf; none where one switch sums everything, or nothing is known of them."""
        self._steps = 0  # that have been judged
        self._cost_us = 0.0  # what crossing was seen to cost

    def leaf_of(self, rank: int) -> frozenset[int]:
        """The ranks below the same leaf: what they do for each other is summed there. Empty: none is known."""
        return next((leaf for leaf in self.leaves if rank in leaf), frozenset())

    def note(self, state: Step, rank: int, shard: int) -> None:
        """A worker is given something of a shard."""
        leaf = self.leaf_of(shard)
        if rank not in leaf and (leaf or not self.leaves):  # of what is attached to the root no leaf knows
            state.crossed.add(shard)

    def are_together(self, state: Step, rank: int, shard: int) -> bool:
        """Whether what a worker does of a shard is summed where its own contribution is."""
        leaf = self.leaf_of(rank)
        return not self.leaves or (shard in leaf and state.crossed.isdisjoint(leaf))

    def sees(self, state: Step, rank: int, shard: int) -> bool:
        """Whether a worker is told by switches what has come of a shard: one below another leaf stays there until all of
        that leaf's are.
        """
        leaf = self.leaf_of(shard)
        return not leaf or rank in leaf or not state.crossed.isdisjoint(leaf)

    def helpers_of(self, state: Step, shard: int, now_us: int) -> Collection[int]:
        """Who may work on a shard now. Those of other racks may once one of them has, or where they save more than it costs
        that everything below the leaf crosses the trunk by itself.
        """
        leaf = self.leaf_of(shard)
        if len(leaf) in (0, len(self._workers)) or not state.crossed.isdisjoint(leaf):
            return self._everybody
        saved_us = self._done_us(state, leaf, now_us) - self._done_us(state, self._everybody, now_us)
        return self._everybody if saved_us > self._costs_us(leaf) else leaf

    def patience_us(self, shard: int) -> float:
        """For how long what is missing of a shard is left to those below its leaf: as long as it costs that everything
        there crosses the trunk. Where none of them has told how long sending takes, it is as long as the others take.
        """
        leaf = self.leaf_of(shard)
        costs_us = self._costs_us(leaf)
        if not math.isinf(costs_us):
            return costs_us
        return len(leaf) * (max(worker.least_send_us for worker in self._workers) or LEAST_SENDING_US)

    def foreseen(self, end_us: Callable[[frozenset[int]], int]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """Who may be expected to help whom in steps to come.

        Args: end_us: when some could have done all of theirs.
        Returns: of each leaf, the ranks below it, and those that may work on their shards.
        """
        everybody = frozenset(self._everybody)
        for leaf in self.leaves:
            costs_us = self._costs_us(leaf)
            if math.isinf(costs_us) and self._steps < TOLD_AFTER:
                costs_us = 0.0  # it will be known; help that nobody has foreseen costs more
            crosses = len(leaf) < len(everybody) and end_us(leaf) - end_us(everybody) > costs_us
            yield leaf, everybody if crosses else leaf
        rest = everybody.difference(*self.leaves)
        if rest:
            yield rest, everybody

    def _costs_us(self, leaf: Collection[int]) -> float:
        """What it costs that everything below a leaf crosses the trunk by itself; infinite: that is not known yet."""
        send_us = max(self._workers[rank].least_send_us for rank in leaf)
        return max(len(leaf) * send_us, self._cost_us) if send_us else math.inf

    def learn(self, state: Step, overhead_us: int) -> None:
        """A step is over. Args: overhead_us: how much longer it took than computing, and sending where nobody helps."""
        self._steps += 1
        if not self.leaves:
            return
        if not state.crossed:
            self._cost_us *= FORGOTTEN
            return
        self._cost_us = max(0.0, overhead_us, FORGOTTEN * self._cost_us)

    def _done_us(self, state: Step, ranks: Collection[int], now_us: int) -> int:
        """When some workers could have done all that is left of their shards."""
        left, capacities = 0, []
        for rank in ranks:
            course, each_us = state.courses[rank], self._now.mine(state, rank, rank)
            held = 0 if course.idle_us is not None else state.held(rank) - course.begun
            left += held + state.free(rank)
            free_us = self._now.free_us(state, rank, now_us) - held * each_us
            capacities.append(Capacity(max(now_us, free_us), each_us))
        return max(makespan(left, capacities) or 0, *(c.free_us for c in capacities))
