"""A job whose parameters are on a server, in virtual time, on links that delay every message by chance; all is checked."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.parameters.parameter_worker import ParameterWorker
from sa_atp.lab.parameters.rules.messages import Outgoing, ParamsMessage, Task
from sa_atp.lab.parameters.rules.replay import Replay
from sa_atp.lab.parameters.rules.rules import Rules, Terms
from sa_atp.lab.parameters.rules.server import ParamsServer, Snapshot, TakenUpdate
from sa_atp.lab.parameters.rules.worker_rules import WorkerRules
from sa_atp.lab.parameters.virtual_time import VirtualParameters
from sa_atp.lab.simulator.network import Clock
from sa_atp.lab.simulator.virtual_time import VirtualDevice, VirtualProcess
from sa_atp.steps.effects import Compute
from sa_atp.steps.step_record import StepRecord


class Chance:
    """A network on which every message takes a time of its own."""

    def __init__(self, clock: Clock, rng: random.Random, longest_us: int) -> None:
        self.clock, self.rng, self.longest_us = clock, rng, longest_us

    def transfer(self, source: int, target: int, payload: float) -> "Future[None]":
        arrived: Future[None] = Future()
        self.clock.at(self.clock.now_us + self.rng.randrange(self.longest_us + 1), lambda: arrived.set_result(None))
        return arrived


class Toy:
    """Gradients that depend on the weights and on the task."""

    values = 5
    micro_batch_size = 1

    def initial(self) -> Values:
        return np.ones(self.values, np.float32)

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        rng = np.random.default_rng([step, shard, micro_batch])
        return 0.1 * weights + rng.standard_normal(self.values, np.float32), 0.0

    def samples(self, step: int, shard: int, micro_batch: int) -> Octets:
        return np.zeros(100, np.uint8)


class Training:
    """Runs a job to its end, and keeps what everybody did."""

    def __init__(
        self,
        rules: Rules,
        worker_rules: Callable[[int], WorkerRules],
        *,
        seed: int = 0,
        task_us: Callable[[int, int, random.Random], int] = lambda rank, clock, rng: 1000,
        longest_us: int = 50,
        pause_us: Callable[[int, int], int] = lambda rank, clock: 0,
    ) -> None:
        """Args: task_us: how long a task takes a worker (rank) in one of its clocks, alone."""
        rng = random.Random(seed)
        self.terms: Terms = rules.terms
        self.rules = rules
        self.clock = Clock()
        self.taken: list[TakenUpdate] = []
        self.snapshots: list[Snapshot] = []
        self.records: list[list[StepRecord]] = [[] for _ in range(self.terms.world_size)]
        self.said: list[tuple[int, int, ParamsMessage]] = []
        self.outcomes: list[Any] = []
        self.server = ParamsServer(rules, taken=self.taken.append, reached=self.snapshots.append)
        toy = Toy()
        self.job = VirtualParameters(
            self.clock, Chance(self.clock, rng, longest_us), self.server,
            lambda tasks: np.concatenate([toy.samples(t.clock, t.shard, t.micro_batch) for t in tasks]),
        )  # fmt: skip
        self.workers: list[ParameterWorker] = []
        for rank in range(self.terms.world_size):
            self._start(rank, worker_rules(rank), toy, rng, task_us, pause_us)

    def _start(self, rank: int, rules: WorkerRules, toy: Toy, rng: random.Random, task_us: Any, pause_us: Any) -> None:
        host = self.job.host(rank)
        send = host.send

        def noted(outgoing: Outgoing) -> None:
            self.said.append((rank, outgoing.to, outgoing.message))
            send(outgoing)

        host.send = noted  # type: ignore[method-assign]
        worker = ParameterWorker(
            host, toy, rules, curve=self.terms.curve_of(rank), pause_us=lambda clock: pause_us(rank, clock),
            ended=self.records[rank].append,
        )  # fmt: skip

        def gradient(effect: Compute) -> tuple[Values, float]:
            assert effect.weights is not None
            return toy.gradient_at(effect.weights, effect.step, effect.shard, effect.micro_batch)

        self.workers.append(worker)
        VirtualProcess(
            self.clock, worker.run(), duration_us=lambda _: task_us(rank, worker.clock, rng),
            gradient=gradient,
            finished=self.outcomes.append,
            device=VirtualDevice(self.clock, self.terms.curve_of(rank)),
        )  # fmt: skip

    def run(self, seconds: float = 10_000.0) -> "Training":
        over = self.clock.run(lambda: len(self.outcomes) == self.terms.world_size, int(seconds * 1e6))
        assert over, f"not over; it waits for {self.server.waits_for}, clocks {self.server.book.clocks}"
        assert all(outcome is None for outcome in self.outcomes), self.outcomes
        self.check()
        return self

    @property
    def seconds(self) -> float:
        return self.clock.now_us / 1e6

    def check(self) -> None:
        """The parameters are those of the logged updates, bit for bit, and each task is in one update."""
        t = self.terms
        replay = Replay(
            Toy().initial(), rule=self.rules.rule, rate=self.rules.rate, world_size=t.world_size,
            micro_batches=t.micro_batches,
        )  # fmt: skip
        for each in self.taken:
            assert replay.take(each.clock, each.tasks, each.update)
            assert replay.values.tobytes() == each.values.tobytes(), f"after update {each.number}"
        pushed = {version: (tasks, update) for w in self.workers for version, tasks, update in w.pushed}
        for each in self.taken[: len(pushed)]:
            assert pushed[each.number][0] == each.tasks
        assert [s.clocks for s in self.snapshots] == list(range(1, t.clocks + 1))
        assert max(self.tasks.values()) == 1

    @property
    def tasks(self) -> Counter[Task]:
        return Counter(task for each in self.taken for task in each.tasks)

    def whole_clocks(self, shards: Sequence[int] | None = None) -> None:
        """Every task of every clock that is complete on a shard was computed, once."""
        found = self.tasks
        for shard in range(self.terms.world_size) if shards is None else shards:
            for clock in range(self.server.book.clocks[shard]):
                for m in range(self.terms.micro_batches):
                    assert found[Task(clock, shard, m)] == 1
