"""Runs experiments, keeps their results in folders, and loads them again."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import make_folder
from sa_atp.basics.words import plural
from sa_atp.lab import policies as known_policies
from sa_atp.lab import report
from sa_atp.lab.backends import runner
from sa_atp.lab.experiments import progress as shown_progress
from sa_atp.lab.experiments import side_by_side, sweep_points
from sa_atp.lab.experiments.prepared import PlanLike, Prepared, prepare
from sa_atp.lab.experiments.result import Result
from sa_atp.lab.experiments.saved import save
from sa_atp.lab.experiments.sweep import Sweep
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.plan_files import Overrides
from sa_atp.lab.policies.policy import Policy
from sa_atp.lab.runs import run_folder
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult

RUNS = Path("runs")  # folder of results, if the caller names none
SWEEP = "sweep.json"

Policies = Iterable[str | Policy | type[Policy]]


def run(
    plan: PlanLike,
    overrides: Overrides = (),
    *,
    backend: str = "auto",
    switch: str = "auto",
    policies: Policies | None = None,
    out: str | Path | None = None,
    replace: bool = False,
    jobs: int = 1,
    scheduler: str | None = None,
    draw: bool = True,
    log: bool | str | Path | None = None,
    prompt: bool = False,
    progress: bool | Progress = True,
) -> Result:
    """Runs a plan's policies, and keeps data, figures and report.html in a folder, as `sa-atp run` does.

    Args:
        plan: the name of one of the project's own (see `plans`), the path of a plan file, or a Plan.
        overrides: other values for keys of the plan, for example {"run.steps": 8, "help.grade": "clone"}.
        backend: "local" (processes on this machine), "sim" (virtual time), "mininet"; "auto": the plan's.
        switch: the switch that runs the P4 program, "embedded" or "bmv2"; "auto": the plan's.
        policies: names of policies, or policies of your own, in place of the plan's; the first is the baseline.
        out: the folder; default: runs/PLAN-DATE in the current one.
        replace: replace a finished run of another plan in the folder; default: refuse to.
        jobs: number of policies and repetitions that run in parallel, in virtual time.
        scheduler: address of a Dask scheduler whose workers run these, for example "tcp://HOST:8786".
        draw: False: no figures and no report.html, which take some seconds; `sa-atp plot FOLDER` makes them later.
        log: folder for logs of decisions (docs/log.md), a new or an empty one; True: `log` in the run's folder; None:
            nothing is logged.
        prompt: stop at Mininet's prompt before the first step and after the last one; backend "mininet".
        progress: False: nothing is printed.

    Raises: UserError: the input is wrong; MissingPartError: something is not installed; SaAtpError: it went wrong.
    """
    prepared = prepare(plan, overrides, backend=backend, switch=switch, policies=policies)
    found = prepared.plan
    if found.sweep.key:
        raise UserError(f"{prepared.path}: a sweep over {found.sweep.key}: run it with experiment.sweep")
    if prompt and found.run.backend != "mininet":
        raise UserError(
            f"Mininet's prompt: the backend is {found.run.backend}, and only mininet has a network to stop at"
        )
    is_logged = log is not None and log is not False
    beside = side_by_side.check(found, jobs, scheduler, logs=is_logged)
    runner.check(found, prepared.path)
    tell_remarks(prepared.remarks(), progress)
    folder = folder_for(out, prepared.name)
    with run_folder.claimed(folder, run_folder.bytes_needed(found)):
        if not replace:
            report.finished(folder, found)  # one of another plan stays
        logs = _log_folder(log, folder)
        with shown_progress.shown(progress) as telling:
            if beside:
                records = _side_by_side(prepared, folder, telling, jobs, scheduler, logs)
            else:
                records = runner.run(found, prepared.path, folder, telling, log=logs, prompt=prompt)
            records.manifest["command"] = list(prepared.command)
            telling("drawing figures" if draw else "writing data")
            saved = save(records, folder, _teller(progress), draw=draw, log=logs)
    result = Result(records, saved.folder, (*saved.problems, *_wrong(records)), saved.files)
    result.summary = saved.summary
    return result


def _log_folder(wanted: bool | str | Path | None, folder: Path) -> Path | None:
    """Makes the folder for logs of decisions; logs of an earlier run in the run's own folder are removed.

    Args: wanted: see run; "" is the run's own folder, as True. Returns: None: nothing is logged. Raises: UserError: the
    folder has files already.
    """
    if wanted is None or isinstance(wanted, bool) or wanted == "":
        own = folder / "log"
        for path in own.glob("*/*.jsonl"):
            path.unlink(missing_ok=True)
        return own if wanted or wanted == "" else None
    found = Path(wanted)
    make_folder(found)
    if any(found.iterdir()):
        raise UserError(f"--log {wanted}: there is something in this folder: expected an empty one, or a new one")
    return found


def _side_by_side(
    prepared: Prepared, folder: Path, progress: Progress, jobs: int, scheduler: str | None, log: Path | None
) -> RunResult:
    """Runs the policies and repetitions of a plan in parallel."""
    logs = folder / "logs"
    make_folder(logs)
    plans = {"": prepared.plan}
    ((_, found),) = side_by_side.run(plans, prepared.path, logs, progress, jobs=jobs, scheduler=scheduler, log=log)
    return found


def sweep(
    plan: PlanLike,
    values: Mapping[str, Iterable[Any]] | None = None,
    overrides: Overrides = (),
    *,
    figure: str = "",
    repetitions: int | None = None,
    backend: str = "sim",
    switch: str = "auto",
    policies: Policies | None = None,
    out: str | Path | None = None,
    replace: bool = False,
    jobs: int | None = None,
    scheduler: str | None = None,
    draw: bool = True,
    progress: bool | Progress = True,
) -> Sweep:
    """Runs a plan at several values of one key, and keeps each run, and the sweep's table and figure, in a folder.

    If the folder `out` has some of the points already, only the others are run.

    Args:
        values: the key and its values, for example {"straggler.slowdown": [1, 2, 4]}; default: the plan's sweep.
        overrides, switch, policies, out, replace, scheduler, draw, progress: as for `run`.
        figure: the quantity of the figure: "iteration-time", "aggregation", "accuracy", "fairness"; default: the plan's.
        repetitions: number for each policy and value; from two on, means have intervals. In virtual time repetitions differ
            in losses and jitter only: random stragglers follow from run.seed, which a sweep may be over as well.
        backend: as for `run`, but virtual time by default, which is reproducible and can run in parallel.
        jobs: number of parallel runs; default: in virtual time one for each processor, else one.

    Raises: as `run`.
    """
    changed: dict[str, Any] = {"sweep.figure": figure} if figure else {}
    if values is not None:
        key, wanted = _one_key(values)
        changed |= {"sweep.key": key, "sweep.values": wanted}
    if repetitions is not None:
        changed["run.repetitions"] = repetitions
    prepared = prepare(plan, overrides, backend=backend, switch=switch, policies=policies)
    prepared = prepare(prepared, changed)
    if not prepared.plan.sweep.key:
        raise UserError(
            f"{prepared.path}: the plan has no sweep: name a key and its values, for example "
            '{"straggler.slowdown": [1, 2, 4]}'
        )
    if jobs is None:
        jobs = _processors() if _can_share(prepared.plan) else 1
    tell_remarks(prepared.remarks(), progress)
    folder = folder_for(out, prepared.name)
    tell = _teller(progress)
    with shown_progress.shown(progress) as telling:
        found = sweep_points.run(
            prepared, folder, telling, tell, replace=replace, jobs=jobs, scheduler=scheduler, draw=draw
        )
    points = [
        (point.value, Result(records, folder / "points" / point.folder, _wrong(records))) for point, records in found
    ]
    return Sweep(prepared.plan, points, folder)


def load(folder: str | Path) -> Result:
    """Loads a finished run from its folder. Raises: UserError: the folder is not that of a run."""
    folder = Path(folder)
    if is_sweep(folder):
        raise UserError(f"{folder}: the folder of a sweep: experiment.load_sweep reads it")
    records = report.load(folder)
    return Result(records, folder, _wrong(records))


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / SWEEP).is_file()


def load_sweep(folder: str | Path) -> Sweep:
    """Loads a sweep from its folder; an interrupted sweep has its finished points. Raises: UserError."""
    folder = Path(folder)
    path = folder / SWEEP
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        key, figure, values = said["key"], said["figure"], [point["value"] for point in said["points"]]
    except OSError as error:
        raise UserError(f"{folder}: not the folder of a sweep: {SWEEP}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not what a sweep has written ({type(error).__name__}: {error})") from None
    places = {int(place.name.partition("-")[0]): place for place in (folder / "points").glob("[0-9]*-*")}
    points = [(value, load(places[n])) for n, value in enumerate(values) if n in places]
    if not points:
        raise UserError(f"{folder}: no point of the sweep is finished")
    changed = {"sweep.key": key, "sweep.values": values, "sweep.figure": figure}
    return Sweep(plan_files.changed(points[0][1].plan, changed, str(path)), points, folder)


def load_plan(plan: str | Path | Plan, overrides: Overrides = ()) -> Plan:
    """Loads and checks a plan. Args: plan, overrides: as for `run`. Raises: UserError."""
    return prepare(plan, overrides).plan


def policies() -> dict[str, str]:
    """The policies that plans may compare: name and description."""
    return {name: known_policies.find(name).summary for name in known_policies.names()}


def _one_key(values: Any) -> tuple[str, list[Any]]:
    if not isinstance(values, Mapping) or len(values) != 1:
        raise UserError(
            f'values = {values!r}: expected one key and its values, such as {{"straggler.slowdown": [1, 2, 4]}}'
        )
    ((key, wanted),) = values.items()
    if isinstance(wanted, str | Mapping) or not isinstance(wanted, Iterable):
        raise UserError(f"{key} = {wanted!r}: expected several values, in a list")
    found = [plan_files.as_in_toml(value) for value in wanted]
    if not found:
        raise UserError(f"{key} = []: expected at least one value")
    return key, found


def _can_share(plan: Plan) -> bool:
    """Whether the plan's runs can be run in parallel: in virtual time, and with policies that other processes have."""
    return plan.run.backend == "sim" and not known_policies.only_here(plan.run.policies)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def folder_for(out: str | Path | None, name: str) -> Path:
    """Returns the folder that the caller named, or a new name below `RUNS`. Args: name: the plan's."""
    if out is not None:
        return Path(out)
    wanted = RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    found, number = wanted, 1
    while found.exists():
        number += 1
        found = wanted.with_name(f"{wanted.name}-{number}")
    return found


def _teller(progress: bool | Progress) -> Any:
    """Returns the function that is called with lines about figures that could not be drawn."""
    return report.say if progress is not False else _nobody


def tell_remarks(remarks: Iterable[str], progress: bool | Progress) -> None:
    """Says what is to be known of a plan before it runs."""
    for remark in remarks:
        _teller(progress)(remark)


def _nobody(text: str) -> None:
    pass


def _wrong(records: RunResult) -> tuple[str, ...]:
    wrong = sum(each.sums_wrong for each in records.runs)
    return (f"{plural(wrong, 'sum was', 'sums were')} wrong",) if wrong else ()
