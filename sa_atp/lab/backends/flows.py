"""The simulated backend on flows: the same steps and ledger, on a flow-level network. (docs/flow-model.md)"""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.flow.fabric import Fabric
from sa_atp.lab.flow.flow_worker import FlowWorker
from sa_atp.lab.flow.job import FlowJob, FlowOperation, JobSettings
from sa_atp.lab.flow.sums import Total
from sa_atp.lab.flow.workloads import SharedWorkload, SizesOnly, WorkloadView
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import evaluate, make_workload
from sa_atp.lab.runs.virtual_run import FabricRun, VirtualRank, fabric_of
from sa_atp.lab.simulator.network import Clock
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.steps.fingerprint import Fingerprint
from sa_atp.steps.step_record import StepRecord

TRAINED = ("digits-cnn",)
NEW_OBJECTS = 100_000  # threshold of Python's garbage collector


def check(plan: Plan, names: Sequence[str]) -> None:
    """Refuses plans with faults that flows do not model. Args: names: the policies that run on flows. Raises: UserError."""
    if not plan.network.is_perfect:
        raise UserError(
            f"{', '.join(names)}: simulated as flows, without packets that could be lost, duplicated or reordered: "
            "set network.* to 0, or leave these policies out"
        )
    if plan.job.bits != 32:
        raise UserError(
            f"{', '.join(names)}: job.bits = {plan.job.bits}: the flow-level model has gradients of 32 bits; "
            'set sim.network = "packets"'
        )


def adds(plan: Plan) -> bool:
    """Whether values are added up: if the model is trained, or the job would also fit into packets."""
    return plan.job.model in TRAINED or plan.topology.workers * plan.job.micro_batches <= CONTRIBUTION_BITS


def run(plan: Plan, policy: str, repetition: int, progress: Progress) -> PolicyRun:
    """Runs one policy once. Raises: SaAtpError."""
    simulation = _FlowSimulation(plan, policies.switch_policy(policy), repetition, progress, fabric_of(plan, Clock()))
    with _rare_garbage_collection():
        found = collect(plan, policy, repetition, simulation.run())
    found.fragments = {}  # flows have no fragments
    return found


def step_ends_us(plan: Plan, policy: str, progress: Progress, fabric: Fabric) -> list[int]:
    """The end of each step of a run with gradients without values, without records. Raises: SaAtpError.

    A step ends when the first worker has its sum, and the last step when the last worker has it (as in
    report.stats.step_ends_s).
    """
    simulation = _FlowSimulation(plan, policies.switch_policy(policy), 0, progress, fabric, sizes_only=True)
    simulation.keeps = False
    with _rare_garbage_collection():
        simulation.run()
    return [*simulation.ends_us[:-1], simulation.clock.now_us]


def sizes_of(plan: Plan) -> SizesOnly:
    """A plan's gradients without values."""
    job = plan.job
    return SizesOnly(job.model, batch_size=job.batch_size, micro_batches=job.micro_batches, scale=job.model_scale)


class _FlowSimulation(FabricRun):
    """One repetition of a synchronous policy."""

    def __init__(
        self,
        plan: Plan,
        policy: policies.SwitchPolicy,
        repetition: int,
        progress: Progress,
        fabric: Fabric,
        *,
        sizes_only: bool = False,
    ) -> None:
        super().__init__(plan, policy.name, fabric, progress)
        self.policy = policy
        self.keeps = True  # whether to keep the records of workers' steps
        self.ends_us: list[int] = []  # end of each step: when the first worker had the sum
        self.adds = adds(plan) and not sizes_only
        job = plan.job
        self.model = make_workload(plan, repetition) if self.adds else None
        workload = self.model or sizes_of(plan)
        self.shared = SharedWorkload(workload)
        self.shared.on_update = self._updated
        self.snapshots: list[tuple[int, Any]] = []
        self.job = FlowJob(
            fabric,
            JobSettings(
                world_size=plan.topology.workers,
                micro_batches=job.micro_batches,
                help_grade=policy.help_grade(plan),
                lanes=plan.lanes,
                contribution_bits=plan.contribution_bits,
                slots=plan.switch.quota,
                seats=policy.seats(plan),
                cut_off=policy.cut_off(plan),
                at_server=policy.aggregates_at == "server",
                # further sums of a policy, as of measurements, have values all the same
                sizes_only=0 if self.adds else workload.values,
            ),
            self._arrived,
        )
        self.hashes = _FlowHashes(workload.values, self.job.map.contributions) if self.adds else None
        self.ranks = [_FlowRank(self, rank) for rank in range(plan.topology.workers)]

    def _updated(self, step: int) -> None:
        if self.model is not None:
            self.snapshots.append((step, self.shared.weights[step + 1]))
        self.ends_us.append(self.clock.now_us)
        self.progress.steps(step + 1, self.plan.run.steps)

    def _arrived(self, rank: int, operation: FlowOperation) -> None:
        self.ranks[rank].worker.on_sum(operation)

    def run(self) -> list[dict[str, Any]]:
        """Runs to the end. Returns: for each rank, what `worker_process.train` returns."""
        self.run_to_end(self.plan.run.steps * self.job.sequential_us(self.shared.workload.values))
        return [rank.raw() for rank in self.ranks]


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Runs garbage collection rarely: with thousands of scheduled events it would take as long as the run itself."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _FlowRank(VirtualRank):
    """One worker's part of a simulation."""

    def __init__(self, simulation: _FlowSimulation, rank: int) -> None:
        workload = WorkloadView(simulation.shared)
        super().__init__(simulation, rank, workload)
        self.simulation = simulation
        self.contributed: list[tuple[int, int, int, int]] = []
        self.sums: list[tuple[int, int]] = []
        self.worker = FlowWorker(simulation.job, rank)
        stepper = simulation.policy.stepper(
            self.worker,
            workload,
            simulation.plan,
            pause_us=lambda step: simulation.pattern.pause_us_of(step, rank),
        )
        self.start(stepper, simulation.shared.gradient)

    def take(self, record: StepRecord, slowdown: float, sum_: Any) -> None:
        if self.simulation.keeps:
            super().take(record, slowdown, sum_)
        if self.simulation.hashes is not None:
            self._check(self.simulation.hashes, record, sum_.finished)
        record.computed.clear()

    def _check(self, hashes: "_FlowHashes", record: StepRecord, total: Total) -> None:
        self.sums.append((record.step, hashes.of_sum(record.step, total)))
        for shard, m, gradient in record.computed:
            self.contributed.append((record.step, shard, m, hashes.of(gradient, total)))

    def raw(self) -> dict[str, Any]:
        """The same as `worker_process.train` returns, without counts of fragments."""
        simulation = self.simulation
        first = self.rank == 0
        return {
            "rank": self.rank,
            "records": self.records,
            "contributed": self.contributed,
            "sums": self.sums,
            "stats": dict.fromkeys(("fragments_sent", "retransmitted", "on_behalf", "results"), 0),
            "server": simulation.job.help.counted() if first else None,
            "evaluations": evaluate(simulation.model, simulation.snapshots) if first and simulation.model else [],
        }


class _FlowHashes:
    """Hashes of contributions and sums (steps.fingerprint); an array that several ranks share is hashed once."""

    def __init__(self, values: int, contributions: int) -> None:
        self._fingerprint = Fingerprint(values)
        self._contributions = contributions
        self._sums: dict[int, tuple[Total, int]] = {}

    def of_sum(self, step: int, total: Total) -> int:
        known = self._sums.get(step)
        if known is None or known[0] is not total:
            known = self._sums[step] = total, self._fingerprint.of_integers(total.sums)
            self._sums.pop(step - 2, None)
        return known[1]

    def of(self, gradient: Values, total: Total) -> int:
        return self._fingerprint.of_contribution(gradient, total.exponents, self._contributions)
