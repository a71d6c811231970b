"""`sa-atp run`: runs a plan and reports it."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural

if TYPE_CHECKING:
    from sa_atp.lab.plans.plan import Plan
    from sa_atp.lab.runs.progress import Progress
    from sa_atp.lab.runs.records import RunResult

BACKENDS = ("auto", "local", "mininet", "sim")
SWITCHES = ("auto", "embedded", "bmv2", "tofino-model", "tofino2-model")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a plan and report it",
        description="Runs a plan's policies side by side, and leaves data, figures, a timeline and report.html in a "
        "folder. Exit status 1: a sum was wrong.",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="a plan file, or the name of one of the project's")
    parser.add_argument("--backend", choices=BACKENDS, default="auto",
                        help="where it runs (default: what the plan says, else local)")  # fmt: skip
    parser.add_argument("--switch", choices=SWITCHES, default="auto",
                        help="what runs the P4 program (default: what the plan says, else embedded)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default: runs/PLAN-DATE)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a key of the plan, for example help.grade=clone; may be repeated")  # fmt: skip
    parser.add_argument("--replace", action="store_true",
                        help="replace a finished run of another plan in the folder (default: refuse to)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="policies, repetitions, points that run at a time, in virtual time (default: 1)")  # fmt: skip
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="Dask scheduler whose workers run these, for example tcp://HOST:8786")  # fmt: skip
    parser.add_argument("--log", nargs="?", const="", metavar="DIR",
                        help="log what ranks and the parameter server decide (docs/log.md) into an empty or new folder "
                        "(without DIR: `log` in the folder for the results), and show it in timeline.json")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.cli.parts import side_by_side
    from sa_atp.cli.parts.progress import TerminalProgress
    from sa_atp.cli.parts.results import save
    from sa_atp.lab import report
    from sa_atp.lab.backends import runner
    from sa_atp.lab.plans import plan as plans
    from sa_atp.lab.plans import plan_files
    from sa_atp.lab.report.table import print_table
    from sa_atp.lab.runs import run_folder
    from sa_atp.switches import artefacts

    path = artefacts.plan_file(options.plan)
    plan = plans.placed(plan_files.load(path, options.overrides), options.backend, options.switch)
    folder = options.out or Path("runs") / f"{options.plan.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    beside = side_by_side.check(plan, options.jobs, options.scheduler, logs=options.log is not None)
    if plan.sweep.key and options.log is not None:
        raise UserError("--log is for one point: name it with --set, and leave out the plan's sweep")
    if plan.sweep.key:
        return run_sweep(options, plan, path, folder)
    runner.check(plan, str(path))
    with run_folder.claimed(folder, run_folder.bytes_needed(plan)):
        if not options.replace:
            report.finished(folder, plan)  # one of another plan stays
        log = log_folder(options.log, folder)
        with TerminalProgress() as progress:
            if beside:
                result = run_side_by_side(options, plan, path, folder, progress, log)
            else:
                result = runner.run(plan, str(path), folder, progress, log=log)
            progress("drawing figures")
            saved = save(result, folder, log)
    summary = report.summarise(result)
    if options.json:
        print(json.dumps({**summary, "folder": str(saved.folder)}))
    else:
        print_table(result)
        print_paths(saved.folder, saved.files)
    wrong = sum(policy["sums_wrong"] for policy in summary["policies"].values())
    problems = [*saved.problems, *([f"{plural(wrong, 'sum was', 'sums were')} wrong"] if wrong else [])]
    for problem in problems:
        print(f"sa-atp: {problem}", file=sys.stderr)
    return 1 if problems else 0


def log_folder(wanted: str | None, folder: Path) -> Path | None:
    """Where logs go; what an earlier run has left of its own there is removed. Args: wanted: as --log says.

    Returns: None: nothing is logged. Raises: UserError: something is there that is not ours.
    """
    from sa_atp.basics.folders import make_folder

    if wanted is None or wanted == "":
        own = folder / "log"
        for path in own.glob("*/*.jsonl"):
            path.unlink(missing_ok=True)
        return None if wanted is None else own
    found = Path(wanted)
    make_folder(found)
    if any(found.iterdir()):
        raise UserError(f"--log {wanted}: there is something in this folder: expected an empty one, or a new one")
    return found


def run_side_by_side(
    options: argparse.Namespace, plan: "Plan", path: Path, folder: Path, progress: "Progress", log: Path | None
) -> "RunResult":
    """Runs the policies and repetitions of a plan."""
    from sa_atp.basics.folders import make_folder
    from sa_atp.cli.parts import side_by_side

    logs = folder / "logs"
    make_folder(logs)
    ((_, result),) = side_by_side.run(
        {"": plan}, str(path), logs, progress, jobs=options.jobs, scheduler=options.scheduler, log=log
    )
    return result


def run_sweep(options: argparse.Namespace, plan: "Plan", path: Path, folder: Path) -> int:
    """Runs the points of a sweep that the folder does not have yet."""
    from sa_atp.cli.parts import sweep
    from sa_atp.cli.parts.progress import TerminalProgress

    try:
        with TerminalProgress() as progress:
            numbers = sweep.run(
                plan,
                str(path),
                folder,
                progress,
                replace=options.replace,
                jobs=options.jobs,
                scheduler=options.scheduler,
            )
    except KeyboardInterrupt:
        done = sweep.finished_points(folder)
        if done:
            said = (
                f"{plural(done, 'point')} of {len(plan.sweep.values)} finished, in {folder}: `--out {folder}` goes on"
            )
        else:
            said = "no point is finished"
        print(f"sa-atp: {said}", file=sys.stderr)
        raise
    if options.json:
        print(sweep.as_json(numbers, folder))
    else:
        sweep.print_numbers(plan, numbers, folder)
    wrong = sweep.wrong_sums(numbers)
    if wrong:
        print(f"sa-atp: {plural(wrong, 'sum was', 'sums were')} wrong", file=sys.stderr)
    return 1 if wrong else 0


def print_paths(folder: Path, written: list[Path]) -> None:
    """Where to look."""
    if not written:
        return
    page = next((path for path in written if path.name == "report.html"), None)
    figures = [path.name for path in written if path.suffix == ".png"]
    data = [path.name for path in written if path.suffix not in (".png", ".html")]
    print(f"Report:   {page}")
    print(f"Figures:  {folder}/: {', '.join(figures)}")
    print(f"Data:     {folder}/: {', '.join(data)}")
