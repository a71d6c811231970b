"""Gloo, for comparison: PyTorch's ring all-reduce over TCP, and training with it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs import tasks
from sa_atp.net.clock import now_us
from sa_atp.protocol.rank.events import WorkerStats
from sa_atp.steps.device import Device
from sa_atp.steps.step_record import Activity, Piece, StepRecord, account

TIMEOUT = timedelta(seconds=60)


def load() -> None:
    """Imports PyTorch, which takes seconds, before the first sum."""
    import torch.distributed  # noqa: F401


@contextmanager
def group(store: tuple[str, int], rank: int, world_size: int, interface: str | None) -> Iterator[Any]:
    """A process group of all ranks; yields torch.distributed.

    Args:
        store: address at which rank 0 listens for the others.
        interface: network interface for Gloo; None: Gloo chooses.

    Raises: SaAtpError: Gloo's error, in one line.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore  # the class behind torch.distributed.TCPStore

    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        made = TCPStore(store[0], store[1], world_size, rank == 0, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=made, rank=rank, world_size=world_size, timeout=TIMEOUT)
        try:
            yield dist
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        raise SaAtpError(f"Gloo: {str(error).splitlines()[0]}") from None


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the policy "gloo" on this worker. Returns: as `worker_process.train`; its sums are hashes of float32 results."""
    import torch

    rank, plan = int(task["rank"]), tasks.plan_of(task)
    pattern = tasks.straggler_pattern(plan)
    workload = tasks.make_workload(plan, int(task["repetition"]))
    device = tasks.make_device(plan)
    records, sums, snapshots = [], [], []
    workload.gradient(0, rank, 0)
    with group(tuple(task["store"]), rank, plan.topology.workers, task["interface"]) as dist:
        dist.barrier()
        for step in range(plan.run.steps):
            record = StepRecord(step, now_us())
            slowdown = pattern.slowdown_of(step, rank)
            device.slowdown = tasks.device_slowdown(plan, pattern, step, rank)
            total = _shard(plan, workload, device, record, rank, pattern.pause_us_of(step, rank))
            contributed_us = now_us()
            dist.all_reduce(torch.from_numpy(total))
            sums.append((step, int.from_bytes(blake2b(total.tobytes(), digest_size=8).digest(), "big")))
            workload.apply(total)
            record.end_us = now_us()
            account(record, contributed_us, ())  # with Gloo, sending and waiting cannot be told apart
            records.append(tasks.describe_step(record, slowdown))
            if rank == 0:
                snapshots.append((step, workload.snapshot()))
                print(json.dumps({"step": step + 1}), flush=True)
        dist.barrier()
    return {
        "rank": rank,
        "records": records,
        "contributed": [],
        "sums": sums,
        "stats": WorkerStats().as_dict(),
        "server": None,
        "values": workload.values,
        "device_cores": device.cores,
        "evaluations": tasks.evaluate(workload, snapshots) if rank == 0 else [],
    }


def _shard(
    plan: Plan, workload: tasks.JobWorkload, device: Device, record: StepRecord, rank: int, pause_us: int
) -> Values:
    """Computes a worker's shard; returns the sum of its gradients, float32[values]."""
    total = np.zeros(workload.values, np.float32)
    for m in range(plan.job.micro_batches):
        if pause_us and m == plan.job.micro_batches // 2:
            start_us = now_us()
            device.sleep_until(start_us + pause_us)
            record.activities.append(Activity("pause", start_us, now_us()))
        start_us = now_us()
        gradient, loss = device.run(workload.micro_batch_size, partial(workload.gradient, record.step, rank, m))
        record.activities.append(Activity("compute", start_us, now_us()))
        total += gradient
        record.losses.append(loss)
        record.pieces.append(Piece(record.step, rank, m, now_us()))
    record.micro_batches = plan.job.micro_batches
    return total
