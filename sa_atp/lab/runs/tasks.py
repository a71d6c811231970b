"""Interprets a worker's task (plan, workload, device, stragglers), and describes its steps as data."""

import json
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.plan_files import parse_tables
from sa_atp.net.loop.compiled import pair_kernels
from sa_atp.steps.device import CpuDevice, Device, SharedDevice
from sa_atp.steps.effects import DealtWorkload, Host, StepRunner
from sa_atp.steps.pairing import PairingHost, WholeHost
from sa_atp.steps.real_time import run_step
from sa_atp.steps.step_record import StepRecord
from sa_atp.steps.stragglers import LinkContention, StragglerPattern
from sa_atp.steps.workloads.comm_models import CommModel
from sa_atp.steps.workloads.digits import DigitsCnn, Score


class JobWorkload(DealtWorkload, Protocol):
    """A workload that can be evaluated after the run, and can compute gradients with given weights."""

    def initial(self) -> Values: ...
    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]: ...
    def samples(self, step: int, shard: int, micro_batch: int) -> Octets: ...

    def snapshot(self) -> Values: ...
    def score(self, weights: Values) -> Score | None: ...


def plan_of(task: dict[str, Any]) -> Plan:
    return parse_tables(task["plan"], "task")


def job_name(policy: str, number: int) -> str:
    """Name of the job of a policy's repetition, and of the folder with its logs."""
    return f"{policy}-{number}"


def make_device(plan: Plan) -> Device:
    """A worker's device. With device "cpu", a normal host's quota makes it as fast as an emulated one."""
    if plan.job.device == "cpu":
        share = min(1.0, plan.job.cpu_share)
        return CpuDevice(round(plan.job.compute_us_per_sample * share), round(plan.job.compute_us_per_pass * share))
    return Device(plan.job.compute_us_per_sample, plan.job.compute_us_per_pass)


def make_shared_device(plan: Plan, rank: int, most: int) -> Device:
    """A worker's device in real time. Args: most: the most tasks that it may have to compute at a time."""
    if most == 1 or plan.job.device == "cpu":
        return make_device(plan)
    job = plan.job
    return SharedDevice(job.compute_us_per_sample, job.compute_us_per_pass, curve=job.parallel_curve(rank))


def straggler_pattern(plan: Plan) -> StragglerPattern:
    """The slowdowns of workers' devices; congested links do not count."""
    return StragglerPattern(
        kind=plan.straggler.pattern if plan.straggler.by != "congestion" else "none",
        workers=plan.straggler.workers,
        slowdown=plan.straggler.slowdown,
        slowdown_range=(plan.straggler.slowdown_range[0], plan.straggler.slowdown_range[1]),
        pause_us=int(plan.straggler.pause_s * 1e6),
        every=plan.straggler.every,
        seed=plan.run.seed,
        world_size=plan.topology.workers,
        speeds=plan.job.speeds,
        probability=plan.straggler.probability,
        pause_range=(plan.straggler.pause_range[0], plan.straggler.pause_range[1]),
        among=plan.straggler.among,
        points=plan.straggler.points,
        tail=plan.straggler.tail,
        typical_us=plan.job.shard_us,
        from_step=plan.straggler.from_step,
        until_step=plan.straggler.until_step,
        trace=tuple((int(step), int(worker), float(slow)) for step, worker, slow in plan.straggler.rows),
    )


def device_slowdown(plan: Plan, pattern: StragglerPattern, step: int, rank: int) -> float:
    """The emulated slowdown of a device: if a real cause slows workers down, only its relative speed."""
    return pattern.slowdown_of(step, rank) if plan.straggler.by == "device" else 1.0 / pattern.speed_of(rank)


def run_steps(
    plan: Plan,
    rank: int,
    device: Device,
    stepper: StepRunner,
    workload: JobWorkload,
    took: Callable[[StepRecord, Any], None],
) -> tuple[list[dict[str, Any]], list[tuple[int, Values]]]:
    """Runs a worker's steps in real time. Args: took: is given each step's record, and its sum.

    Returns: the steps as data, and rank 0's weights after each. Raises: TransportError.
    """
    pattern = straggler_pattern(plan)
    records: list[dict[str, Any]] = []
    snapshots: list[tuple[int, Values]] = []
    for step in range(plan.run.steps):
        device.slowdown = device_slowdown(plan, pattern, step, rank)
        record, sum_ = run_step(stepper, device, workload, step)
        took(record, sum_)
        if rank == 0:
            snapshots.append((step, workload.snapshot()))
            print(json.dumps({"step": step + 1}), flush=True)
        records.append(describe_step(record, pattern.slowdown_of(step, rank)))
    return records, snapshots


def link_contention(plan: Plan) -> LinkContention | None:
    """The contended links and their spells; None: there are none."""
    straggler = plan.straggler
    if straggler.pattern != "contention":
        return None
    return LinkContention(
        workers=straggler.workers,
        share=straggler.share,
        tail=straggler.tail,
        spell_us=(straggler.spell_s[0] * 1e6, straggler.spell_s[1] * 1e6),
        calm_us=(straggler.calm_s[0] * 1e6, straggler.calm_s[1] * 1e6),
        seed=plan.run.seed,
    )


def make_workload(plan: Plan, repetition: int) -> JobWorkload:
    """The workload of every worker; repetitions differ in the seed."""
    if plan.job.model != "digits-cnn":
        return CommModel(
            plan.job.model,
            seed=plan.run.seed + repetition,
            world_size=plan.topology.workers,
            batch_size=plan.job.batch_size,
            micro_batches=plan.job.micro_batches,
            scale=plan.job.model_scale,
        )
    return DigitsCnn(
        seed=plan.run.seed + repetition,
        world_size=plan.topology.workers,
        batch_size=plan.job.batch_size,
        micro_batches=plan.job.micro_batches,
        learning_rate=plan.job.learning_rate,
        momentum=plan.job.momentum,
    )


def imports_of(plan: Plan) -> tuple[str, ...]:
    """The packages that a plan's workload needs, which take seconds to import."""
    return ("torch", "sklearn.datasets") if plan.job.model == "digits-cnn" else ()


def host_of(plan: Plan, host: WholeHost, repetition: int) -> Host:
    """The host of a worker's steps, from that of its connection: it packs gradients, if the plan says so (job.bits)."""
    if plan.job.bits == 32:
        return host
    return PairingHost(host, pair_kernels(), seed=plan.run.seed + repetition, feedback=plan.job.error_feedback)


def describe_step(record: StepRecord, slowdown: float) -> dict[str, Any]:
    """A step's record as JSON-able data; see collect."""
    return {
        "step": record.step,
        "start_us": record.start_us,
        "end_us": record.end_us,
        "activities": [(a.kind, a.start_us, a.end_us, a.label) for a in record.activities],
        "loss": float(np.mean(record.losses)) if record.losses else None,
        "slowdown": slowdown,
        "pieces": record.pieces,
        "dropped": record.dropped,
        "is_finished": record.is_finished,
        "samples": record.samples,
    }


def evaluate(workload: JobWorkload, snapshots: list[tuple[int, Values]]) -> list[tuple[int, float, float]]:
    """(step, loss, accuracy) on the held-out samples, computed after the run so that it takes no training time.

    Args: snapshots: (step, weights after it).
    """
    found = []
    for step, weights in snapshots:
        score = workload.score(weights)
        if score is not None:
            found.append((step, score.loss if math.isfinite(score.loss) else math.nan, score.accuracy))
    return found
