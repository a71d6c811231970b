"""Traces of stragglers: slowdowns by step and worker, as CSV or JSON."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from sa_atp.basics.errors import UserError
from sa_atp.basics.inputs import read_json, read_text

COLUMNS = ("step", "worker", "slowdown")
MOST_ROWS = 100_000
LIMITS = {"step": (0, 10_000_000), "worker": (0, 1023), "slowdown": (0.001, 1000.0)}

Row = tuple[int, int, float]


class TraceRows(tuple[tuple[Any, ...], ...]):
    """The rows of a trace in a plan, which know their file: if the plan names another one, they are not its rows."""

    trace: str
    """The value of straggler.trace that they belong to; "": none."""

    def __new__(cls, rows: Iterable[tuple[Any, ...]], trace: str = "") -> Self:
        found = super().__new__(cls, rows)
        found.trace = trace
        return found


def read(path: Path) -> tuple[Row, ...]:
    """Reads a trace: a row for each step and worker with another speed than normal.

    Args: path: a CSV file with a header that has the columns step, worker and slowdown, or a JSON file with a list of
        objects that have these keys. Other columns and keys are ignored.

    Raises: UserError: names the wrong line or entry.
    """
    if path.suffix == ".json":
        entries = read_json(path)
        if not isinstance(entries, list):
            raise UserError(f"{path}: expected a list of objects with {', '.join(COLUMNS)}")
        return _checked(((f"{path}, entry {n}", entry) for n, entry in enumerate(entries, 1)), path)
    if path.suffix == ".csv":
        return _checked(_lines(path), path)
    raise UserError(f"{path}: expected a file whose name ends in .csv or .json")


def check_rows(rows: Iterable[Any], workers: int, where: str) -> None:
    """Checks the rows of a trace in a plan. Raises: UserError."""
    seen = set()
    for n, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple) or len(row) != len(COLUMNS):
            raise UserError(f"{where}, row {n}: expected [{', '.join(COLUMNS)}]")
        step, worker, _ = _row(dict(zip(COLUMNS, row, strict=True)), f"{where}, row {n}")
        if worker >= workers:
            raise UserError(
                f"{where}, row {n}, worker: {worker} of topology.workers = {workers}, which are counted from 0"
            )
        if (step, worker) in seen:
            raise UserError(f"{where}, row {n}: step {step} of worker {worker} occurs twice")
        seen.add((step, worker))


def _lines(path: Path) -> Iterable[tuple[str, Any]]:
    reader = csv.reader(io.StringIO(read_text(path)))
    try:
        head = [name.strip() for name in next(reader, [])]
        for column in COLUMNS:
            if head.count(column) != 1:
                raise UserError(f"{path}, line 1: expected one column {column!r}, found {', '.join(head) or 'nothing'}")
        for values in reader:
            if values:
                where = f"{path}, line {reader.line_num}"
                if len(values) != len(head):
                    raise UserError(f"{where}: {len(values)} columns where line 1 names {len(head)}")
                yield where, {name: value.strip() for name, value in zip(head, values, strict=True)}
    except csv.Error as problem:
        raise UserError(f"{path}, line {reader.line_num}: {problem}") from None


def _checked(entries: Iterable[tuple[str, Any]], path: Path) -> tuple[Row, ...]:
    rows: list[Row] = []
    for where, entry in entries:
        if not isinstance(entry, dict):
            raise UserError(f"{where}: expected an object with {', '.join(COLUMNS)}")
        rows.append(_row(entry, where))
        if len(rows) > MOST_ROWS:
            raise UserError(f"{path}: more than {MOST_ROWS} rows")
    if not rows:
        raise UserError(f"{path}: it has no rows")
    return tuple(rows)


def _row(entry: Mapping[str, Any], where: str) -> Row:
    return (
        _number(entry, "step", int, where),
        _number(entry, "worker", int, where),
        _number(entry, "slowdown", float, where),
    )


def _number(entry: Mapping[str, Any], column: str, kind: type[int] | type[float], where: str) -> Any:
    """A number from a row. Raises: UserError: names line and column."""
    low, high = LIMITS[column]
    value = entry.get(column)
    try:
        number = kind(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, (int, float) if kind is float else int):
        expected = "a whole number" if kind is int else "a number"
        raise UserError(f"{where}, column {column}: {value!r}: expected {expected}")
    if not low <= number <= high:
        raise UserError(f"{where}, column {column}: {value!r}: expected {low} to {high}")
    return kind(number)
