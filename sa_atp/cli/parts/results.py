"""Saves a finished run, elsewhere if its folder cannot be written."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.lab.runs.records import RunResult


@dataclass(slots=True)
class Saved:
    """Where a run was saved."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A line for each thing that could not be written."""


def save(result: "RunResult", folder: Path, summary: dict[str, Any]) -> Saved:
    """Writes a run's report. If its folder cannot be written, the data goes into a temporary one."""
    from sa_atp.lab import report

    found = Saved(folder)
    try:
        found.files = report.write_report(result, folder, summary)
    except report.DrawingError as error:
        found.problems.append(str(error))
    except UserError as error:
        found.problems.append(str(error))
        found.folder = Path(tempfile.mkdtemp(prefix="sa-atp-run-"))
        try:
            report.write_data(result, found.folder, summary)
            found.problems.append(f"the data of the run is in {found.folder}: `sa-atp plot {found.folder}` draws it")
        except UserError as again:
            found.problems.append(f"the data of the run is lost: {again}")
    return found
