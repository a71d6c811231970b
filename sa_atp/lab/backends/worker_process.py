"""A worker of a run as a process: it reads tasks from standard input, a JSON object a line, and answers likewise.

It stays alive between policies, because importing PyTorch takes longer than most runs. It writes records to a file that the
task names, so it works in any place: here, in a namespace, or on another host.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from sa_atp.basics.arrays import Exponents, Integers
from sa_atp.basics.errors import SaAtpError
from sa_atp.lab import policies
from sa_atp.lab.backends import gloo, peer_process
from sa_atp.lab.parameters import client as parameter_client
from sa_atp.lab.runs.tasks import (
    evaluate,
    host_of,
    make_shared_device,
    make_workload,
    plan_of,
    run_steps,
    straggler_pattern,
)
from sa_atp.net.communicator import Communicator
from sa_atp.net.connecting import connect
from sa_atp.net.garbage_collection import freeze_loaded_objects
from sa_atp.net.loop.compiled import connection_kernels, pair_kernels, socket_kernels
from sa_atp.steps.fingerprint import Fingerprint
from sa_atp.steps.pairing import travelled
from sa_atp.steps.real_time import CommunicatorHost
from sa_atp.steps.step_record import StepRecord

JOIN_S = 30.0


class Checker:
    """Hashes contributions and sums in a thread, while devices are idle."""

    def __init__(self, values: int, contributions: int) -> None:
        self.contributed: list[tuple[int, int, int, int]] = []  # (step, shard, micro-batch, hash)
        self.sums: list[tuple[int, int]] = []  # (step, hash)
        self._fingerprint = Fingerprint(values)
        self._contributions = contributions
        self._work: queue.SimpleQueue[tuple[StepRecord, Integers, Exponents] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sa-atp-checker", daemon=True)
        self._thread.start()

    def add(self, record: StepRecord, integers: Integers, exponents: Exponents) -> None:
        self._work.put((record, integers.copy(), exponents.copy()))

    def finish(self) -> None:
        """Waits until all is hashed. Raises: Exception: it could not be, for lack of memory for example."""
        self._work.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._hash_all()
        except Exception as error:
            self._failure = error

    def _hash_all(self) -> None:
        # low priority, so that checking does not disturb measurements
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while (item := self._work.get()) is not None:
            record, integers, exponents = item
            self.sums.append((record.step, self._fingerprint.of_integers(integers)))
            for shard, m, gradient in record.computed:
                hashed = self._fingerprint.of_contribution(gradient, exponents, self._contributions)
                self.contributed.append((record.step, shard, m, hashed))
            record.computed.clear()


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Runs one policy on this worker. Returns: its records as JSON-able data; times are those of net.clock."""
    return FAMILIES[policies.find(str(task["policy"])).family](task)


def train_by_sums(task: dict[str, Any]) -> dict[str, Any]:
    """Trains under a policy whose sums are made by the switch or a parameter server; see `train`."""
    plan = plan_of(task)
    rank, policy = int(task["rank"]), policies.switch_policy(str(task["policy"]))
    pattern = straggler_pattern(plan)
    workload = make_workload(plan, int(task["repetition"]))
    workload.gradient(0, rank, 0)  # excludes PyTorch's one-time initialisation from the measurement
    device = make_shared_device(plan, rank, policy.most_parallel(plan))
    with connect(
        task["server"],
        job=task["job"],
        rank=rank,
        world_size=plan.topology.workers,
        micro_batches=plan.job.micro_batches,
        help=policy.help_grade(plan).value,
        seats=policy.seats(plan),
        cut_off=policy.cut_off(plan),
        log=task.get("log"),
        timeout_s=JOIN_S * (plan.straggler.slowdown if plan.job.device == "cpu" else 1.0),
    ) as comm:
        checker = Checker(workload.values, comm.membership.contributions)
        host = host_of(plan, CommunicatorHost(comm), int(task["repetition"]))
        stepper = policy.stepper(host, workload, plan, pause_us=lambda step: pattern.pause_us_of(step, rank))
        _meet(comm)

        def took(record: StepRecord, sum_: Any) -> None:
            if sum_.finished is not None:
                record.computed = travelled(sum_, record.computed)
                checker.add(record, *sum_.finished.integers())

        try:
            records, snapshots = run_steps(plan, rank, device, stepper, workload, took)
        except SaAtpError:
            print(comm.describe(), file=sys.stderr, flush=True)
            raise
        checker.finish()
        stats = comm.stats().as_dict()
        counted = comm.job_stats().result() if rank == 0 else None
    return {
        "rank": rank,
        "records": records,
        "contributed": checker.contributed,
        "sums": checker.sums,
        "stats": stats,
        "shares_memory": comm.shares_memory,
        "server": None if counted is None else asdict(counted),
        "values": workload.values,
        "device_cores": device.cores,
        "evaluations": evaluate(workload, snapshots) if rank == 0 else [],
    }


def _meet(comm: Communicator) -> None:
    """A barrier: waits for all workers; with fewer seats than workers, for the first ones. Raises: TransportError."""
    member, sum_ = comm.membership, comm.begin(1)
    if bits := member.map.bits_of_seat(member.rank) & member.fan_in:
        comm.contribute(sum_, [np.zeros(1, np.float32)], bits)
    sum_.future.result()


FAMILIES: Mapping[policies.Family, Callable[[dict[str, Any]], dict[str, Any]]] = {
    policies.Family.SWITCH: train_by_sums,
    policies.Family.PEERS: peer_process.train,
    policies.Family.PARAMETERS: parameter_client.train,
}
"""By family of policies: the function that trains."""


def prepare(task: dict[str, Any]) -> dict[str, Any]:
    """Loads and compiles in advance: data, models, PyTorch, and the kernels of connections."""
    plan = plan_of(task)
    say(f"loading the model {plan.job.model} and its data")
    make_workload(plan, 0).gradient(0, 0, 0)
    if any(policies.find(policy).family is policies.Family.SWITCH for policy in plan.run.policies):
        say("loading kernels (compiled the first time)")
        connection_kernels()
        socket_kernels()
        if plan.job.bits != 32:
            pair_kernels()
    if "gloo" in plan.run.policies:
        gloo.load()
    freeze_loaded_objects()
    return {}


def say(text: str) -> None:
    """Writes the current activity to the log, where a waiting process reads it."""
    print(f"sa-atp worker: {text}", file=sys.stderr, flush=True)


def _write(path: Path, found: dict[str, Any]) -> None:
    """Raises: SaAtpError."""
    try:
        path.write_text(json.dumps(found))
    except OSError as error:
        raise SaAtpError(f"{path}: cannot be written: {error.strerror}") from None


def serve(tasks: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> int:
    """Answers tasks until standard input ends. Args: tasks: by kind: the function that answers."""
    # Three threads share the interpreter; by default, a computing one may delay the others by 5 ms.
    sys.setswitchinterval(0.0005)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        try:
            _write(Path(task["out"]), tasks[task.get("kind", "train")](task))
            answer: dict[str, Any] = {"done": True}
        except SaAtpError as error:
            answer = {"done": False, "error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve({"train": train, "prepare": prepare}))
