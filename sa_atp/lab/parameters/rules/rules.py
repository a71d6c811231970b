"""The server's decisions under a policy: which worker may begin a clock, with which tasks, and how updates are applied."""

from dataclasses import dataclass
from typing import ClassVar

from sa_atp.lab.parameters.rules.messages import AnyMessage, Outgoing, Tasks
from sa_atp.lab.parameters.rules.replay import Rule
from sa_atp.lab.parameters.rules.store import Merging, VersionMeans, WholeClocks
from sa_atp.lab.parameters.rules.tasks import shard_of
from sa_atp.steps.parallel import NO_GAIN, Curve


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The settings of a job."""

    world_size: int
    micro_batches: int
    learning_rate: float
    bound: int = 0
    """How many clocks a worker may be ahead of the slowest."""
    parallel: int = 1
    """Tasks that each worker computes at a time, where the policy does not control it."""
    curves: tuple[Curve, ...] = ()
    """By rank: throughput with several tasks at a time (steps/parallel.py); empty: none has a gain."""
    clocks: int = 1
    """Length of the job: it is over when the parameters contain as many tasks as all workers have in so many clocks."""

    @property
    def tasks_of_clock(self) -> int:
        return self.world_size * self.micro_batches

    def curve_of(self, rank: int) -> Curve:
        return self.curves[rank] if self.curves else NO_GAIN


class Rules:
    """Asynchronous parallel (ASP): no worker waits; each update is applied on arrival, with its full weight."""

    rule: ClassVar[Rule] = "sum"

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @property
    def rate(self) -> float:
        """Learning rate times the weight of an update."""
        return self.terms.learning_rate

    def merging(self) -> Merging:
        if self.rule == "version-mean":
            return VersionMeans(self.rate, self.terms.world_size)
        if self.rule == "whole-clock":
            return WholeClocks(self.rate, self.terms.tasks_of_clock)
        return Merging(self.rate)

    def may_begin(self, clock: int, slowest: int) -> bool:
        """Whether a worker that has completed `clock` clocks may begin the next one.

        Args: slowest: clocks that are complete on all shards.
        """
        return True

    def tasks(self, rank: int, clock: int, now_us: int) -> Tasks:
        """The tasks of a worker in a clock that it begins now."""
        return shard_of(clock, rank, self.terms.micro_batches)

    def parallel_of(self, rank: int) -> int:
        """How many of the tasks of a clock, for which `tasks` was called, a worker computes at a time."""
        return self.terms.parallel

    def observe(self, rank: int, message: AnyMessage, now_us: int) -> list[Outgoing]:
        """Sees a worker's message. Returns: messages to send because of it."""
        return []


class SspRules(Rules):
    """Stale synchronous parallel (Ho et al. 2013, section 2).

    A worker may be at most `bound` clocks ahead of the slowest: the parameters with which it begins clock c (from 0)
    contain all updates of clocks 0 to c - bound - 1, and perhaps later ones. Updates add up, each with its full weight.
    """

    def may_begin(self, clock: int, slowest: int) -> bool:
        return clock - slowest <= self.terms.bound


class ConSgdRules(SspRules):
    """SSP, where each of M workers' updates has the weight 1/M. (ConSGD, Jiang et al. 2017)"""

    @property
    def rate(self) -> float:
        return self.terms.learning_rate / self.terms.world_size


class DynSgdRules(SspRules):
    """SSP, where the d updates of a clock so far have the weight 1/d each. (DynSGD, Jiang et al. 2017)"""

    rule = "version-mean"
