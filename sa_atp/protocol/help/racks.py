"""Help below one leaf, and help across racks, which costs more than a contribution. (protocol section 10.5)

Work of helpers below the same leaf is summed there, and the trunk carries one sum as without help. Once a helper below
another leaf has done a part, the leaf cannot complete the sum, and each of its workers' contributions crosses the
trunk.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from sa_atp.protocol.help import plan
from sa_atp.protocol.help.plan import PLAIN, Kernels, Machines, Plan
from sa_atp.protocol.help.progress import Step, Worker
from sa_atp.protocol.help.projection import LEAST_SENDING_US
from sa_atp.protocol.help.rules import Rule

FORGOTTEN = 0.98  # share of the measured cost of crossing racks that is kept in each step, because links change
CROSSING = Rule("crossing costs", "What help across racks costs is measured, and has to be saved by it.")


class Racks:
    def __init__(self, workers: Sequence[Worker], kernels: Kernels = PLAIN) -> None:
        """Args: workers: what is known of each, by rank. kernels: for plans."""
        self._workers = workers
        self._kernels = kernels
        self._everybody = range(len(workers))
        self.leaves: tuple[frozenset[int], ...] = ()
        """The ranks below each leaf; empty where one switch sums everything, or the leaves are not known."""
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

    def plan(self, crossed: Collection[int], machines: Machines) -> Plan:
        """Makes the plan in which workers help below their own leaf, and all help where a rack is crossed already; or the
        plan in which all help each other, if that saves more than it costs. Args: crossed: shards of the step.
        """
        everybody = plan.make(machines, kernels=self._kernels)
        if not self.leaves or not any(everybody.parts):
            return everybody
        helpers = np.ones((len(machines), len(machines)), np.bool_)
        for leaf in self.leaves:
            if leaf.isdisjoint(crossed):
                helpers[list(leaf)] = [rank in leaf for rank in self._everybody]
        near = plan.make(machines, helpers=helpers, kernels=self._kernels)
        crosses = {s for r, part in enumerate(everybody.parts) for s in part if not helpers[s, r]}
        costs_us = max((self.cost_us(self.leaf_of(shard)) for shard in crosses), default=0.0)
        return everybody if everybody.end_us + costs_us < near.end_us else near

    def patience_us(self, shard: int) -> float:
        """For how long a shard's missing contributions are left to helpers below its leaf: as long as crossing racks
        costs. Where no worker there has reported its sending time, that of the others counts.
        """
        leaf = self.leaf_of(shard)
        costs_us = self.cost_us(leaf)
        if not math.isinf(costs_us):
            return costs_us
        return len(leaf) * (max(worker.least_send_us for worker in self._workers) or LEAST_SENDING_US)

    def cost_us(self, leaf: Collection[int]) -> float:
        """The cost of sending each contribution below a leaf across the trunk by itself; infinite: not known yet."""
        send_us = max(self._workers[rank].least_send_us for rank in leaf)
        return max(len(leaf) * send_us, self._cost_us) if send_us else math.inf

    @CROSSING.or_else(None)
    def learn(self, state: Step, took_us: int) -> None:
        """Learns what crossing racks costs from a step that is over: by how much longer it took than computing, and
        sending without help. Args: took_us: its time.
        """
        if not self.leaves:
            return
        if not state.crossed:
            self._cost_us *= FORGOTTEN
            return
        done_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses) - state.began_us
        network_us = max(w.least_send_us + w.answer_us // 2 for w in self._workers)
        self._cost_us = max(0.0, took_us - done_us - network_us, FORGOTTEN * self._cost_us)
