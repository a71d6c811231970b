"""Runs a map: its points side by side, those that the folder has already not again, and its files."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import needs
from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import read_json
from sa_atp.basics.words import one_of, plural
from sa_atp.lab.backends import runner
from sa_atp.lab.experiments import progress as shown_progress
from sa_atp.lab.experiments.prepared import PlanLike, prepare
from sa_atp.lab.experiments.run import Policies, folder_for, tell_remarks
from sa_atp.lab.maps import figure as map_figure
from sa_atp.lab.maps.axes import parse
from sa_atp.lab.maps.numbers import as_csv, as_json, numbers
from sa_atp.lab.maps.points import Wanted
from sa_atp.lab.maps.sentences import sentences
from sa_atp.lab.plans.plan_files import Overrides
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.files import write_text
from sa_atp.lab.reproduce.reproduce import stamp
from sa_atp.lab.runs import run_folder
from sa_atp.lab.runs.points import Kept
from sa_atp.lab.runs.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS = 3
QUANTITIES = ("iteration", "accuracy")
NUMBERS, TABLE = "map.json", "map.csv"
POINTS = "points"  # the folder of finished runs
SPACE_BYTES = 20_000_000

AxisLike = str | Mapping[str, Iterable[Any]]
"""`NAME=VALUE,VALUE,...`, or a mapping of one name to its values; a named axis may go without values."""


class Map:
    """A finished map."""

    def __init__(self, found: dict[str, Any], folder: Path) -> None:
        self.numbers = found
        """The contents of map.json (docs/cli.md)."""
        self.folder = folder
        """The folder with map.json, map.csv and the pictures."""

    @property
    def sentences(self) -> list[str]:
        """The map in sentences: which policy is the shortest where, and by how much."""
        return sentences(self.numbers)

    @property
    def problems(self) -> list[str]:
        """A sentence if sums were wrong. Usually empty."""
        wrong = self.numbers["sums_wrong"]
        return [f"{plural(wrong, 'sum was', 'sums were')} wrong"] if wrong else []

    def figure(self, *, paper: bool = False) -> "Figure":
        """The picture, as a Matplotlib figure. Args: paper: for a column. Raises: MissingPartError."""
        return map_figure.figure(self.numbers, style.PAPER if paper else style.SCREEN)

    def to_pandas(self) -> Any:
        """The rows of map.csv as a DataFrame: a time for each point, policy and seed. Raises: MissingPartError."""
        needs.require_modules("to_pandas needs", "pandas")
        import pandas as pd

        return pd.read_csv(io.StringIO(as_csv(self.numbers)), quoting=csv.QUOTE_MINIMAL)

    def __repr__(self) -> str:
        axes = ", ".join(f"{self.numbers[axis]['name']}" for axis in ("x", "y"))
        return f"Map({str(self.folder)!r}: {axes}; {plural(len(self.numbers['points']), 'point')})"


def run(
    plan: PlanLike,
    x: AxisLike = "severity",
    y: AxisLike = "compute-to-send",
    overrides: Overrides = (),
    *,
    quantity: str = "iteration",
    seeds: int = SEEDS,
    policies: Policies | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    draw: bool = True,
    progress: bool | Progress = True,
) -> Map:
    """Draws a map: which policy is the shortest at each point of two axes of a plan, by how much, and how clearly.

    All points run in virtual time, on flows (docs/flow-model.md), or on packets if links lose some anywhere on the map, or
    the plan's sim.network is "packets". If the folder `out` has some of the runs already, only the others are run.

    Args:
        plan, overrides, policies, out, scheduler: as for `experiment.run`; the first policy is the baseline.
        x, y: the axes: a key of plans or a named axis with its values, for example {"topology.workers": [4, 8]} or
            "severity=1,2,4"; a named axis alone has values of its own.
        quantity: "iteration": mean time of a step; "accuracy": time until the held-out accuracy reaches the plan's
            run.target_accuracy.
        seeds: number of seeds at each point, from the plan's run.seed on.
        jobs: number of parallel runs; default: one for each processor.
        draw: False: no pictures.
        progress: False: nothing is printed.

    Raises: UserError: the input is wrong; MissingPartError: something is not installed; SaAtpError: it went wrong.
    """
    if quantity not in QUANTITIES:
        raise UserError(f"quantity = {quantity!r}: {one_of(quantity, QUANTITIES)}")
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: expected at least 1")
    prepared = prepare(plan, overrides, backend="sim", policies=policies)
    wanted = Wanted(prepared, parse(x, "--x"), parse(y, "--y"), seeds, quantity)
    runner.check_processes_have_policies(prepared.plan)
    tasks = wanted.tasks()
    tell_remarks(prepared.remarks(wanted.x.name, wanted.y.name), progress)
    if draw:
        style.require_matplotlib()
    folder = folder_for(out, f"map-{prepared.name}")
    names = {point.name: key for key, point in tasks.items()}
    with run_folder.claimed(folder, SPACE_BYTES), shown_progress.shown(progress) as telling:
        telling("runs in virtual time")
        kept, results = Kept(folder / POINTS, stamp()), {}
        for point, result in kept.run(list(tasks.values()), jobs=jobs, scheduler=scheduler):
            results[names[point.name]] = result
            telling.steps(len(results), len(tasks), "runs")
        found = Map(numbers(wanted, results), folder)
        write(found, draw=draw)
    return found


def write(found: Map, *, draw: bool = True) -> list[Path]:
    """Writes the files of a map. Raises: UserError, MissingPartError."""
    written = [
        write_text(found.folder / NUMBERS, as_json(found.numbers)),
        write_text(found.folder / TABLE, as_csv(found.numbers)),
    ]
    return [*written, *map_figure.draw(found.numbers, found.folder)] if draw else written


def load(folder: str | Path) -> Map:
    """Loads a map from its folder. Raises: UserError: the folder is not that of a map."""
    path = Path(folder) / NUMBERS
    found = read_json(path)
    if not isinstance(found, dict) or found.get("schema") != 1 or "points" not in found:
        raise UserError(f"{path}: not what `sa-atp map` has written")
    return Map(found, Path(folder))
