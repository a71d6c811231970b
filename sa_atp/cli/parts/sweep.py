"""Runs the points of a sweep, except those that the folder already has."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sa_atp.basics import terminal
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.cli.parts import side_by_side
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.sweep import Point, points, seconds_left
from sa_atp.lab.report.text import digits, duration, policy_name
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult


def run(
    plan: Plan,
    path: str,
    folder: Path,
    progress: Progress,
    *,
    replace: bool = False,
    jobs: int = 1,
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Runs a sweep.

    Args:
    replace: run points again that the folder has from another plan.
    jobs, scheduler: see points.run. More than one job, and a scheduler, are for runs in virtual time.

    Returns: the numbers of the sweep, see report.sweep.table.

    Raises: UserError, MissingPartError, SaAtpError.
    """
    from sa_atp.lab.backends import runner
    from sa_atp.lab.runs import run_folder

    wanted = points(plan, path)
    beside = side_by_side.check(plan, jobs, scheduler)
    for point in wanted:
        runner.check(point.plan, path)
    with run_folder.claimed(folder, sum(run_folder.bytes_needed(point.plan) for point in wanted)):
        done = {point.folder: _finished(folder, point, replace) for point in wanted}
        if beside:
            _run_side_by_side(plan, path, folder, progress, wanted, done, jobs, scheduler)
        return _run_points(plan, path, folder, progress, wanted, done)


def _run_side_by_side(
    plan: Plan,
    path: str,
    folder: Path,
    progress: Progress,
    wanted: Sequence[Point],
    done: dict[str, RunResult | None],
    jobs: int,
    scheduler: str | None,
) -> None:
    """Runs the points that `done` lacks in parallel; writes each as soon as it is complete, and adds it to `done`."""
    from sa_atp.lab import report

    missing = {f"{plan.sweep.key} = {p.value} ({p.folder})": p for p in wanted if done[p.folder] is None}
    progress(f"{len(missing)} of {len(wanted)} points to run")
    plans = {name: point.plan for name, point in missing.items()}
    for name, result in side_by_side.run(plans, path, folder, progress, jobs=jobs, scheduler=scheduler):
        at = missing[name].folder
        try:
            report.write_report(result, folder / "points" / at)
        except report.DrawingError as error:
            print(f"sa-atp: {error}", file=sys.stderr)
        done[at] = result


def _run_points(
    plan: Plan,
    path: str,
    folder: Path,
    progress: Progress,
    wanted: Sequence[Point],
    done: Mapping[str, RunResult | None],
) -> dict[str, Any]:
    from sa_atp.lab import report
    from sa_atp.lab.backends import runner
    from sa_atp.lab.report import sweep

    results: list[tuple[Any, RunResult]] = []
    took: list[tuple[Plan, float]] = []
    for number, point in enumerate(wanted):
        at = folder / "points" / point.folder
        result = done[point.folder]
        if result is None:
            start = time.monotonic()
            left = seconds_left(took, [p.plan for p in wanted[number:]])
            about = f", about {_minutes(left)} left in all" if left is not None else ""
            named = _Named(progress, f"{plan.sweep.key} = {point.value} ({number + 1} of {len(wanted)}{about})")
            result = runner.run(point.plan, path, at, named)
            try:
                report.write_report(result, at)
            except report.DrawingError as error:
                print(f"sa-atp: {error}", file=sys.stderr)
            took.append((point.plan, time.monotonic() - start))
        else:
            progress(f"{plan.sweep.key} = {point.value}: already run")
        results.append((point.value, result))
        numbers = sweep.table(plan, results)
        sweep.write(plan, numbers, folder)
        try:
            with report.drawing(f"sa-atp run {path} --out {folder}"):
                sweep.draw(plan, numbers, folder)
        except MissingPartError:
            pass  # without matplotlib there are numbers, and a line says so
        except report.DrawingError as error:
            print(f"sa-atp: {error}", file=sys.stderr)
    return numbers


class _Named(Progress):
    """Prefixes each progress message with the point."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    def __call__(self, stage: str) -> None:
        self._progress(f"{self._name}: {stage}")

    def steps(self, done: int, of: int) -> None:
        self._progress.steps(done, of)


def _finished(folder: Path, point: Point, replace: bool) -> RunResult | None:
    """The result of a point, if the folder has it. Raises: UserError: it is of another plan, and `replace` is False."""
    from sa_atp.lab import report

    try:
        return report.finished(folder / "points" / point.folder, point.plan)
    except UserError:
        if not replace:
            raise
        return None


def finished_points(folder: Path) -> int:
    """How many points of a sweep are finished."""
    return len(list((folder / "points").glob("*/run.json")))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def print_numbers(plan: Plan, numbers: dict[str, Any], folder: Path, console: Console | None = None) -> None:
    """Prints a row for each point and a column for each policy."""
    from sa_atp.lab.report.sweep import QUANTITIES, label

    console = console or terminal.console()
    is_time = QUANTITIES[plan.sweep.figure][0].is_time
    table = Table(box=None, pad_edge=False)
    table.add_column(numbers["key"])
    for policy in plan.run.policies:
        table.add_column(policy_name(policy), justify="right")
    for point in numbers["points"]:
        cells = [point["policies"].get(policy, {}) for policy in plan.run.policies]
        table.add_row(label(point["value"], numbers["key"]), *(_cell(cell, is_time) for cell in cells))
    if "all" in numbers:
        table.add_row("all", *(_cell(numbers["all"].get(policy, {}), is_time) for policy in plan.run.policies))
    console.print(numbers["quantity"].capitalize(), style="bold")
    terminal.print_table(console, table)
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
