"""Runs a plan on a backend, and gathers what is needed to repeat it."""

import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.basics.errors import UserError
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
    """Tries before a run what it needs, and refuses what its backend cannot do. Raises: UserError, MissingPartError."""
    require_parts(plan)
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
) -> RunResult:
    """Runs a plan on the backend and the switch that it names (see plan.placed): what it says is what ran.

    Args:
        turns: only these repetitions and policies, of a plan in virtual time.
        log: folder for what connections decide (docs/log.md).

    Raises: UserError, MissingPartError, SaAtpError.
    """
    plan = with_lanes(plan)
    check(plan, plan_path)
    result = RunResult(plan, plan_path, plan.run.backend, plan.switch.program, manifest(plan, plan_path))
    if plan.run.backend == "local":
        result.runs = local.run(plan, folder / "logs", progress, log)
    elif plan.run.backend == "mininet":
        from sa_atp.lab.backends.mininet import run as mininet

        result.runs = mininet.run(plan, Path(plan_path), folder / "logs", progress, log)
    else:
        result.runs = simulated.run(plan, progress, turns, log)
    sort(result)
    return result


def sort(result: RunResult) -> None:
    """Puts the runs as the plan has them, in whatever turn they ran."""
    order = result.plan.run.policies.index
    result.runs.sort(key=lambda run: (run.repetition, order(run.policy), run.job))


def require_parts(plan: Plan) -> None:
    """Looks for what workers would import. Raises: MissingPartError."""
    if plan.job.model == "digits-cnn":
        needs.require_modules(f"job.model = {plan.job.model!r} needs", "torch", "sklearn")
    for policy in plan.run.policies:
        needs.require_modules(f"the policy {policy} needs", *policies.find(policy).modules)


def manifest(plan: Plan, plan_path: str) -> dict[str, Any]:
    """What is needed to repeat a run."""
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
        "program": program_of(plan),
        "commit": commit_of(Path(__file__).resolve().parents[3]),
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": _cpus(),
        "versions": versions,
    }


def program_of(plan: Plan) -> dict[str, Any] | None:
    """The compiled P4 program that switches run, and whether it was made from the sources beside it (None: not known).

    None: no switch runs any.
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


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, with `+changes` if the tree has any; None outside a repository.

    Whoever runs this runs the code of that checkout, so it makes no difference whom the folder belongs to: git, which would
    not read the repository of another user, is told so. It writes nothing there.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-c", f"safe.directory={root}", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
