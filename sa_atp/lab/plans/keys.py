"""The keys of plans, described by their declarations: type, default, limits, meaning, and the backends that use them."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sa_atp.basics.tables import meanings
from sa_atp.basics.words import join
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import TABLES
from sa_atp.lab.plans.used import conditions
from sa_atp.lab.policies.policy import BACKENDS

TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "value", tuple: "list"}


@dataclass(frozen=True, slots=True)
class PlanKey:
    """A key of plans."""

    key: str
    """The name that `--set` takes: TABLE.KEY."""
    type: str
    default: Any
    limits: str
    """Description of the values that are accepted; "": all of the type."""
    backends: tuple[str, ...]
    """The backends that use it."""
    others_refuse: bool
    """Whether the other backends refuse values that are not the default; else they ignore the key."""
    values_only_on: Mapping[str, tuple[str, ...]]
    """Values that only some of these backends run."""
    used_with: Mapping[str, tuple[Any, ...]]
    """Other keys, each with the values beside which this one has an effect."""
    policies: tuple[str, ...]
    """The policies whose own key it is; empty: it is of all."""
    meaning: str


def keys_of(table: str) -> list[PlanKey]:
    """The keys of a plan's table, in the order of their declaration.

    Args: table: its name: one that every plan has, such as "run", or that of a policy's own settings, such as "ssp".
    """
    kind: Any = TABLES[table] if table in TABLES else policies.settings()[table]
    types, said = typing.get_type_hints(kind), meanings(kind)
    of = () if table in TABLES else tuple(name for name in policies.names() if policies.tables_of((name,)) == [table])
    able = tuple(b for b in BACKENDS if not of or any(b in policies.find(name).backends for name in of))
    found = []
    for field in dataclasses.fields(kind):
        only = field.metadata.get("only_on")
        unused = field.metadata.get("unused_by", ())
        found.append(
            PlanKey(
                f"{table}.{field.name}",
                _type(types[field.name]),
                field.default,
                _limits(field.metadata),
                tuple(backend for backend in only or able if backend not in unused),
                only is not None,
                field.metadata.get("values_only_on", {}),
                conditions(field.metadata),
                of,
                said.get(field.name, ""),
            )
        )
    return found


def default_text(key: PlanKey) -> str:
    """The default of a key as a plan file has it."""
    return json.dumps(key.default)


def backends_text(key: PlanKey) -> str:
    """The backends that use a key, and what the others do."""
    found = "all"
    if len(key.backends) < len(BACKENDS):
        found = f"{', '.join(key.backends)}; elsewhere {'refused' if key.others_refuse else 'unused'}"
    by_backends: dict[tuple[str, ...], list[str]] = {}
    for value, backends in key.values_only_on.items():
        by_backends.setdefault(backends, []).append(value)
    return "; ".join([found, *(f"{join(values)}: {', '.join(on)}" for on, values in by_backends.items())])


def used_with_text(key: PlanKey) -> str:
    """The values of other keys beside which a key has an effect; "": all."""
    return "; ".join(f"{other} = {' or '.join(map(str, values))}" for other, values in key.used_with.items())


def _type(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        return f"list of {TYPES[typing.get_origin(element) or element]}s"
    return TYPES[kind]


def _limits(metadata: Mapping[str, Any]) -> str:
    allowed = metadata.get("one_of")
    allowed = allowed() if callable(allowed) else allowed
    if allowed is not None:
        return ", ".join(map(str, allowed))
    if "between" in metadata:
        low, high = metadata["between"]
        return f"{_number(low)} to {_number(high)}"
    if "each" in metadata:
        low, high = metadata["each"]
        return f"each {_number(low)} to {_number(high)}"
    return ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:g}"
