"""One worker of a run, as a process: takes tasks on standard input, one JSON object a line, and answers in kind.

It stays alive between policies, because importing PyTorch takes longer than most runs. Records go to a file that the task
names, so that the same process serves wherever it was started: here, in a namespace, or on another host.
"""

import dataclasses
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.errors import SaAtpError
from sa_atp.net.communicator import connect
from sa_atp.testbed import all_reduce_task
from sa_atp.testbed.plan import Plan, parse_tables
from sa_atp.train.device import Device
from sa_atp.train.digits import DigitsCnn
from sa_atp.train.fingerprint import Fingerprint
from sa_atp.train.real_time import CommunicatorHost, run_step
from sa_atp.train.step import Stepper, StepRecord
from sa_atp.train.stragglers import StragglerPattern


def straggler_pattern(plan: Plan) -> StragglerPattern:
    return StragglerPattern(
        kind=plan.straggler.pattern,
        workers=plan.straggler.workers,
        slowdown=plan.straggler.slowdown,
        slowdown_range=(plan.straggler.slowdown_range[0], plan.straggler.slowdown_range[1]),
        pause_us=int(plan.straggler.pause_s * 1e6),
        every=plan.straggler.every,
        seed=plan.run.seed,
        world_size=plan.topology.workers,
    )


def make_workload(plan: Plan, repetition: int) -> DigitsCnn:
    """What every worker trains; repetitions differ in the seed."""
    return DigitsCnn(
        seed=plan.run.seed + repetition,
        world_size=plan.topology.workers,
        batch_size=plan.job.batch_size,
        micro_batches=plan.job.micro_batches,
        learning_rate=plan.job.learning_rate,
    )


class Checker:
    """Notes the hashes of what was contributed and of the sums, in a thread, while the devices are idle."""

    def __init__(self, values: int, contributions: int) -> None:
        self.contributed: list[tuple[int, int, int, int]] = []  # (step, shard, micro-batch, hash)
        self.sums: list[tuple[int, int]] = []  # (step, hash)
        self._fingerprint = Fingerprint(values)
        self._contributions = contributions
        self._work: queue.SimpleQueue[tuple[StepRecord, np.ndarray, np.ndarray] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sa-atp-checker", daemon=True)
        self._thread.start()

    def add(self, record: StepRecord, integers: np.ndarray, exponents: np.ndarray) -> None:
        self._work.put((record, integers.copy(), exponents.copy()))

    def finish(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        # what is checked is not what is measured: the workers' own threads come first
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while (item := self._work.get()) is not None:
            record, integers, exponents = item
            self.sums.append((record.step, self._fingerprint.of_integers(integers)))
            for shard, m, gradient in record.computed:
                hashed = self._fingerprint.of_contribution(gradient, exponents, self._contributions)
                self.contributed.append((record.step, shard, m, hashed))
            record.computed.clear()


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Runs one policy on this worker; returns its records as JSON-able data. Times are on the clock of net.clock."""
    plan = parse_tables(task["plan"], "task")
    rank, policy = int(task["rank"]), str(task["policy"])
    pattern = straggler_pattern(plan)
    workload = make_workload(plan, int(task["repetition"]))
    workload.gradient(0, rank, 0)  # what PyTorch does only once should not count
    device = Device(plan.job.compute_us_per_sample)
    helps = policy == "sa-atp"
    with connect(
        task["server"],
        job=task["job"],
        rank=rank,
        world_size=plan.topology.workers,
        micro_batches=plan.job.micro_batches,
        help=plan.help.grade if helps else "none",
    ) as comm:
        checker = Checker(workload.values, comm.membership.contributions)
        stepper = Stepper(
            CommunicatorHost(comm),
            workload,
            helps=helps,
            patience=plan.help.patience,
            pause_us=lambda step: pattern.pause_us_of(step, rank),
        )
        comm.all_reduce(np.zeros(1, np.float32))  # everybody is here
        try:
            records, snapshots = _steps(plan, rank, pattern, device, stepper, checker, workload)
        except SaAtpError:
            print(comm.describe(), file=sys.stderr, flush=True)
            raise
        checker.finish()
        stats = comm.stats().as_dict()
        server = comm.ask({"type": "stats"}).result() if rank == 0 else None
        comm.all_reduce(np.zeros(1, np.float32))  # nobody leaves while others still need its results
    return {
        "rank": rank,
        "records": records,
        "contributed": checker.contributed,
        "sums": checker.sums,
        "stats": stats,
        "server": server,
        "evaluations": _evaluate(workload, snapshots) if rank == 0 else [],
    }


def _steps(
    plan: Plan,
    rank: int,
    pattern: StragglerPattern,
    device: Device,
    stepper: Stepper,
    checker: Checker,
    workload: DigitsCnn,
) -> tuple[list[dict[str, Any]], list[tuple[int, int, np.ndarray]]]:
    records: list[dict[str, Any]] = []
    snapshots: list[tuple[int, int, np.ndarray]] = []
    for step in range(plan.run.steps):
        device.slowdown = pattern.slowdown_of(step, rank)
        record, sum_ = run_step(stepper, device, workload, step)
        if sum_.finished is not None:
            checker.add(record, *sum_.finished.integers())
        if rank == 0:
            snapshots.append((step, record.end_us, workload.snapshot()))
            print(json.dumps({"step": step + 1}), flush=True)
        records.append(describe_step(record, device.slowdown))
    return records, snapshots


def describe_step(record: StepRecord, slowdown: float) -> dict[str, Any]:
    """A step's record as JSON-able data; see collect."""
    return {
        "step": record.step,
        "start_us": record.start_us,
        "end_us": record.end_us,
        "activities": [dataclasses.astuple(a) for a in record.activities],
        "loss": float(np.mean(record.losses)) if record.losses else None,
        "slowdown": slowdown,
        "micro_batches": record.micro_batches,
        "helped": record.helped,
    }


def _evaluate(workload: DigitsCnn, snapshots: list[tuple[int, int, np.ndarray]]) -> list[tuple[int, int, float, float]]:
    """(step, time, loss, accuracy) on the held-out samples, after the run so that it costs no training time."""
    found = []
    for step, time_us, weights in snapshots:
        score = workload.score(weights)
        found.append((step, time_us, score.loss, score.accuracy))
    return found


def main() -> int:
    """Answers tasks until standard input ends."""
    import torch  # noqa: F401  (so that the first task does not pay for it)

    # Three threads share the interpreter; by default one that computes may keep the others waiting for 5 ms.
    sys.setswitchinterval(0.0005)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        try:
            result = all_reduce_task.run(task) if task.get("kind") == "all_reduce" else train(task)
            Path(task["out"]).write_text(json.dumps(result))
            answer: dict[str, Any] = {"done": True}
        except SaAtpError as error:
            answer = {"done": False, "error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
