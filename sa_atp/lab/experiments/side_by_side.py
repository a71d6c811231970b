"""Runs plans in virtual time in parallel: each policy of each repetition is a task.

A run in virtual time is a function of its plan, so the results are the same bytes as those of sequential runs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import runner
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.plan_files import parse_tables
from sa_atp.lab.report import archive
from sa_atp.lab.runs import points
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult


def check(plan: Plan, jobs: int, scheduler: str | None, *, logs: bool = False) -> bool:
    """Checks options of parallel runs. Args: logs: whether decisions are to be logged.

    Returns: whether the user asked for parallel runs. Raises: UserError: the plan's backend is not virtual time, or logs
    would be on other machines.
    """
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
    runner.check_processes_have_policies(plan)
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
    """Runs named plans, and yields each plan's result as soon as it is complete.

    Args:
        path: the plan file.
        logs: an existing folder.
        jobs, scheduler: see runs.points.run.
        log: folder for logs of decisions, if there is one plan; None: nothing is logged.

    Raises: UserError, MissingPartError, SaAtpError.
    """
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
            tasks.append(points.Point(turn, "sa_atp.lab.experiments.side_by_side:run_turn", arguments))
    results: dict[str, RunResult] = {}
    progress("runs in virtual time")
    for done, (task, encoded) in enumerate(points.run(tasks, logs, jobs=jobs, scheduler=scheduler), 1):
        progress.steps(done, len(tasks), "runs")
        name, part = owner[task.name], archive.decode(encoded)
        whole = results.setdefault(name, part)
        if whole is not part:
            whole.runs += part.runs
        missing[name] -= 1
        if not missing[name]:
            runner.sort(whole)
            yield name, whole


def run_turn(arguments: dict[str, Any]) -> Any:
    """Runs one policy once, in the calling process. Returns: its result, encoded by `report.archive`."""
    plan = parse_tables(arguments["plan"], arguments["path"])
    repetition, policy = arguments["turn"]
    log = Path(arguments["log"]) if "log" in arguments else None
    result = runner.run(plan, arguments["path"], Path(), Progress(), [(int(repetition), str(policy))], log)
    return archive.encode(result)
