"""Runs in virtual time side by side: each policy of each repetition of each plan by itself.

Such a run is a function of its plan, so what comes of it is the same bytes as if all ran in a row.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.plan_files import parse_tables
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult


def check(plan: Plan, jobs: int, scheduler: str | None, *, logs: bool = False) -> bool:
    """Whether a plan is to run so. Args: logs: what is decided is to be logged. Raises: UserError: that cannot be."""
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least 1")
    if jobs == 1 and not scheduler:
        return False
    if scheduler and logs:
        raise UserError("--log is for runs on this machine: leave out --scheduler, or --log")
    if plan.run.backend != "sim":
        raise UserError(
            f"--{'scheduler' if scheduler else 'jobs'} is for --backend sim: runs of the backend {plan.run.backend} "
            "are measured on this machine, and would disturb each other"
        )
    return True


def run(
    plans: Mapping[str, Plan],
    path: str,
    logs: Path,
    progress: Progress,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    log: Path | None = None,
) -> Iterator[tuple[str, RunResult]]:
    """Runs plans that have names, and gives each one's result as soon as all of it is there.

    Args:
        path: of the plan file.
        logs: an existing folder.
        jobs, scheduler: see runs.points.run.
        log: folder for what connections decide, if there is one plan.

    Raises: UserError, MissingPartError, SaAtpError.
    """
    from sa_atp.lab.backends import runner
    from sa_atp.lab.report import archive
    from sa_atp.lab.runs import points

    owner, tasks = {}, []
    missing = dict.fromkeys(plans, 0)
    for name, plan in plans.items():
        tables = plan.as_dict()
        for repetition, policy in plan.run.turns():
            turn = f"{name}{', ' if name else ''}{policy}, repetition {repetition + 1} of {plan.run.repetitions}"
            owner[turn] = name
            missing[name] += 1
            arguments = {"plan": tables, "path": path, "turn": [repetition, policy]}
            arguments |= {} if log is None else {"log": str(log.absolute())}
            tasks.append(points.Point(turn, "sa_atp.cli.parts.side_by_side:run_turn", arguments))
    results: dict[str, RunResult] = {}
    left = len(tasks)
    progress(f"{left} runs in virtual time")
    for task, encoded in points.run(tasks, logs, jobs=jobs, scheduler=scheduler):
        left -= 1
        progress(f"{task.name}: done, {left} left")
        name, part = owner[task.name], archive.decode(encoded)
        whole = results.setdefault(name, part)
        if whole is not part:
            whole.runs += part.runs
        missing[name] -= 1
        if not missing[name]:
            runner.sort(whole)
            whole.manifest["command"] = ["sa-atp", *sys.argv[1:]]
            yield name, whole


def run_turn(arguments: dict[str, Any]) -> Any:
    """Runs one policy once, where it is called; see points. Returns: what archive.encode makes of its result."""
    from sa_atp.lab.backends import runner
    from sa_atp.lab.report import archive

    plan = parse_tables(arguments["plan"], arguments["path"])
    repetition, policy = arguments["turn"]
    log = Path(arguments["log"]) if "log" in arguments else None
    result = runner.run(plan, arguments["path"], Path(), Progress(), [(int(repetition), str(policy))], log)
    return archive.encode(result)
