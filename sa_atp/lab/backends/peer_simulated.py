"""Runs of another protocol's policy in virtual time: its switch program, and its transport on simulated links."""

from collections import defaultdict
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.basics.folders import cache_folder
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import evaluate, make_workload
from sa_atp.lab.runs.virtual_run import PacketRun, VirtualRank, link_settings
from sa_atp.lab.simulator.peer_world import PeerWorker, PeerWorld
from sa_atp.protocol.rank.events import WorkerStats
from sa_atp.steps.effects import gradient_of
from sa_atp.steps.fingerprint import of_floats
from sa_atp.steps.plain_step import PlainStepper
from sa_atp.steps.step_record import StepRecord
from sa_atp.switches.embedded.pipeline import Pipeline


def run(plan: Plan, policy: str, repetition: int, progress: Progress) -> PolicyRun:
    """Runs one repetition. Raises: SaAtpError."""
    simulation = _PeerSimulation(plan, policy, repetition, progress)
    simulation.run_to_end()
    return collect(plan, policy, repetition, [rank.raw() for rank in simulation.ranks])


class _PeerSimulation(PacketRun):
    def __init__(self, plan: Plan, policy: str, repetition: int, progress: Progress) -> None:
        self.policy = policies.peer_policy(policy)
        assert self.policy.peer is not None
        self.peer = self.policy.peer
        self.lanes = self.policy.lanes(plan)
        self.parts: dict[int, list[Values]] = defaultdict(list)  # by step: what the workers contributed
        self.hashes: dict[int, int] = {}  # by step
        program = self.peer.program(self.lanes)
        links = link_settings(plan)
        rates = plan.topology.worker_mbps or (links.rate_mbps,) * plan.topology.workers
        self.world = PeerWorld(
            self.peer,
            Pipeline.from_file(program.json_path, cache=cache_folder()),
            seed=plan.run.seed * 1000 + repetition,
            lanes=self.lanes,
            slots=self.policy.slots(plan),
            timeout_us=self.policy.timeout_us(plan),
            links=[replace(links, rate_mbps=rate) for rate in rates],
        )
        self.links_of = self.world.links_of
        super().__init__(plan, policy, self.world.clock, progress)
        self.note_rates()
        self.ranks = [_PeerRank(self, rank, worker, repetition) for rank, worker in enumerate(self.world.workers)]

    def reference(self, step: int) -> int:
        """Returns the hash of the right sum of a step, to which all workers have contributed."""
        if step not in self.hashes:
            self.hashes[step] = of_floats(self.peer.reference(self.parts.pop(step), self.lanes))
        return self.hashes[step]


class _PeerRank(VirtualRank):
    """One worker's part of a simulation."""

    def __init__(self, simulation: _PeerSimulation, rank: int, worker: PeerWorker, repetition: int) -> None:
        plan = simulation.plan
        self.model = make_workload(plan, repetition)
        super().__init__(simulation, rank, self.model)
        self.simulation = simulation
        self.worker = worker
        self.sums: list[tuple[int, int]] = []
        self.references: list[tuple[int, int]] = []
        self.snapshots: list[tuple[int, Values]] = []
        stepper = PlainStepper(
            rank,
            self.model,
            plan.job.micro_batches,
            self._all_reduce,
            now_us=worker.now_us,
            pause_us=lambda step: simulation.pattern.pause_us_of(step, rank),
        )
        self.start(stepper, lambda effect: gradient_of(self.model, effect))

    def _all_reduce(self, values: Values) -> "Future[Values]":
        self.simulation.parts[len(self.sums)].append(values)
        return self.worker.all_reduce(values)

    def take(self, record: StepRecord, slowdown: float, sum_: Values) -> None:
        super().take(record, slowdown, sum_)
        self.sums.append((record.step, of_floats(sum_)))
        self.references.append((record.step, self.simulation.reference(record.step)))
        if self.rank == 0:
            self.snapshots.append((record.step, self.model.snapshot()))
            self.run.progress.steps(record.step + 1, self.run.plan.run.steps)

    def raw(self) -> dict[str, Any]:
        """The same as `worker_process.train` returns."""
        transport = self.worker.transport
        return {
            "rank": self.rank,
            "records": self.records,
            "contributed": [],
            "sums": self.sums,
            "references": self.references,
            "stats": WorkerStats(fragments_sent=transport.sent, retransmitted=transport.retransmitted).as_dict(),
            "server": None,
            "evaluations": evaluate(self.model, self.snapshots),
        }
