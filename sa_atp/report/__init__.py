"""What a run leaves in its folder: data, figures, a timeline and a page, all drawn from a `RunResult`."""

import sys
from pathlib import Path

from sa_atp.errors import MissingPartError
from sa_atp.report import figures, files, html
from sa_atp.report.files import load
from sa_atp.report.style import INSTALL
from sa_atp.report.summary import summarise
from sa_atp.testbed.records import RunResult

__all__ = ["draw", "load", "summarise", "write_report"]


def write_report(result: RunResult, folder: Path) -> list[Path]:
    """Writes everything into a folder, which is made if it is not there.

    Without matplotlib, everything but the figures is written, and a line on standard error says how to get it.

    Returns: the files. Raises: UserError if the folder cannot be written.
    """
    folder = Path(folder)
    written = files.write_data(result, folder)
    try:
        return written + draw(result, folder)
    except MissingPartError:
        print(f"sa-atp: no figures: matplotlib is not installed: {INSTALL}", file=sys.stderr)
        left_out = {kind.name: f"matplotlib is not installed: {INSTALL}" for kind in figures.FIGURES}
        return [*written, files.write_text(folder / "report.html", html.render(result, (), left_out))]


def draw(result: RunResult, folder: Path) -> list[Path]:
    """Draws figures and report.html. Raises: MissingPartError without matplotlib; UserError as `write_report`."""
    drawn, left_out = figures.draw_all(result, folder)
    captions = {kind.name: kind.caption for kind in figures.FIGURES}
    page = html.render(result, [(path, captions[path.name]) for path in drawn], left_out)
    return [*drawn, files.write_text(folder / "report.html", page)]
