"""Runs the points of a sweep, one by one or in parallel, except those that the folder has already."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.lab import report
from sa_atp.lab.backends import runner
from sa_atp.lab.experiments import side_by_side
from sa_atp.lab.experiments.prepared import Prepared
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.sweep import Point, points, seconds_left
from sa_atp.lab.report import sweep
from sa_atp.lab.runs import run_folder
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult


def run(
    prepared: Prepared,
    folder: Path,
    progress: Progress,
    tell: Callable[[str], None],
    *,
    replace: bool = False,
    jobs: int = 1,
    scheduler: str | None = None,
    draw: bool = True,
) -> list[tuple[Point, RunResult]]:
    """Runs the points that the folder lacks, and writes sweep.json and sweep.png there.

    Args:
        tell: is called with a line about each figure that could not be drawn.
        draw: False: no figures, and no report.html for points.
        replace: run points again that the folder has from another plan.
        jobs, scheduler: see points.run. More than one job, and a scheduler, are for runs in virtual time.

    Returns: all points, with their results. Raises: UserError, MissingPartError, SaAtpError.
    """
    wanted = points(prepared.plan, prepared.path)
    beside = side_by_side.check(prepared.plan, jobs, scheduler)
    for point in wanted:
        runner.check(point.plan, prepared.path)
        if beside:
            runner.check_processes_have_policies(point.plan)
    with run_folder.claimed(folder, sum(run_folder.bytes_needed(point.plan) for point in wanted)):
        done = {point.folder: _finished(folder, point, replace) for point in wanted}
        for point in wanted:
            if done[point.folder] is not None:
                progress(f"{prepared.plan.sweep.key} = {point.value}: already run")
        sweep_run = _SweepRun(prepared, folder, progress, tell, draw=draw)
        if beside:
            sweep_run.side_by_side(wanted, done, jobs, scheduler)
        return sweep_run.one_by_one(wanted, done)


class _SweepRun:
    def __init__(
        self, prepared: Prepared, folder: Path, progress: Progress, tell: Callable[[str], None], *, draw: bool
    ) -> None:
        self.prepared = prepared
        self.plan = prepared.plan
        self.folder = folder
        self.progress = progress
        self.tell = tell
        self.draw = draw

    def side_by_side(
        self, wanted: Sequence[Point], done: dict[str, RunResult | None], jobs: int, scheduler: str | None
    ) -> None:
        """Runs the points that `done` lacks in parallel; writes each as soon as it is complete, and adds it to `done`."""
        missing = {f"{self.plan.sweep.key} = {p.value} ({p.folder})": p for p in wanted if done[p.folder] is None}
        self.progress(f"{len(missing)} of {len(wanted)} points to run")
        plans = {name: point.plan for name, point in missing.items()}
        found = side_by_side.run(plans, self.prepared.path, self.folder, self.progress, jobs=jobs, scheduler=scheduler)
        for name, result in found:
            self._write(missing[name], result)
            done[missing[name].folder] = result

    def one_by_one(self, wanted: Sequence[Point], done: dict[str, RunResult | None]) -> list[tuple[Point, RunResult]]:
        """Runs the points that `done` lacks, and writes the sweep's table and figure after each."""
        found: list[tuple[Point, RunResult]] = []
        took: list[tuple[Plan, float]] = []
        for number, point in enumerate(wanted):
            result = done[point.folder]
            if result is None:
                start = time.monotonic()
                left = seconds_left(took, [p.plan for p in wanted[number:] if done[p.folder] is None])
                about = f", about {_minutes(left)} left in all" if left is not None else ""
                name = f"{self.plan.sweep.key} = {point.value} ({number + 1} of {len(wanted)}{about})"
                result = runner.run(point.plan, self.prepared.path, self._place(point), _Named(self.progress, name))
                self._write(point, result)
                took.append((point.plan, time.monotonic() - start))
            found.append((point, result))
            self._write_sweep(found)
        return found

    def _place(self, point: Point) -> Path:
        return self.folder / "points" / point.folder

    def _write(self, point: Point, result: RunResult) -> None:
        result.manifest["command"] = list(self.prepared.command)
        if not self.draw:
            report.write_data(result, self._place(point))
            return
        try:
            report.write_report(result, self._place(point), tell=self.tell)
        except report.DrawingError as error:
            self.tell(str(error))

    def _write_sweep(self, found: Sequence[tuple[Point, RunResult]]) -> None:
        """Writes the sweep's table and figure, of the points so far."""
        numbers = sweep.table(self.plan, [(point.value, result) for point, result in found])
        sweep.write(self.plan, numbers, self.folder)
        if not self.draw:
            return
        try:
            with report.drawing(f"sa-atp run {self.prepared.path} --out {self.folder}"):
                sweep.draw(self.plan, numbers, self.folder)
        except MissingPartError:
            pass  # without matplotlib there are numbers, and a line says so
        except report.DrawingError as error:
            self.tell(str(error))


class _Named(Progress):
    """Prefixes each progress message with the point."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    def __call__(self, stage: str) -> None:
        self._progress(f"{self._name}: {stage}")

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        self._progress.steps(done, of, unit)


def _finished(folder: Path, point: Point, replace: bool) -> RunResult | None:
    """The result of a point, if the folder has it. Raises: UserError: it is of another plan, and `replace` is False."""
    try:
        return report.finished(folder / "points" / point.folder, point.plan)
    except UserError:
        if not replace:
            raise
        return None


def finished_points(folder: Path) -> int:
    """Number of finished points of a sweep in a folder."""
    return len(list((folder / "points").glob("*/run.json")))


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
