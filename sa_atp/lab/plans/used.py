"""Keys that have no effect in a plan, because of another key's value: fields say `used_with` which values these are."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import DERIVED, TABLES, Plan


def conditions(metadata: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The conditions of a field: other keys, each with the values with which the field is used."""
    return {key: of() if callable(of) else of for key, of in metadata.get("used_with", {}).items()}


def why_unused(plan: Plan, key: str, varied: Collection[str] = ()) -> dict[str, str]:
    """The reasons that a key has no effect in a plan, by the other key that is to blame; empty: it has one.

    Args: varied: keys that have further values than the plan's.
    """
    table, _, name = key.partition(".")
    (field,) = (f for f in dataclasses.fields(_table(plan, table)) if f.name == name)
    found = {}
    for other, values in conditions(field.metadata).items():
        value = _value(plan, other)
        if other not in varied and not set(value if isinstance(value, tuple) else [value]) & set(values):
            used = " or ".join(map(json.dumps, values))
            found[other] = f"{other} = {json.dumps(value)}: {key} is used with {used}"
    return found


def check_axis(plan: Plan, key: str, where: str) -> None:
    """Raises: UserError: a key whose values are to be compared has no effect in the plan, or on its backend."""
    table, _, name = key.partition(".")
    (field,) = (f for f in dataclasses.fields(_table(plan, table)) if f.name == name)
    reasons = list(why_unused(plan, key).values())
    if plan.run.backend in field.metadata.get("unused_by", ()):
        reasons.append(f"the backend {plan.run.backend} does not use it")
    if reasons:
        raise UserError(f"{where}: {key} has no effect, so all points would be the same: {'; '.join(reasons)}")


def remarks(plan: Plan, overridden: Collection[str], varied: Collection[str] = ()) -> list[str]:
    """A sentence for each key that was said, and has no effect; and one where no step that counts has stragglers.

    A key of the plan that another value overrides does not count: it is for the plan as it is written.

    Args: overridden: keys that have other values than in the plan as it is written; varied: as for `why_unused`.
    """
    found = []
    for key, default in _keys(plan):
        value = _value(plan, key)
        is_said = key in overridden or (value != default and not (key in DERIVED and _value(plan, DERIVED[key])))
        reasons = why_unused(plan, key, varied)
        if is_said and reasons and (key in overridden or not set(reasons) & set(overridden)):
            found.append(f"{key} has no effect: {'; '.join(reasons.values())}")
    first, end, counted = plan.straggler.from_step, plan.straggler.until_step, plan.run.counted
    is_fixed = not {"straggler.from_step", "straggler.until_step", "run.steps", "run.warm_up"} & set(varied)
    if plan.straggler.pattern != "none" and is_fixed and (first > counted[-1] or 0 < end <= counted[0]):
        where = f"straggler.from_step = {first}" if first > counted[-1] else f"straggler.until_step = {end}"
        count = f"steps {counted[0]} to {counted[-1]} count (run.warm_up, run.steps)"
        found.append(f"no counted step has a straggler: {where}, and {count}")
    return found


def _keys(plan: Plan) -> Iterator[tuple[str, Any]]:
    for table in (*TABLES, *plan.settings):
        for field in dataclasses.fields(_table(plan, table)):
            yield f"{table}.{field.name}", field.default


def _table(plan: Plan, name: str) -> Any:
    return getattr(plan, name) if name in TABLES else plan.settings_of(name)


def _value(plan: Plan, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(_table(plan, table), name)
