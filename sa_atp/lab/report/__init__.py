"""What a run leaves in its folder: data, figures, a timeline and a page, all drawn from a `RunResult`."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from sa_atp.basics.errors import MissingPartError, SaAtpError
from sa_atp.lab.report import files, html
from sa_atp.lab.report.drawing import figures
from sa_atp.lab.report.drawing.style import INSTALL
from sa_atp.lab.report.files import finished, load, write_data
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.records import RunResult

__all__ = ["DrawingError", "draw", "drawing", "finished", "load", "summarise", "write_data", "write_report"]


class DrawingError(SaAtpError):
    """The data is written; what is drawn from it could not be."""


@contextlib.contextmanager
def drawing(again: str) -> Iterator[None]:
    """Whatever goes wrong while something is drawn is a DrawingError: what was run is none the worse for it.

    Args: again: a command that draws it anew. MissingPartError stays what it is.
    """
    try:
        yield
    except MissingPartError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, SaAtpError) else f"{type(error).__name__}: {error}"
        raise DrawingError(f"not drawn: {what}; the data is written, and `{again}` draws it again") from error


def write_report(result: RunResult, folder: Path, log: Path | None = None) -> list[Path]:
    """Writes everything into a folder, which is made if it is not there: first the data, then what is drawn from it.

    Without matplotlib, everything but the figures is written, and a line on standard error says how to get it.

    Args: log: see write_data.
    Returns: the files. Raises: UserError: the data cannot be written. DrawingError: it is written.
    """
    folder = Path(folder)
    written = write_data(result, folder, log)
    with drawing(f"sa-atp plot {folder}"):
        try:
            return written + draw(result, folder)
        except MissingPartError:
            print(f"sa-atp: no figures: matplotlib is not installed: {INSTALL}", file=sys.stderr)
            left_out = {kind.name: f"matplotlib is not installed: {INSTALL}" for kind in figures.FIGURES}
            return [*written, files.write_text(folder / "report.html", html.render(result, (), left_out))]


def draw(result: RunResult, folder: Path) -> list[Path]:
    """Draws figures and report.html. Raises: MissingPartError without matplotlib; UserError as `write_report`."""
    drawn, left_out = figures.draw_all(result, folder)
    page = html.render(result, drawn, left_out)
    return [*(figure.path for figure in drawn), files.write_text(folder / "report.html", page)]
