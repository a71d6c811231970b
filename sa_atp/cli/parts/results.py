"""What becomes of a run that is over: its folder, and what is said if that cannot be written."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sa_atp.basics.errors import UserError

if TYPE_CHECKING:
    from sa_atp.lab.runs.records import RunResult


@dataclass(slots=True)
class Saved:
    """Where a run is."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be written, a line each."""


def save(result: "RunResult", folder: Path, log: Path | None = None) -> Saved:
    """Writes a run's report. Its data goes into a temporary folder where its own cannot be written any more.

    Args: log: what connections have decided, for the timeline.
    """
    from sa_atp.lab import report

    found = Saved(folder)
    try:
        found.files = report.write_report(result, folder, log)
    except report.DrawingError as error:
        found.problems.append(str(error))
    except UserError as error:
        found.problems.append(str(error))
        found.folder = Path(tempfile.mkdtemp(prefix="sa-atp-run-"))
        try:
            report.write_data(result, found.folder, log)
            found.problems.append(f"the data of the run is in {found.folder}: `sa-atp plot {found.folder}` draws it")
        except UserError as again:
            found.problems.append(f"the data of the run is lost: {again}")
    return found
