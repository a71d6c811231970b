"""The report of a run: data files, figures, a timeline and an HTML page, all made from a `RunResult`."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, SaAtpError, UserError
from sa_atp.basics.words import meant
from sa_atp.lab.report import files, html
from sa_atp.lab.report.drawing import figures
from sa_atp.lab.report.drawing.style import INSTALL
from sa_atp.lab.report.files import finished, load, write_data
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.records import RunResult

__all__ = [
    "DrawingError",
    "draw",
    "drawing",
    "finished",
    "load",
    "say",
    "selected",
    "summarise",
    "write_data",
    "write_report",
]


class DrawingError(SaAtpError):
    """The data of a run is written, but its figures or page could not be drawn."""


@contextlib.contextmanager
def drawing(again: str) -> Iterator[None]:
    """Turns every error in the block into a DrawingError, but for MissingPartError.

    Args: again: a command that draws the report again.
    """
    try:
        yield
    except MissingPartError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, SaAtpError) else f"{type(error).__name__}: {error}"
        raise DrawingError(f"not drawn: {what}; the data is written, and `{again}` draws it again") from error


def say(text: str) -> None:
    """Prints a line on standard error, as commands do."""
    print(f"sa-atp: {text}", file=sys.stderr)


def write_report(
    result: RunResult,
    folder: Path,
    summary: dict[str, Any] | None = None,
    tell: Callable[[str], None] = say,
    log: Path | None = None,
) -> list[Path]:
    """Writes a report into a folder, which it makes if necessary: first the data, then figures and page.

    Args:
        summary: the run's, if it is computed already.
        tell: is called with a line about how to get matplotlib and jinja2, without which figures and page are left out.
        log: see write_data.

    Returns: the files. Raises: UserError: the data cannot be written. DrawingError: only drawing failed.
    """
    folder, summary = Path(folder), summary or summarise(result)
    written = write_data(result, folder, summary, log)
    with drawing(f"sa-atp plot {folder}"):
        try:
            return written + draw(result, folder, summary)
        except MissingPartError as missing:
            tell(str(missing))
            left_out = {f"{kind.name}.png": f"matplotlib is not installed: {INSTALL}" for kind in figures.FIGURES}
            with contextlib.suppress(MissingPartError):
                written.append(files.write_text(folder / "report.html", html.render(result, (), left_out, summary)))
    return written


def selected(result: RunResult, names: Sequence[str]) -> RunResult:
    """A run with only some of its policies; the first one is the baseline. Raises: UserError: it has no such policy."""
    known = list(dict.fromkeys(run.policy for run in result.runs))
    for name in names:
        if name not in known:
            raise UserError(f"policy {name!r}: the run has {', '.join(known) or 'none'}{meant(name, known)}")
    plan = replace(result.plan, run=replace(result.plan.run, policies=tuple(names)))
    return replace(result, plan=plan, runs=[run for run in result.runs if run.policy in names])


def draw(result: RunResult, folder: Path, summary: dict[str, Any] | None = None) -> list[Path]:
    """Draws figures and report.html, and removes the files of figures for which the run has no data.

    Raises: MissingPartError without matplotlib or jinja2; UserError as `write_report`.
    """
    needs.require_modules("figures and report.html need", "matplotlib", "jinja2")
    drawn, left_out = figures.write(result, folder, figures.FIGURES)
    for name in left_out:
        (folder / name).unlink(missing_ok=True)
    page = html.render(result, drawn, left_out, summary)
    return [*(figure.path for figure in drawn), files.write_text(folder / "report.html", page)]
