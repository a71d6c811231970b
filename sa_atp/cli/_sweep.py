"""Runs the points of a sweep one by one; those that a folder has already are not run again."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sa_atp.errors import MissingPartError, UserError
from sa_atp.report.text import digits, duration, policy_name
from sa_atp.testbed.plan import Plan
from sa_atp.testbed.progress import Progress
from sa_atp.testbed.records import RunResult
from sa_atp.testbed.sweep import Point, points, seconds_left


def run(plan: Plan, path: str, folder: Path, progress: Progress) -> dict[str, Any]:
    """Returns: the numbers of the sweep, see report.sweep.table. Raises: UserError, MissingPartError, SaAtpError."""
    from sa_atp import report
    from sa_atp.report import sweep
    from sa_atp.testbed import runner

    wanted = points(plan, path)
    for point in wanted:
        runner.check(point.plan, path)
    results: list[tuple[Any, RunResult]] = []
    took: list[tuple[Plan, float]] = []
    for number, point in enumerate(wanted):
        at = folder / "points" / point.folder
        result = _finished(at, point)
        if result is None:
            start = time.monotonic()
            left = seconds_left(took, [p.plan for p in wanted[number:]])
            about = f", about {_minutes(left)} left in all" if left is not None else ""
            named = _Named(progress, f"{plan.sweep.key} = {point.value} ({number + 1} of {len(wanted)}{about})")
            result = runner.run(point.plan, path, at, named)
            report.write_report(result, at)
            took.append((point.plan, time.monotonic() - start))
        else:
            progress(f"{plan.sweep.key} = {point.value}: was run before")
        results.append((point.value, result))
        numbers = sweep.table(plan, results)
        sweep.write(plan, numbers, folder)
        with contextlib.suppress(MissingPartError):  # without matplotlib there are numbers, and a line says so
            sweep.draw(plan, numbers, folder)
    return numbers


class _Named(Progress):
    """Puts the point before what a run tells."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    def __call__(self, stage: str) -> None:
        self._progress(f"{self._name}: {stage}")

    def steps(self, done: int, of: int) -> None:
        self._progress.steps(done, of)


def _finished(folder: Path, point: Point) -> RunResult | None:
    """The result of a point that has been run. Raises: UserError: it is not what is wanted."""
    from sa_atp import report

    if not (folder / "run.json").is_file():
        return None
    found = report.load(folder)
    if (found.backend, found.switch) != (point.plan.run.backend, point.plan.switch.program):
        raise UserError(
            f"{folder} was run by --backend {found.backend} --switch {found.switch}: choose another --out, or remove it"
        )
    if found.plan != point.plan:
        raise UserError(f"{folder} is of another plan: choose another --out, or remove it")
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def print_numbers(plan: Plan, numbers: dict[str, Any], folder: Path, console: Console | None = None) -> None:
    """A row a point, a column a policy."""
    from sa_atp.report.sweep import QUANTITIES, label

    console = console or Console()
    is_time = QUANTITIES[plan.sweep.figure][0].is_time
    table = Table(box=None, pad_edge=False)
    table.add_column(numbers["key"])
    for policy in plan.run.policies:
        table.add_column(policy_name(policy), justify="right")
    for point in numbers["points"]:
        cells = [point["policies"].get(policy, {}) for policy in plan.run.policies]
        table.add_row(label(point["value"], numbers["key"]), *(_cell(cell, is_time) for cell in cells))
    console.print(f"{numbers['quantity'].capitalize()}", style="bold")
    console.print(table)
    console.print(f"Figure:   {folder / 'sweep.png'}")
    console.print(f"Data:     {folder / 'sweep.json'}; each point: {folder / 'points'}/")


def _cell(found: dict[str, Any], is_time: bool) -> str:
    """A mean and half of its 95 % interval."""
    if found.get("mean") is None:
        return "–"
    write = duration if is_time else digits
    half = f" ± {write((found['ci95'][1] - found['ci95'][0]) / 2)}" if found["ci95"] else ""
    return f"{write(found['mean'])}{half}"


def wrong_sums(numbers: dict[str, Any]) -> int:
    return sum(p["sums_wrong"] for point in numbers["points"] for p in point["policies"].values())


def as_json(numbers: dict[str, Any], folder: Path) -> str:
    return json.dumps({**numbers, "folder": str(folder)})
