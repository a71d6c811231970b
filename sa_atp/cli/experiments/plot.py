"""`sa-atp plot`: draws the figures of a finished run or sweep again, or for use elsewhere."""

import argparse
import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.lab.report.drawing.style import Style

FIGURES = "figures"  # folder in that of the run, for figures that are not those of its report
LEAST_IN, MOST_IN = 1.5, 40.0
LEAST_DPI, MOST_DPI = 20, 2400
FORMATS = ("png", "svg", "pdf")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="redraw the figures of a finished run or sweep",
        description="Draws the figures and report.html of a finished run, or the figure of a sweep, again, from the data "
        "in its folder, and prints their paths. With names of figures or any option it draws figures for use elsewhere; "
        "what the run has written stays as it is.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `sa-atp run --out DIR` has written")
    parser.add_argument("names", nargs="*", metavar="FIGURE",
                        help="only these: iteration_time (means), over_steps (time of each step), who_did_what (each "
                        "worker's mean time), timeline (a few steps), training (accuracy over time), loss, and of a sweep "
                        "iteration-time, aggregation, accuracy, fairness (default: the one of its plan)")  # fmt: skip
    parser.add_argument("--paper", action="store_true",
                        help="for a column of a paper: 3.3x2.4 inches, small text, no title, as PDF")  # fmt: skip
    parser.add_argument("--size", type=_size, metavar="WIDTH[xHEIGHT]",
                        help="of each figure, in inches, as 3.4 or 7x5 (default: 10, as high as it wants)")  # fmt: skip
    parser.add_argument("--no-title", action="store_true", help="without titles")
    parser.add_argument("--dpi", type=_dpi, metavar="N", help="pixels per inch of png (default: 120; with --paper 300)")
    parser.add_argument("--format", choices=FORMATS, help="of the figures' files (default: png; with --paper pdf)")
    parser.add_argument("--policies", metavar="NAME,...", help="only these policies; the first one is the baseline")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"where figures go (default: DIR/{FIGURES})")
    parser.set_defaults(run=run, waits="drawing the figures")


def run(options: argparse.Namespace) -> int:
    from sa_atp.lab import report
    from sa_atp.lab.experiments.run import is_sweep
    from sa_atp.lab.report.drawing import figures

    look, suffix = _look(options), options.format or ("pdf" if options.paper else "png")
    if options.dpi and suffix != "png":
        raise UserError(f"--dpi {options.dpi}: {suffix} has no pixels; it is for --format png")
    policies = None if options.policies is None else _names(options.policies)
    given = (options.names, options.paper, options.size, options.no_title, options.dpi, options.format, options.out)
    is_again = not any(given) and policies is None
    if is_sweep(options.folder):
        return _plot_sweep(options, look, suffix, policies, is_again)
    result = report.load(options.folder)
    if is_again:
        for path in report.draw(result, options.folder):
            print(path)
        return 0
    kinds = [figures.find(name) for name in options.names] or figures.FIGURES
    if policies is not None:
        result = report.selected(result, policies)
    written, left_out = figures.write(result, options.out or options.folder / FIGURES, kinds, look, suffix)
    for each in written:
        print(each.path)
    for name, why in left_out.items():
        _left_out(name, why)
    return 1 if left_out and options.names else 0


def _plot_sweep(
    options: argparse.Namespace, look: "Style", suffix: str, policies: list[str] | None, is_again: bool
) -> int:
    """Draws figures of a sweep. Args: is_again: draw its own figure, in its place."""
    from sa_atp.lab.experiments.run import load_sweep
    from sa_atp.lab.report import sweep
    from sa_atp.lab.report.drawing import style

    found = load_sweep(options.folder)
    if is_again:
        print(sweep.draw(found.plan, found.numbers, options.folder))
        return 0
    if policies is not None:
        found = found.selected(policies)
    status = 0
    for name in options.names or [found.plan.sweep.figure]:
        path = (options.out or options.folder / FIGURES) / f"{name}.{suffix}"
        try:
            print(style.save(found.drawn(name.replace("_", "-"), look), path))
        except style.NothingToDrawError as why:
            status = _left_out(path.name, why)
    return status


def _left_out(name: str, why: object) -> int:
    print(f"sa-atp: {name} is not drawn: {why}", file=sys.stderr)
    return 1


def _look(options: argparse.Namespace) -> "Style":
    from sa_atp.lab.report.drawing.style import PAPER, SCREEN

    look = PAPER if options.paper else SCREEN
    if options.size:
        look = dataclasses.replace(look, width_in=options.size[0], height_in=options.size[1] or look.height_in)
    return dataclasses.replace(look, has_title=look.has_title and not options.no_title, dpi=options.dpi or look.dpi)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"--policies {text}: expected names of policies with commas between them, each once")
    return names


def _dpi(text: str) -> int:
    if not text.isdecimal() or not LEAST_DPI <= int(text) <= MOST_DPI:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {LEAST_DPI} to {MOST_DPI}")
    return int(text)


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
