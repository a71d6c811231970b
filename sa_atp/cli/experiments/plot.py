"""`sa-atp plot`: draws the figures of a finished run again."""

import argparse
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="redraw the figures of a finished run",
        description="Draws the figures and report.html of a finished run again, from the data in its folder, "
        "and prints their paths.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `sa-atp run --out DIR` has written")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab import report

    for path in report.draw(report.load(options.folder), options.folder):
        print(path)
    return 0
