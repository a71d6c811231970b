"""Runs policies with parameters on a server in virtual time: real gradients, and messages that queue on links."""

import random
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Octets
from sa_atp.lab import policies
from sa_atp.lab.flow.queues import Queues
from sa_atp.lab.parameters.parameter_worker import ParameterWorker
from sa_atp.lab.parameters.rules.messages import Tasks
from sa_atp.lab.parameters.rules.server import ParamsServer, Snapshot
from sa_atp.lab.parameters.update_checker import UpdateChecker, describe_server, digest
from sa_atp.lab.parameters.virtual_time import VirtualParameters
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import describe_step, evaluate, make_device, make_workload
from sa_atp.lab.runs.virtual_run import FabricRun, fabric_of
from sa_atp.lab.simulator.network import Clock
from sa_atp.steps.effects import Compute, gradient_of
from sa_atp.steps.step_record import StepRecord

LATE_US = 300
"""Mean lateness of a host: measured with a process that slept for 12 ms on two busy cores (median: 93). Results are about
the same for 30 and for 1000.
"""


def run(plan: Plan, policy: str, repetition: int, progress: Progress) -> PolicyRun:
    """Runs one repetition of a policy. Raises: SaAtpError."""
    return _ParameterSimulation(plan, policies.parameter_policy(policy), repetition, progress).run()


class _ParameterSimulation(FabricRun):
    def __init__(self, plan: Plan, policy: policies.ParameterPolicy, repetition: int, progress: Progress) -> None:
        super().__init__(plan, policy.name, fabric_of(plan, Clock()), progress)
        self.policy = policy
        self.repetition = repetition
        # one workload serves all workers: they have the same data, and weights come with each task
        self.workload = make_workload(plan, repetition)
        rules = policy.rules(plan)
        self.checker = UpdateChecker(rules, self.workload.initial())
        self.snapshots: list[Snapshot] = []
        server = ParamsServer(rules, taken=self.checker.take, reached=self._reached)
        rng = random.Random(f"{plan.run.seed}/{repetition}/late hosts")
        self.job = VirtualParameters(
            self.clock, Queues(self.fabric), server, self._samples, lambda: round(rng.expovariate(1 / LATE_US))
        )
        self.records: list[list[dict[str, Any]]] = [[] for _ in range(plan.topology.workers)]
        self.workers = [self._worker(rank) for rank in range(plan.topology.workers)]

    def run(self) -> PolicyRun:
        self.run_to_end(more=lambda: f"; it waits for {self.job.server.waits_for}")
        workers: list[dict[str, Any]] = [
            {
                "rank": rank,
                "records": self.records[rank],
                "evaluations": [],
                "pushed": [(version, digest(update)) for version, _, update in worker.pushed],
            }
            for rank, worker in enumerate(self.workers)
        ]
        workers[0]["parameters"] = {
            **describe_server(self.checker, self.snapshots),
            "evaluations": evaluate(self.workload, [(s.clocks - 1, s.values) for s in self.snapshots]),
        }
        return collect(self.plan, self.policy.name, self.repetition, workers)

    def _reached(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self.progress.steps(snapshot.clocks, self.plan.run.steps)

    def _samples(self, tasks: Tasks) -> Octets:
        return np.concatenate([self.workload.samples(t.clock, t.shard, t.micro_batch) for t in tasks])

    def _worker(self, rank: int) -> ParameterWorker:
        def ended(record: StepRecord) -> None:
            self.records[rank].append(describe_step(record, self.pattern.slowdown_of(record.step, rank)))

        worker = ParameterWorker(
            self.job.host(rank),
            self.workload,
            self.policy.worker_rules(self.plan, rank),
            curve=self.plan.job.parallel_curve(rank),
            pause_us=lambda clock: self.pattern.pause_us_of(clock, rank),
            ended=ended,
        )

        device = make_device(self.plan)

        def duration_us(_: Compute) -> int:
            self.begin(rank, worker.clock)
            device.slowdown = self.pattern.slowdown_of(worker.clock, rank)
            return int(device.microseconds(self.workload.micro_batch_size))

        def finished(_: None) -> None:
            self.left -= 1

        self.start(rank, worker.run(), duration_us, lambda effect: gradient_of(self.workload, effect), finished)
        return worker
