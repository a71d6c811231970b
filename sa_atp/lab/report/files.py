"""The folder of a run: what is written into it, and how it is read back.

Every file is written under another name first and then renamed, so that an interruption leaves either the whole file or
none.
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
from sa_atp.lab.report import archive, stats
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.report.trace import trace
from sa_atp.lab.runs.records import Iteration, RunResult

COLUMNS = (
    "policy", "repetition", "step", "worker", "compute_s", "help_s", "send_s", "wait_s", "iteration_s", "loss",
    "slowdown", "micro_batches", "helped", "job", "end_s", "samples", "unused", "counted",
)  # fmt: skip
RUN = "run.json"
MOST_DIFFERENCES = 3  # of plans, in a message


def write_data(result: RunResult, folder: Path, log: Path | None = None) -> list[Path]:
    """Writes everything that is data: manifest.json, iterations.csv, summary.json, timeline.json, run.json.

    Args: log: a folder with what connections have decided, for the timeline. Raises: UserError if the folder cannot be
    written.
    """
    return [
        write_text(folder / "manifest.json", _json(manifest(result), indent=2)),
        write_text(folder / "iterations.csv", iterations_csv(result)),
        write_text(folder / "summary.json", _json(summarise(result), indent=2)),
        write_text(folder / "timeline.json", _json(trace(result, log))),
        # last: a folder with a run.json is a finished run
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
    """The run of a plan that a folder holds; None: it holds no run.

    Raises: UserError: it holds a run of another plan, or something that cannot be read.
    """
    if not (folder / RUN).is_file():
        return None
    found = load(folder)
    apart = differences(with_lanes(placed(found.plan, found.backend, found.switch)), with_lanes(plan))
    if apart:
        more = ", and more" if len(apart) > MOST_DIFFERENCES else ""
        raise UserError(
            f"{folder} holds a run of another plan ({'; '.join(apart[:MOST_DIFFERENCES])}{more}): choose another folder "
            "with --out, or say --replace"
        )
    return found


def manifest(result: RunResult) -> dict[str, Any]:
    """What is needed to repeat the run: the run's manifest, and what the result knows besides."""
    known = {
        "plan_path": result.plan_path,
        "plan": result.plan.as_dict(),
        "seed": result.plan.run.seed,
        "backend": result.backend,
        "switch": result.switch,
        "device_speed": result.devices,
    }
    found: dict[str, Any] = archive.jsonable({**known, **result.manifest})
    return found


def iterations_csv(result: RunResult) -> str:
    """A row per policy, repetition, job, step and worker. Times in seconds, to the microsecond; NaN is an empty field.
    `counted` is 1 in rows that means and percentiles are of, and 0 in those of the warm-up and of steps not finished.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    of_run = ("policy", "repetition", "job")
    for run in result.runs:
        counted = {(i.step, i.worker) for i in stats.counted_iterations(run, result.plan.run.warm_up)}
        for each in sorted(run.iterations, key=lambda i: (i.step, i.worker)):
            row = {name: _field(each, name) for name in COLUMNS[:-1] if name not in of_run}
            row |= {name: str(getattr(run, name)) for name in of_run}
            row["counted"] = str(int((each.step, each.worker) in counted))
            writer.writerow([row[name] for name in COLUMNS])
    return out.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a file so that it is there as a whole or not at all. Raises: UserError."""

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    return write_file(path, write)


def write_file(path: Path, write: Callable[[Path], None]) -> Path:
    """Lets `write` make a file under another name, and gives it its own once it is on the disk. Raises: UserError."""
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


def _field(record: Iteration, name: str) -> str:
    value = getattr(record, name)
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
