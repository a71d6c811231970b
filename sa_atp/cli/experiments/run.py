"""`sa-atp run`: runs a plan and reports it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics import terminal
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.cli.parts import metrics_option

if TYPE_CHECKING:
    from sa_atp.lab.experiments.prepared import Prepared

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
                        help="runs in virtual time (of a policy, repetition, point) in parallel (default: 1)")  # fmt: skip
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="Dask scheduler whose workers run these, for example tcp://HOST:8786")  # fmt: skip
    parser.add_argument("--log", nargs="?", const="", metavar="DIR",
                        help="log decisions of ranks and of the parameter server (docs/log.md) in an empty or new folder "
                        "(without DIR: `log` in the folder for the results), and show them in timeline.json")  # fmt: skip
    parser.add_argument("--cli", action="store_true",
                        help="with --backend mininet: stop at Mininet's prompt before the first step and after the "
                        "last one")  # fmt: skip
    metrics_option.add(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.set_defaults(run=run, waits="loading packages")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab.experiments.prepared import prepare

    prepared = prepare(
        options.plan,
        options.overrides,
        backend=options.backend,
        switch=options.switch,
        command=["sa-atp", *sys.argv[1:]],
    )
    if options.cli and (options.json or prepared.plan.sweep.key):
        raise UserError("--cli: a run of one point, without --json: standard output is the prompt's")
    if options.log is not None and prepared.plan.sweep.key:
        raise UserError("--log is for one point: name it with --set, and leave out the plan's sweep")
    if options.metrics is not None and prepared.plan.run.backend == "sim":
        raise UserError("--metrics: a run in virtual time has no processes to look at: use --backend local or mininet")
    from sa_atp.net.watching import looking

    with metrics_option.serving(options.metrics, lambda: looking.look(children_of=os.getpid())) as metrics:
        if metrics is not None:
            terminal.say(f"sa-atp run: metrics at {metrics}")
        return run_sweep(options, prepared) if prepared.plan.sweep.key else run_once(options, prepared)


def run_once(options: argparse.Namespace, prepared: "Prepared") -> int:
    from sa_atp import experiment
    from sa_atp.lab.report.table import print_table

    result = experiment.run(
        prepared,
        out=options.out,
        replace=options.replace,
        jobs=options.jobs,
        scheduler=options.scheduler,
        log=options.log,
        prompt=options.cli,
    )
    if options.json:
        print(json.dumps({**result.summary, "folder": str(result.folder)}))
    else:
        print_table(result.records, summary=result.summary)
        print_paths(result.folder, result.files)
    for problem in result.problems:
        print(f"sa-atp: {problem}", file=sys.stderr)
    return 1 if result.problems else 0


def run_sweep(options: argparse.Namespace, prepared: "Prepared") -> int:
    """Runs the points of a sweep that the folder does not have yet."""
    from sa_atp import experiment
    from sa_atp.cli.parts import sweep
    from sa_atp.lab.experiments.run import folder_for
    from sa_atp.lab.experiments.sweep_points import finished_points

    folder = folder_for(options.out, prepared.name)
    try:
        found = experiment.sweep(
            prepared,
            backend="auto",
            out=folder,
            replace=options.replace,
            jobs=options.jobs,
            scheduler=options.scheduler,
        )
    except KeyboardInterrupt:
        done = finished_points(folder)
        if done:
            of = len(prepared.plan.sweep.values)
            said = f"{plural(done, 'point')} of {of} finished, in {folder}: `--out {folder}` goes on"
        else:
            said = "no point is finished"
        print(f"sa-atp: {said}", file=sys.stderr)
        raise
    if options.json:
        print(sweep.as_json(found.numbers, folder))
    else:
        sweep.print_numbers(prepared.plan, found.numbers, folder)
    wrong = sweep.wrong_sums(found.numbers)
    if wrong:
        print(f"sa-atp: {plural(wrong, 'sum was', 'sums were')} wrong", file=sys.stderr)
    return 1 if wrong else 0


def print_paths(folder: Path, written: Sequence[Path]) -> None:
    """Prints where the report, figures and data are."""
    if not written:
        return
    page = next((path for path in written if path.name == "report.html"), None)
    figures = [path.name for path in written if path.suffix == ".png"]
    data = [path.name for path in written if path.suffix not in (".png", ".html")]
    if page is not None:
        print(f"Report:   {page}")
    if figures:
        print(f"Figures:  {folder}/: {', '.join(figures)}")
    print(f"Data:     {folder}/: {', '.join(data)}")
