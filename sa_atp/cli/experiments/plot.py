"""`sa-atp plot`: draws the figures of a finished run again, or for use elsewhere."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError

FIGURES = "figures"  # folder in that of the run, for figures that are not those of its report
LEAST_IN, MOST_IN = 2.0, 40.0
FORMATS = ("png", "svg", "pdf")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="redraw the figures of a finished run",
        description="Draws the figures and report.html of a finished run again, from the data in its folder, and prints "
        "their paths. With --format, --size, --policies or --out it draws figures for use elsewhere, and leaves the report "
        "as it is.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `sa-atp run --out DIR` has written")
    parser.add_argument("--format", choices=FORMATS, help="of the figures' files (default: png)")
    parser.add_argument("--size", type=_size, metavar="WIDTH[xHEIGHT]",
                        help="of each figure, in inches, as 3.4 or 7x5 (default: 10, as high as it wants)")  # fmt: skip
    parser.add_argument("--policies", metavar="NAME,...", help="only these policies; the first one is the baseline")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where figures go (default: DIR/{FIGURES})")
    parser.set_defaults(run=run, waits="drawing the figures")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab import report
    from sa_atp.lab.report.drawing import figures, style

    result = report.load(options.folder)
    if not any((options.format, options.size, options.policies is not None, options.out)):
        for path in report.draw(result, options.folder):
            print(path)
        return 0
    if options.policies is not None:
        result = report.selected(result, _names(options.policies))
    layout = style.of_size(*options.size) if options.size else style.WIDE
    folder = options.out or options.folder / FIGURES
    written, left_out = figures.write(result, folder, layout=layout, suffix=options.format or "png")
    for path in written:
        print(path)
    for name, why in left_out.items():
        print(f"sa-atp: {name} is not drawn: {why}", file=sys.stderr)
    return 0


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"--policies {text}: expected names of policies with commas between them, each once")
    return names


def _size(text: str) -> tuple[float, float]:
    """Width and height in inches; a height of 0: none was said."""
    try:
        width, _, height = text.partition("x")
        found = float(width), float(height) if "x" in text else 0.0
    except ValueError:
        found = math.nan, math.nan
    said = found if "x" in text else found[:1]
    if not all(LEAST_IN <= value <= MOST_IN for value in said):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a width in inches, or WIDTHxHEIGHT, of {LEAST_IN:g} to {MOST_IN:g}"
        )
    return found
