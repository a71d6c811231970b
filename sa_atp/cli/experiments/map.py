"""`sa-atp map`: which policy has the shortest step, or reaches an accuracy first, over two axes of a plan."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "map",
        help="draw which policy is the shortest, over two axes of a plan",
        description="Runs a plan's policies in virtual time at each point of two axes, and draws which has the shortest "
        "step, by how much, and where the difference is within the spread over seeds. An axis is a key of plans, or one "
        "of severity, compute-to-send, workers, loss, static (docs/cli.md). Exit status 1: a sum was wrong.",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="a plan file, or the name of one of the project's")
    for option, default in (("--x", "severity"), ("--y", "compute-to-send")):
        parser.add_argument(option, default=default, metavar="NAME[=VALUE,...]",
                            help="an axis: severity=1,2,4 or topology.workers=4,8 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--to-accuracy", action="store_true",
                        help="compare the time to run.target_accuracy (default: the mean time of a step)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds at each point (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override a key of the plan, for example help.grade=clone; may be repeated")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default: runs/map-PLAN-DATE)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs in parallel (default: one for each processor)")
    parser.add_argument("--scheduler", metavar="ADDRESS",
                        help="Dask scheduler whose workers run them, for example tcp://HOST:8786")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    parser.set_defaults(run=run, waits="loading packages")


def run(options: argparse.Namespace) -> int:
    from sa_atp import experiment
    from sa_atp.lab.experiments.run import folder_for

    folder = folder_for(options.out, f"map-{options.plan.stem}")
    try:
        found = experiment.map(
            options.plan,
            options.x,
            options.y,
            options.overrides,
            quantity="accuracy" if options.to_accuracy else "iteration",
            seeds=options.seeds,
            out=folder,
            jobs=options.jobs,
            scheduler=options.scheduler,
        )
    except KeyboardInterrupt:
        print(f"sa-atp: `--out {folder}` goes on from what is finished", file=sys.stderr)
        raise
    if options.json:
        print(json.dumps({**found.numbers, "sentences": found.sentences, "folder": str(found.folder)}))
    else:
        for sentence in found.sentences:
            print(f"- {sentence}")
        print(f"Pictures: {folder}/: map.png, map.svg")
        print(f"Data:     {folder}/: map.json, map.csv")
    for problem in found.problems:
        print(f"sa-atp: {problem}", file=sys.stderr)
    return 1 if found.problems else 0
