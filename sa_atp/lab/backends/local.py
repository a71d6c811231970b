"""The local backend: switch, parameter server and workers as processes on one machine, over UDP loopback, without root."""

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sa_atp.lab import policies
from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, LocalCluster, server_address
from sa_atp.lab.backends.peer_switch import LocalPeer, PeerSwitch
from sa_atp.lab.peers.peer import Peer
from sa_atp.lab.plans.capabilities import check_settings
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.expected import expected_step_s
from sa_atp.lab.runs.processes import Group, Process, ProcessError, stopped, wait_for
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.lab.runs.tasks import imports_of, job_name

SECONDS_OF_GRACE = 60.0
# one thread each: the workers share the cores, and emulate their devices
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def check(plan: Plan) -> None:
    """Refuses plans that loopback cannot run. Raises: UserError."""
    check_settings(plan, "local")


def run(plan: Plan, folder: Path, progress: Progress, log: Path | None = None) -> list[PolicyRun]:
    """Runs all policies and repetitions of a plan.

    Args:
        folder: for the output of processes.
        progress: called with the current stage.
        log: folder for logs of decisions; None: nothing is logged.

    Raises: ProcessError, TransportError.
    """
    check(plan)
    folder.mkdir(parents=True, exist_ok=True)
    with Group(progress, together=True) as group:
        progress("starting switch, parameter server and workers")
        services = cluster(plan, group, folder, log)
        peers = LocalPeer(group, folder) if any(map(peer_of, plan.run.policies)) else None
        parameters = plain = None
        if any(map(keeps_parameters, plan.run.policies)):
            parameters = _serve(group, folder / "params.log", "server of parameters", "params")
        workers = [
            group.start(
                f"worker {rank}",
                ["sa_atp.lab.backends.worker_process"],
                folder / f"worker{rank}.log",
                ENVIRONMENT,
                forked=imports_of(plan),
            )
            for rank in range(plan.topology.workers)
        ]
        if any(map(is_summed_by_server, plan.run.policies)):
            options = ["--lanes", str(plan.lanes), "--contributions", str(plan.contribution_bits)]
            options += [] if log is None else ["--log", str(log)]
            plain = _serve(group, folder / "plain-ps.log", "plain parameter server", "ps", *options)
        host, port = services.ready()
        if peers is not None:
            peers.ready()
        for worker in workers:
            worker.answer(READY_TIMEOUT_S)
        summing = (host, port) if plain is None else server_address(plain)
        address = "" if parameters is None else "{}:{}".format(*server_address(parameters))
        prepare(plan, workers)
        runs = []
        for repetition, policy in plan.run.turns():
            progress(f"{policy}, repetition {repetition + 1} of {plan.run.repetitions}")
            server = "udp://{}:{}".format(*(summing if is_summed_by_server(policy) else (host, port)))
            common = {
                "repetition": repetition,
                "server": server,
                "job": job_name(policy, repetition),
                "log": None if log is None else str(log.absolute()),
                "key": secrets.token_hex(),
                "parameters": address,
                "peer_job": job_of_peer(plan, policy, peers),
            }
            tasks = [(worker, {**common, "rank": rank}) for rank, worker in enumerate(workers)]
            raw = run_policy(plan, policy, tasks, folder, progress)
            runs.append(collect(plan, policy, repetition, raw))
        return runs


def cluster(plan: Plan, group: Group, folder: Path, log: Path | None = None) -> LocalCluster:
    """A switch and a parameter server with the plan's settings. Args: folder, log: see run."""
    return LocalCluster(
        group,
        folder,
        lanes=plan.lanes,
        contributions=plan.contribution_bits,
        slots=plan.switch.slots,
        slots_per_job=plan.switch.slots_per_job,
        log=log,
        shares=plan.switch.shared_memory,
    )


def _serve(group: Group, log: Path, name: str, command: str, *options: str) -> Process:
    """Starts a server, without waiting until it is ready. Args: log: of its output."""
    return group.start(name, ["sa_atp", command, "--listen", f"{LOOPBACK}:0", *options], log, forked=())


def is_summed_by_server(name: str) -> bool:
    """Whether a parameter server makes a policy's sums, not a switch."""
    policy = policies.find(name)
    return isinstance(policy, policies.SwitchPolicy) and policy.aggregates_at == "server"


def peer_of(name: str) -> Peer | None:
    """The protocol on a switch of its own that makes a policy's sums; None: there is none."""
    policy = policies.find(name)
    return policy.peer if isinstance(policy, policies.PeerPolicy) else None


def job_of_peer(plan: Plan, name: str, peers: PeerSwitch | None) -> dict[str, Any] | None:
    """A new job for a policy's protocol; None: it has none. Raises: ControlError."""
    peer = peer_of(name)
    if peer is None or peers is None:
        return None
    policy = policies.peer_policy(name)
    return peers.new_job(
        peer,
        plan.topology.workers,
        lanes=policy.lanes(plan),
        slots=policy.slots(plan),
        timeout_us=policy.timeout_us(plan),
    )


def keeps_parameters(name: str) -> bool:
    """Whether a policy's parameters are on a server of their own."""
    return policies.find(name).family is policies.Family.PARAMETERS


def prepare(plan: Plan, workers: Sequence[Process]) -> None:
    """Has all workers load and compile what the plan needs, concurrently. Raises: ProcessError."""
    for worker in workers:
        worker.tell({"kind": "prepare", "plan": plan.as_dict(), "out": os.devnull})
    for worker in workers:
        answer = worker.answer(READY_TIMEOUT_S)
        if not answer.get("done"):
            raise ProcessError(f"{worker.name}: {answer.get('error')}")


def run_policy(
    plan: Plan,
    policy: str,
    tasks: Sequence[tuple[Process, dict[str, Any]]],
    folder: Path,
    progress: Progress,
    begin: Callable[[int], None] = lambda step: None,
) -> list[dict[str, Any]]:
    """Has workers run one repetition of a policy.

    Args:
        tasks: each worker, and its task beside plan and policy: rank, server, job, repetition and so on.
        begin: called with each step that a worker 0 begins, but the first.

    Returns: their records, in the same order. Raises: ProcessError.
    """

    def on_step(step: int) -> None:
        progress.steps(step, plan.run.steps)
        begin(step)

    common = {"policy": policy, "plan": plan.as_dict()}
    whole = [(worker, {**task, **common}) for worker, task in tasks]
    return run_tasks(f"policy {policy}", whole, folder, expected_step_s(plan) + SECONDS_OF_GRACE, on_step)


def run_tasks(
    what: str,
    tasks: Sequence[tuple[Process, dict[str, Any]]],
    folder: Path,
    longest_s: float,
    on_step: Callable[[int], None] = lambda step: None,
) -> list[dict[str, Any]]:
    """Gives each worker a task, and waits until all are done.

    Args:
        what: with what the messages of errors begin.
        longest_s: until one of them has done a step.
        on_step: called with each step that a worker tells.

    Returns: what they found, in the same order. Raises: ProcessError.
    """
    files = [folder / f"records-{n}.json" for n in range(len(tasks))]
    for file, (worker, task) in zip(files, tasks, strict=True):
        worker.tell({**task, "out": str(file)})
    deadline = time.monotonic() + longest_s
    waiting = [worker for worker, _ in tasks]
    while waiting:
        heard = wait_for(waiting, deadline - time.monotonic())
        if not heard:
            names = ", ".join(worker.name for worker in waiting) + stopped(waiting)
            raise ProcessError(f"{what}: no step in {longest_s:.0f} s; waiting for {names}; logs are in {folder}")
        for worker in heard:
            worker.pump()
            while worker.has_answer:
                answer = worker.answer(0.0)
                deadline = (
                    time.monotonic() + longest_s
                )  # on a busy machine steps may be slow, but every step extends the deadline
                if "step" in answer:
                    on_step(answer["step"])
                    continue
                if not answer.get("done"):
                    raise ProcessError(f"{what}, {worker.name}: {answer.get('error')}{stopped([worker])}")
                waiting.remove(worker)
    found = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return found
