"""Runs a plan on its backend, and records what is needed to repeat the run."""

import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.basics.checkout import SOURCES, commit_of
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.backends import local, simulated
from sa_atp.lab.plans.capabilities import network_of, too_many_for_packets
from sa_atp.lab.plans.plan import Plan, with_lanes
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.switches import artefacts
from sa_atp.switches.control import tofino

PACKAGES = ("sa_atp", "numpy", "numba", "torch", "scikit-learn", "grpcio", "protobuf", "scapy")


def check(plan: Plan, plan_path: str) -> None:
    """Checks that the plan's backend can run it, and that nothing is missing. Raises: UserError, MissingPartError."""
    require_parts(plan)
    if plan.run.backend != "sim":
        check_processes_have_policies(plan)
    problem = None if plan.run.backend == "sim" else too_many_for_packets(plan)
    if problem is not None:
        raise UserError(f"{plan_path}: {problem}")
    if plan.run.backend == "local":
        local.check(plan)
    elif plan.run.backend == "mininet":
        from sa_atp.lab.backends.mininet import run as mininet

        mininet.check(plan, Path(plan_path))
    else:
        simulated.check(plan)


def run(
    plan: Plan,
    plan_path: str,
    folder: Path,
    progress: Progress,
    turns: Iterable[tuple[int, str]] | None = None,
    log: Path | None = None,
    *,
    prompt: bool = False,
) -> RunResult:
    """Runs a plan on the backend and the switch that it names (see plan.placed).

    Args:
        turns: only these repetitions and policies, for plans in virtual time.
        log: folder for logs of decisions (docs/log.md); None: nothing is logged.
        prompt: stop at Mininet's prompt before the first step, and after the last one.

    Raises: UserError, MissingPartError, SaAtpError.
    """
    said, plan = plan, with_lanes(plan)
    check(plan, plan_path)
    result = RunResult(said, plan_path, plan.run.backend, plan.switch.program, manifest(plan, plan_path))
    if plan.run.backend == "local":
        result.runs = local.run(plan, folder / "logs", progress, log)
    elif plan.run.backend == "mininet":
        from sa_atp.lab.backends.mininet import run as mininet

        if plan.topology.kind == "file":
            result.manifest["worker_mbps"] = mininet.worker_mbps(plan, Path(plan_path))
        result.runs = mininet.run(plan, Path(plan_path), folder / "logs", progress, log, prompt=prompt)
    else:
        result.runs = simulated.run(plan, progress, turns, log)
    sort(result)
    return result


def sort(result: RunResult) -> None:
    """Sorts the runs by the plan's order of repetitions and policies."""
    order = result.plan.run.policies.index
    result.runs.sort(key=lambda run: (run.repetition, order(run.policy), run.job))


def require_parts(plan: Plan) -> None:
    """Checks for the packages that workers import. Raises: MissingPartError."""
    if plan.job.model == "digits-cnn":
        needs.require_modules(f"job.model = {plan.job.model!r} needs", "torch", "sklearn")
    for policy in plan.run.policies:
        needs.require_modules(f"the policy {policy} needs", *policies.find(policy).modules)


def check_processes_have_policies(plan: Plan) -> None:
    """Raises: UserError: other processes are to run a policy that only this one has."""
    if only_here := policies.only_here(plan.run.policies):
        raise UserError(
            f"run.policies: {join(only_here)}: defined in a notebook, or in the program itself, where other processes of "
            "a run cannot find it: put it into a file of its own and import it from there, or run it in virtual time, one "
            'run at a time (backend "sim", jobs 1)'
        )


def manifest(plan: Plan, plan_path: str) -> dict[str, Any]:
    """The manifest: all that is needed to repeat a run."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": ["sa-atp", *sys.argv[1:]],
        "plan_path": plan_path,
        "plan": plan.as_dict(),
        **({"networks": {p: network_of(plan, p) for p in plan.run.policies}} if plan.run.backend == "sim" else {}),
        "seed": plan.run.seed,
        "lanes": plan.lanes,
        "program": program_of(plan),
        "commit": commit_of(SOURCES),
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": _cpus(),
        "versions": versions,
    }


def program_of(plan: Plan) -> dict[str, Any] | None:
    """The compiled P4 program of the switches, and whether it is up to date with its sources (None: not known).

    Returns None if no switch runs a program.
    """
    if plan.run.backend == "sim" and all(network_of(plan, policy) == "flows" for policy in plan.run.policies):
        return None
    if plan.switch.program in tofino.MODELS:
        folder = artefacts.tofino_folder(tofino.MODELS[plan.switch.program], plan.lanes)
    else:
        folder = artefacts.program(plan.lanes, plan.contribution_bits).json_path.parent
    return {"name": folder.name, "made_from_these_sources": artefacts.is_current(folder)}


def _cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))
