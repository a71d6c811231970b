"""run.json: a whole RunResult as data, so that the report can be drawn again.

Records are stored as columns and rows. JSON has no NaN: a loss that is NaN is null, infinities are "inf" and "-inf".
"""

import dataclasses
import math
from typing import Any

import msgspec

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.lab.plans.plan_files import parse_tables
from sa_atp.lab.runs.records import Evaluation, Interval, Iteration, Number, PolicyRun, RunResult

FORMAT = "sa-atp run"
VERSION = 1
RECORDS: dict[str, type] = {"iterations": Iteration, "intervals": Interval, "evaluations": Evaluation}


class BadRun(ValueError):
    """The data is not a run; the message says what is wrong with it."""


class _File(msgspec.Struct):
    """What the file holds besides its format and version."""

    plan: dict[str, Any]
    plan_path: str
    backend: str
    switch: str
    manifest: dict[str, Any]
    runs: list[dict[str, Any]]


class _Table(msgspec.Struct):
    """Records of one kind of a run."""

    columns: list[str]
    rows: list[list[Any]]


def encode(result: RunResult) -> dict[str, Any]:
    """A run as JSON-able data."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "plan": jsonable(result.plan.as_dict()),
        "plan_path": result.plan_path,
        "backend": result.backend,
        "switch": result.switch,
        "manifest": jsonable(result.manifest),
        "runs": [_encode_run(run) for run in result.runs],
    }


def decode(data: Any) -> RunResult:
    """The inverse of `encode`. Raises: BadRun."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadRun(f'it has no "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise BadRun(f"its version is {data.get('version')!r}; this release reads version {VERSION}")
    try:
        file = msgspec.convert(data, _File)
        plan = parse_tables(file.plan, "its plan")
        runs = [_decode_run(run) for run in file.runs]
    except (msgspec.ValidationError, UserError, OverflowError) as error:
        raise BadRun(str(error)) from None
    return RunResult(plan, file.plan_path, file.backend, file.switch, file.manifest, runs)


def jsonable(value: Any) -> Any:
    """Converts data to JSON types: tuples become lists, NaN becomes None, objects of other types their text."""
    if isinstance(value, dict):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, float):
        return _encode_float(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _encode_run(run: PolicyRun) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field in dataclasses.fields(run):
        value = getattr(run, field.name)
        data[field.name] = _encode_rows(RECORDS[field.name], value) if field.name in RECORDS else jsonable(value)
    return data


def _encode_rows(kind: type, records: list[Any]) -> dict[str, Any]:
    columns = [field.name for field in dataclasses.fields(kind)]
    return {"columns": columns, "rows": [[jsonable(getattr(r, name)) for name in columns] for r in records]}


def _decode_run(data: dict[str, Any]) -> PolicyRun:
    """Raises: BadRun, msgspec.ValidationError."""
    records = {name: _records(name, msgspec.convert(data.get(name), _Table)) for name in RECORDS}
    return msgspec.convert({**data, **records}, PolicyRun, dec_hook=_decode_float)


def _records(name: str, table: _Table) -> list[dict[str, Any]]:
    """Raises: BadRun. What has a default came later, and older runs lack it."""
    known = [field.name for field in dataclasses.fields(RECORDS[name])]
    if len(set(table.columns)) < len(table.columns) or not set(table.columns) <= set(known):
        raise BadRun(f"its {name} have the columns {table.columns}, not {known}")
    try:
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    except ValueError:
        raise BadRun(f"a row of its {name} does not have {plural(len(table.columns), 'value')}") from None


def _encode_float(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _decode_float(_: type, value: Any) -> Number:
    """Raises: ValueError."""
    if value is None:
        return Number(math.nan)
    if value in ("inf", "-inf") or type(value) in (int, float):
        return Number(value)
    raise ValueError(f"expected a number, found {value!r:.40}")
