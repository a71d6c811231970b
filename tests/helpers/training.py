"""Training steps in virtual time: what `steps.step` decides, on a simulated cluster; every integer of every sum checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from helpers.cluster import Cluster, reference_sum
from sa_atp.lab.policies.deadline import DeadlineStepper
from sa_atp.lab.policies.saina import Fastest, FastestStepper
from sa_atp.lab.policies.sync_opt import BackupStepper
from sa_atp.lab.policies.x_of_n import Groups, GroupStepper
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.virtual_time import VirtualProcess
from sa_atp.net.session import Sum
from sa_atp.protocol.packets.control import CutOff
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.steps.effects import Compute, StepRunner
from sa_atp.steps.step import Stepper
from sa_atp.steps.step_record import StepRecord
from sa_atp.switches.embedded.pipeline import Pipeline

FOR_EVER_US = 1 << 50  # a micro-batch that takes so long is never done


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is trained, and who is slow."""

    workers: int = 4
    micro_batches: int = 8
    help_grade: HelpGrade = HelpGrade.STEAL
    helps: bool = True
    steps: int = 4
    values: int = 1000
    micro_batch_us: int = 2_000
    slowdown: Callable[[int, int], float] = lambda step, rank: 1.0
    """Of a worker (rank) in a step."""
    pause_us: Callable[[int, int], int] = lambda step, rank: 0
    hangs: Callable[[int, int, int], bool] = lambda step, rank, micro_batch: False
    """Whether a worker never gets done with a micro-batch of its own (step, rank, micro-batch)."""
    cancels: Callable[[int], bool] = lambda rank: True
    """Whether a worker can stop in the middle of a micro-batch, when nobody needs it any more."""
    number: Callable[[int], int] = lambda step: step
    """That the program gives a step, and that decides what is computed."""
    patience: float = 0.02
    seats: int = 0
    """How many ranks are in a sum, the first that are done (policy sync-opt); 0: all are."""
    cut_off: CutOff | None = None
    """When seats close (policy deadline); None: when all are taken."""
    groups: Callable[[], Groups] | None = None
    """Makes what decides who is in a sum (policy x-of-n), where there are as many seats as workers."""
    fastest: Callable[[], Fastest] | None = None
    """Makes what decides how many are in a sum (policy saina), likewise."""
    links: LinkSettings = field(default_factory=LinkSettings)
    lanes: int = 64
    contribution_bits: int = CONTRIBUTION_BITS
    seed: int = 1

    @property
    def contributions(self) -> int:
        return self.workers * self.micro_batches

    def fluid_us(self, step: int) -> float:
        """Total work over total speed."""
        speed = sum(1 / self.slowdown(step, rank) for rank in range(self.workers))
        return self.contributions * self.micro_batch_us / speed

    def alone_us(self, step: int) -> float:
        """What the slowest worker takes for its own shard."""
        return self.micro_batches * self.micro_batch_us * max(self.slowdown(step, r) for r in range(self.workers))


class _Workload:
    """Gradients that are functions of (step, shard, micro-batch)."""

    micro_batch_size = 1

    def __init__(self, values: int) -> None:
        self.values = values
        self.applied: list[np.ndarray] = []

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[np.ndarray, float]:
        rng = np.random.default_rng([step, shard, micro_batch])
        return rng.standard_normal(self.values, np.float32), 0.0

    def gradient_at(self, weights: np.ndarray, step: int, shard: int, micro_batch: int) -> tuple[np.ndarray, float]:
        return self.gradient(step, shard, micro_batch)

    def snapshot(self) -> np.ndarray:
        return np.zeros(0, np.float32)

    def apply(self, gradient: np.ndarray) -> None:
        self.applied.append(gradient.copy())


class Training:
    """Runs the steps of a job, and keeps what each rank did and got."""

    def __init__(self, pipelines: Sequence[Pipeline], setting: Setting) -> None:
        self.setting = setting
        settings = ServerSettings(
            lanes=setting.lanes, contribution_bits=setting.contribution_bits, slots=256, slots_per_job=256
        )
        self.cluster = Cluster(pipelines, seed=setting.seed, links=setting.links, settings=settings)
        self.workload = _Workload(setting.values)
        self.records: list[list[StepRecord]] = []
        self.errors: list[Any] = []
        self._sums: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}  # (step, rank)
        self._steppers: dict[int, StepRunner] = {}
        self.workers = self.cluster.start_job(
            setting.workers, micro_batches=setting.micro_batches, help_grade=setting.help_grade, seats=setting.seats,
            cut_off=setting.cut_off, joined=self._joined,
        )  # fmt: skip
        self.records = [[] for _ in self.workers]

    def run(self, seconds: float = 60.0) -> "Training":
        """All steps, at most so many simulated seconds."""
        self.cluster.run(lambda: bool(self.errors) or all(len(r) == self.setting.steps for r in self.records), seconds)
        assert not self.errors, self.errors
        self.check()
        return self

    def _joined(self, worker: SimWorker) -> None:
        rank = worker.membership.rank
        if self.setting.groups is not None:
            self._steppers[rank] = GroupStepper(
                worker, self.workload, self.setting.groups(), steps=self.setting.steps,
                pause_us=lambda step: self.setting.pause_us(step, rank),
            )  # fmt: skip
            self._start(rank, 0)
            return
        if self.setting.fastest is not None:
            self._steppers[rank] = FastestStepper(
                worker, self.workload, self.setting.fastest(), pause_us=lambda step: self.setting.pause_us(step, rank)
            )
            self._start(rank, 0)
            return
        if self.setting.seats:
            kind = BackupStepper if self.setting.cut_off is None else DeadlineStepper
            self._steppers[rank] = kind(worker, self.workload, pause_us=lambda step: self.setting.pause_us(step, rank))
            self._start(rank, 0)
            return
        self._steppers[rank] = Stepper(
            worker, self.workload, helps=self.setting.helps, patience=self.setting.patience,
            pause_us=lambda step: self.setting.pause_us(step, rank), cancels=self.setting.cancels(rank),
        )  # fmt: skip
        self._start(rank, 0)

    def _start(self, rank: int, step: int) -> None:
        s = self.setting

        def duration_us(work: Compute) -> int:
            if work.shard == rank and s.hangs(step, rank, work.micro_batch):
                return FOR_EVER_US
            return int(s.micro_batch_us * s.slowdown(step, rank))

        VirtualProcess(
            self.cluster.clock,
            self._steppers[rank].run(s.number(step)),
            duration_us=duration_us,
            gradient=lambda work: self.workload.gradient(work.step, work.shard, work.micro_batch),
            finished=lambda outcome: self._finished(rank, step, outcome),
        )

    def _finished(self, rank: int, step: int, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.errors.append(outcome)
            return
        record: StepRecord = outcome[0]
        sum_: Sum = outcome[1]
        assert sum_.finished is not None
        integers, exponents = sum_.finished.integers()
        self._sums[step, rank] = integers.copy(), exponents.copy()
        self.records[rank].append(record)
        if step + 1 < self.setting.steps:
            self._start(rank, step + 1)

    # --- what is asserted -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every rank's sum of every step is that of all quantised contributions, bit for bit."""
        self.cluster.check_books()
        s = self.setting
        for step in range(s.steps):
            number = s.number(step)
            shards = self.seated(step) if s.seats else range(s.workers)
            pieces = [(number, r, m) for r in shards for m in range(s.micro_batches)]
            if s.groups is not None:  # gradients may have been begun in earlier steps
                pieces = [(p.step, p.shard, p.micro_batch) for r in shards for p in self.records[r][step].pieces]
            parts = [self.workload.gradient(*piece)[0] for piece in pieces]
            reference: np.ndarray | None = None
            for rank in range(s.workers):
                integers, exponents = self._sums[step, rank]
                if reference is None:
                    reference, _ = reference_sum(parts, exponents)
                    first = exponents
                assert np.array_equal(exponents, first)
                assert np.array_equal(integers, reference), f"step {step}, rank {rank}: a wrong sum"

    def seated(self, step: int) -> list[int]:
        """The ranks that contributed to a step, in a job with seats: as many as there are, each with its whole shard.

        With a cut-off at least as many as it waits for.
        """
        found = [rank for rank, records in enumerate(self.records) if records[step].computed]
        least = self.setting.seats if self.setting.cut_off is None else self.setting.cut_off.least
        if self.setting.groups is not None or self.setting.fastest is not None:
            least = 1
        assert least <= len(found) <= self.setting.seats
        for rank in found:
            assert [(r, m) for r, m, _ in self.records[rank][step].computed] == [
                (rank, m) for m in range(self.setting.micro_batches)
            ]
        return found

    def without_updates_of(self, step: int, updates: list[np.ndarray]) -> list[np.ndarray]:
        """The updates that are left when those of a step are taken out: at every rank once, the mean over the ranks that
        contributed.
        """
        there = self.seated(step)
        mean = sum(
            self.setting.workers * self.workload.gradient(step, rank, m)[0].astype(np.float64)
            for rank in there
            for m in range(self.setting.micro_batches)
        ) / len(there)
        same = [each for each in updates if np.abs(each - mean).max() < 1e-3]
        assert len(same) == self.setting.workers, "every rank applies it once"
        return [each for each in updates if not any(each is other for other in same)]

    def sum_of(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """A step's sum as integers, and its exponents."""
        return self._sums[step, 0]

    def step_us(self, step: int) -> int:
        """From when the first began until the last had the sum."""
        records = [r[step] for r in self.records]
        return max(r.end_us for r in records) - min(r.start_us for r in records)

    @property
    def computed(self) -> int:
        """Micro-batches that were contributed, however often each."""
        return sum(len(record.computed) for records in self.records for record in records)

    @property
    def helped(self) -> int:
        return sum(record.helped for records in self.records for record in records)

    @property
    def backups(self) -> int:
        return sum(job.ledger.lots.backups for job in self.cluster.world.server.jobs.values())


def lossy(loss: float, **more: Any) -> LinkSettings:
    return replace(LinkSettings(loss=loss), **more)
