"""run.json: a whole RunResult as data, so that everything can be drawn again.

Records are stored as columns and rows. JSON has no NaN: a loss that is NaN is null, infinities are "inf" and "-inf".
"""

import contextlib
import dataclasses
import math
import typing
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.lab.plans.plan_files import parse_tables
from sa_atp.lab.runs.records import Evaluation, Interval, Iteration, PolicyRun, RunResult

FORMAT = "sa-atp run"
VERSION = 1
RECORDS: dict[str, type] = {"iterations": Iteration, "intervals": Interval, "evaluations": Evaluation}


class BadRun(ValueError):
    """The data is not a run; the message says what is wrong with it."""


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
        raise BadRun(f"its version is {data.get('version')!r}, and this release reads {VERSION}")
    try:
        plan = parse_tables(_get(data, "plan", dict), "its plan")
    except (UserError, OverflowError) as error:
        raise BadRun(str(error)) from None
    return RunResult(
        plan,
        _get(data, "plan_path", str),
        _get(data, "backend", str),
        _get(data, "switch", str),
        _get(data, "manifest", dict),
        [_decode_run(run) for run in _get(data, "runs", list)],
    )


def jsonable(value: Any) -> Any:
    """Data with only what JSON has: tuples become lists, NaN becomes None, whatever else is unknown its text."""
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


def _decode_run(data: Any) -> PolicyRun:
    if not isinstance(data, dict):
        raise BadRun("one of its runs is no object")
    return PolicyRun(
        _get(data, "policy", str),
        _get(data, "repetition", int),
        **{name: _decode_rows(kind, _get(data, name, dict), name) for name, kind in RECORDS.items()},
        sums_checked=_get(data, "sums_checked", int),
        sums_wrong=_get(data, "sums_wrong", int),
        fragments=_counts(data, "fragments"),
        help=_counts(data, "help"),
        fluid_bound_s=_decode_float(data.get("fluid_bound_s"), "fluid_bound_s"),
        job=_get(data, "job", int) if "job" in data else 0,
        step_ends_s=[_decode_float(end, "step_ends_s") for end in _get(data, "step_ends_s", list)]
        if "step_ends_s" in data
        else [],
        streams={k: _decode_float(v, f"streams.{k}") for k, v in _get(data, "streams", dict).items()}
        if "streams" in data
        else {},
        device_cores=_decode_float(data.get("device_cores", 0.0), "device_cores"),
        origin_us=_get(data, "origin_us", int) if "origin_us" in data else 0,
    )


def _decode_rows(kind: type, data: dict[str, Any], name: str) -> list[Any]:
    types = {field: hint for field, hint in typing.get_type_hints(kind).items() if not field.startswith("_")}
    columns, rows = _get(data, "columns", list), _get(data, "rows", list)
    # what has a default came later, and older runs lack it
    needed = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    is_known = all(isinstance(column, str) for column in columns) and len(set(columns)) == len(columns)
    if not is_known or not set(needed) <= set(columns) <= set(types):
        raise BadRun(f"its {name} have the columns {columns}, not {list(types)}")
    records = []
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns):
            raise BadRun(f"a row of its {name} does not have {plural(len(columns), 'value')}")
        records.append(
            kind(**{c: _decode_value(v, types[c], f"{name}.{c}") for c, v in zip(columns, row, strict=True)})
        )
    return records


def _decode_value(value: Any, wanted: Any, where: str) -> Any:
    if wanted is float:
        return _decode_float(value, where)
    if typing.get_origin(wanted) is typing.Literal:
        if value not in typing.get_args(wanted):
            raise BadRun(f"{where} is {value!r}, not one of {', '.join(typing.get_args(wanted))}")
        return value
    if type(value) is not wanted:
        raise BadRun(f"{where} is {value!r}, not of type {wanted.__name__}")
    return value


def _encode_float(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _decode_float(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    if value in ("inf", "-inf") or (isinstance(value, int | float) and not isinstance(value, bool)):
        with contextlib.suppress(OverflowError):  # a whole number that is too large
            return float(value)
    raise BadRun(f"{where} is {value!r}, not a number")


def _counts(data: dict[str, Any], name: str) -> dict[str, int]:
    counts = _get(data, name, dict)
    return {key: _get(counts, key, int) for key in counts}


def _get(data: dict[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if type(value) is not kind:
        raise BadRun(f"{name} is missing" if value is None else f"{name} is {value!r:.40}, not of type {kind.__name__}")
    return value
