"""The data files in the folder of a run: writing and reading.

Every file is written under another name and then renamed, so that an interruption leaves the whole file or none.
"""

import csv
import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import Plan, differences, placed, with_lanes
from sa_atp.lab.report import archive
from sa_atp.lab.report.rows import COLUMNS, rows
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.trace import trace
from sa_atp.lab.runs.records import RunResult

RUN = "run.json"
MOST_DIFFERENCES = 3  # of plans, in a message


def write_data(
    result: RunResult, folder: Path, summary: dict[str, Any] | None = None, log: Path | None = None
) -> list[Path]:
    """Writes the data files: manifest.json, iterations.csv, summary.json, timeline.json, run.json.

    Args: log: folder with the run's logs of decisions, which the timeline shows; None: there are none.
    Raises: UserError: the folder cannot be written.
    """
    return [
        write_text(folder / "manifest.json", _json(manifest(result), indent=2)),
        write_text(folder / "iterations.csv", iterations_csv(result)),
        write_text(folder / "summary.json", _json(summary or summarise(result), indent=2)),
        write_text(folder / "timeline.json", _json(trace(result, log))),
        # written last: a folder with run.json is a finished run
        write_text(folder / RUN, _json(archive.encode(result))),
    ]


def load(folder: Path) -> RunResult:
    """Reads what `write_data` wrote. Raises: UserError if the folder is not that of a run."""
    path = Path(folder) / RUN
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = f"it has no {RUN}" if Path(folder).is_dir() else "there is no such folder"
        raise UserError(f"{folder}: not the folder of a finished run: {what}") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: not the folder of a finished run: it is a file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({_one_line(error)})") from None
    try:
        return archive.decode(data)
    except archive.BadRun as error:
        raise UserError(f"{path}: not a run: {_one_line(error)}") from None


def finished(folder: Path, plan: Plan) -> RunResult | None:
    """The run in a folder, if it is one of this plan; None: the folder has no run.

    Raises: UserError: the folder has a run of another plan, or an unreadable one.
    """
    if not (folder / RUN).is_file():
        return None
    found = load(folder)
    apart = differences(placed(found.plan_as_run, found.backend, found.switch), with_lanes(plan))
    if apart:
        more = ", and more" if len(apart) > MOST_DIFFERENCES else ""
        raise UserError(
            f"{folder} holds a run of another plan ({'; '.join(apart[:MOST_DIFFERENCES])}{more}): choose another folder "
            "with --out, or say --replace"
        )
    return found


def manifest(result: RunResult) -> dict[str, Any]:
    """All that is needed to repeat the run: the run's manifest, with further entries from the result."""
    known = {
        "plan_path": result.plan_path,
        "plan": result.plan_as_run.as_dict(),
        "seed": result.plan.run.seed,
        "backend": result.backend,
        "switch": result.switch,
        "device_speed": result.devices,
    }
    found: dict[str, Any] = archive.jsonable({**known, **result.manifest})
    return found


def iterations_csv(result: RunResult) -> str:
    """A row per policy, repetition, job, step and worker. Times are seconds, to the microsecond; NaN is an empty field.
    `counted` is 1 in rows that enter means and percentiles, and 0 in the warm-up and in unfinished steps.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(result):
        writer.writerow([_field(name, getattr(row, name)) for name in COLUMNS])
    return out.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a text file as a whole or not at all. Raises: UserError."""

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8", errors="replace")

    return write_file(path, write)


def write_file(path: Path, write: Callable[[Path], None]) -> Path:
    """Has `write` make a file under another name, and renames it once it is on disk. Raises: UserError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _field(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    return f"{value:.6f}" if name.endswith("_s") else f"{value:.9g}"


def _json(data: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    return json.dumps(data, indent=indent, separators=separators, allow_nan=False) + "\n"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
