"""Traces of the operations of real jobs, made into traces of stragglers.

The format is that of ByteDance's StragglerAnalysis (Lin et al., Understanding Stragglers in Large Model Training Using
What-if Analysis, OSDI 2025): a Parquet file with a row for each operation of each rank, step and micro-batch. A worker of a
plan is a data-parallel rank there, with all its pipeline stages.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sa_atp.basics import needs
from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.traces import COLUMNS, LIMITS, MOST_ROWS, Row

COMPUTING = ("forward-compute", "backward-compute")
NEEDED = ("dp_rank", "rank", "step", "optype", "start_ts", "duration")
PLACES = 4  # decimal places of slow-downs


@dataclass(frozen=True, slots=True)
class OperationTrace:
    """A job's computing times. Times are in seconds, if the file's are."""

    rows: tuple[Row, ...]
    """(step, worker, slow-down); steps and workers are counted from 0. A slow-down is against `typical_s`."""
    steps: int
    workers: int
    typical_s: float
    """Median of the computing times of all workers in all steps."""
    step_s: float
    """Mean time of a step, from its first operation's start to its last one's end."""
    slowest_over_mean: float
    """How much longer than the mean of a step's workers its slowest one computes; mean over steps."""

    def as_csv(self) -> str:
        """The trace as `straggler.trace` of a plan takes it."""
        lines = [",".join(COLUMNS), *(f"{step},{worker},{slow:g}" for step, worker, slow in self.rows)]
        return "\n".join(lines) + "\n"


def read(path: Path) -> OperationTrace:
    """Reads a trace of operations.

    In a step a rank computes for the sum of its operations' durations, and a data-parallel rank for as long as the slowest
    of its ranks: stages of a pipeline work at the same time.

    Raises: UserError: the file is none, or lacks columns or computing; MissingPartError: without pyarrow.
    """
    needs.require_modules("traces of operations need", "pyarrow")
    table = _table(path)
    ends = table.column("start_ts").to_numpy() + table.column("duration").to_numpy()
    starts, step_of = table.column("start_ts").to_numpy(), table.column("step").to_numpy()
    kinds = np.asarray(table.column("optype").to_pylist(), dtype=object)
    computes = np.isin(kinds, COMPUTING)
    if not computes.any():
        raise UserError(f"{path}: no operation is a {' or a '.join(COMPUTING)}")
    durations = table.column("duration").to_numpy().astype(float)
    if not np.isfinite(durations).all() or (durations < 0).any():
        raise UserError(f"{path}: column duration: expected seconds, 0 or more")
    steps, step = np.unique(step_of[computes], return_inverse=True)
    workers, worker = np.unique(table.column("dp_rank").to_numpy()[computes], return_inverse=True)
    ranks, rank = np.unique(table.column("rank").to_numpy()[computes], return_inverse=True)
    if len(steps) * len(workers) > MOST_ROWS or len(workers) > LIMITS["worker"][1] + 1:
        raise UserError(
            f"{path}: {len(steps)} steps of {len(workers)} data-parallel ranks: expected at most {MOST_ROWS} in all"
        )
    by_rank = np.zeros((len(steps), len(ranks)))
    np.add.at(by_rank, (step, rank), durations[computes])
    found = np.zeros((len(steps), len(workers)))
    np.maximum.at(found, (step, worker), by_rank[step, rank])
    there = found > 0
    typical = float(np.median(found[there])) if there.any() else 0.0
    if not typical:
        raise UserError(f"{path}: no operation takes any time")
    return OperationTrace(
        rows=tuple(_rows(found / typical)),
        steps=len(steps),
        workers=len(workers),
        typical_s=typical,
        step_s=float(np.mean([np.ptp([starts[of].min(), ends[of].max()]) for of in (step_of == s for s in steps)])),
        slowest_over_mean=float(np.mean([row.max() / row[row > 0].mean() for row in found if row.any()])),
    )


def _rows(slow: Any) -> Sequence[Row]:
    low, high = LIMITS["slowdown"]
    return [
        (step, worker, round(float(np.clip(value, low, high)), PLACES))
        for (step, worker), value in np.ndenumerate(slow)
        if value > 0  # a rank without operations in a step has normal speed
    ]


def _table(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except OSError as error:
        raise UserError(f"{path}: {os.strerror(error.errno) if error.errno else 'not a Parquet file'}") from None
    except pyarrow.ArrowInvalid:
        raise UserError(f"{path}: not a Parquet file") from None
    with file:
        missing = [name for name in NEEDED if name not in file.schema_arrow.names]
        if missing:
            raise UserError(f"{path}: no column {missing[0]!r}: expected the columns {', '.join(NEEDED)}")
        try:
            return file.read(columns=list(NEEDED))
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
