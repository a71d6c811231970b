"""Saves a finished run, elsewhere if its folder cannot be written."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.lab.runs.records import RunResult


@dataclass(slots=True)
class Saved:
    """A saved run: its folder and its summary."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line for each thing that could not be written."""
    summary: dict[str, Any] = field(default_factory=dict)


def save(
    result: "RunResult", folder: Path, tell: Callable[[str], None], *, draw: bool = True, log: Path | None = None
) -> Saved:
    """Writes a run's report. If its folder cannot be written, the data goes into a temporary one.

    Args:
        tell: is called with a line about what is left out, and how to get it.
        draw: False: no figures and no page.
        log: folder with the run's logs of decisions, for the timeline; None: there are none.
    """
    from sa_atp.lab import report

    summary = report.summarise(result)
    found = Saved(folder, summary=summary)
    try:
        if draw:
            found.files = report.write_report(result, folder, summary, tell, log)
        else:
            found.files = report.write_data(result, folder, summary, log)
    except report.DrawingError as error:
        found.problems.append(str(error))
    except UserError as error:
        found.problems.append(str(error))
        found.folder = Path(tempfile.mkdtemp(prefix="sa-atp-run-"))
        try:
            report.write_data(result, found.folder, summary, log)
            found.problems.append(f"the data of the run is in {found.folder}: `sa-atp plot {found.folder}` draws it")
        except UserError as again:
            found.problems.append(f"the data of the run is lost: {again}")
    return found
