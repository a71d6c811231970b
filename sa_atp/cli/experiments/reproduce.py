"""`sa-atp reproduce`: the papers' headline results beside ours."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sa_atp.basics.words import plural


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="the papers' headline results beside ours, on one page",
        description="Runs plans for each headline result in virtual time, and writes one page: the paper's number, ours, "
        "the settings, and the spread over seeds; and SwitchML's protocol beside this project's. Exit status 1: a sum was "
        "wrong.",
    )
    parser.add_argument(
        "--only", metavar="NAME", help="one part: sa-atp, falcon, boa, boa-thesis, trio-ml or protocols (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="DIR",
                        help="folder for the page (default: %(default)s)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs in parallel (default: %(default)s)")
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="Dask scheduler whose workers run them, for example tcp://HOST:8786")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="S",
                        help="seed that tunes learning rates; results use the next (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of results (default: %(default)s)")
    parser.add_argument("--steps", type=int, metavar="N",
                        help="steps of each run (default: those of its setting)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    parser.set_defaults(run=run, waits="loading packages")


def run(options: argparse.Namespace) -> int:
    from sa_atp.basics import terminal
    from sa_atp.lab.experiments.progress import TerminalProgress
    from sa_atp.lab.reproduce import page as reproduce_page
    from sa_atp.lab.reproduce import protocols, reproduce

    asked = reproduce.wanted(options.only, options.seed, options.seeds, options.steps)
    try:
        with TerminalProgress() as progress:
            numbers, written = reproduce.run(
                asked, options.out, progress, jobs=options.jobs, scheduler=options.scheduler
            )
    except KeyboardInterrupt:
        done = len(list((options.out / reproduce.POINTS).glob("*.json")))
        there = f"{plural(done, 'run is', 'runs are')} in {options.out}: the same command goes on from there"
        print(f"sa-atp: {there if done else 'no run is finished'}", file=sys.stderr)
        raise
    if options.json:
        print(json.dumps({**numbers, "folder": str(options.out)}))
    else:
        console = terminal.console()
        if numbers["headlines"]:
            terminal.print_table(console, reproduce_page.table(numbers))
        if "protocols" in numbers:
            terminal.print_table(console, protocols.table(numbers["protocols"]))
        # --only protocols has no figure
        for what, path in zip(("Page:", "Numbers:", "Figure:"), written, strict=False):
            print(f"{what:<10}{path}")
    if numbers["sums_wrong"]:
        print(f"sa-atp: {plural(numbers['sums_wrong'], 'sum was', 'sums were')} wrong", file=sys.stderr)
        return 1
    return 0
