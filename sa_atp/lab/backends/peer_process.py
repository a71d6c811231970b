"""A worker's run under a policy whose sums are a library's, or another protocol's on a switch."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab import policies
from sa_atp.lab.backends import gloo
from sa_atp.lab.backends.peer_sockets import PeerConnection, job_of
from sa_atp.lab.runs import tasks
from sa_atp.net.clock import now_us
from sa_atp.protocol.rank.events import WorkerStats
from sa_atp.steps.fingerprint import of_floats
from sa_atp.steps.plain_step import PlainStepper


@contextmanager
def _summing(
    task: dict[str, Any], policy: policies.PeerPolicy, rank: int, counted: WorkerStats
) -> Iterator[gloo.AllReduce]:
    """The policy's all-reduce. Args: counted: gets the number of packets in the end."""
    if policy.peer is None:
        with gloo.summing(task, rank, int(task["world_size"])) as all_reduce:
            yield all_reduce
        return
    with closing(PeerConnection(policy.peer, rank, job_of(task["peer_job"]))) as connection:
        connection.all_reduce(np.zeros(1, np.float32))  # a barrier
        yield connection.all_reduce
        counted.fragments_sent = connection.transport.sent
        counted.retransmitted = connection.transport.retransmitted


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Runs the policy on this worker. Returns: as `worker_process.train`; its sums are hashes of float32 results."""
    rank, plan = int(task["rank"]), tasks.plan_of(task)
    policy = policies.peer_policy(str(task["policy"]))
    pattern = tasks.straggler_pattern(plan)
    workload = tasks.make_workload(plan, int(task["repetition"]))
    device = tasks.make_device(plan)
    sums: list[tuple[int, int]] = []
    workload.gradient(0, rank, 0)
    counted = WorkerStats()
    with _summing({**task, "world_size": plan.topology.workers}, policy, rank, counted) as all_reduce:

        def sum_now(values: Values) -> "Future[Values]":
            found: Future[Values] = Future()
            found.set_result(all_reduce(values))
            return found

        stepper = PlainStepper(
            rank,
            workload,
            plan.job.micro_batches,
            sum_now,
            now_us=now_us,
            pause_us=lambda step: pattern.pause_us_of(step, rank),
        )
        records, snapshots = tasks.run_steps(
            plan, rank, device, stepper, workload, lambda record, total: sums.append((record.step, of_floats(total)))
        )
    return {
        "rank": rank,
        "records": records,
        "contributed": [],
        "sums": sums,
        "stats": counted.as_dict(),
        "server": None,
        "values": workload.values,
        "device_cores": device.cores,
        "evaluations": tasks.evaluate(workload, snapshots) if rank == 0 else [],
    }
