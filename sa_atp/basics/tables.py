"""Reads tables of TOML files into dataclasses, whose fields have the type and limits of each key.

Unknown keys, wrong types and values out of range are refused with the key, the value, and what would be accepted. msgspec,
which reads records and messages, says neither the value nor the choices, and some choices are not known before policies
are loaded; with it this file would be longer.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import meant, one_of


def setting(default: Any, **limits: Any) -> Any:
    """A field with a default and limits: one_of=..., between=(low, high), each=(low, high) for lists.

    Args: limits: `one_of` may be a function that returns the values, if they are not known yet. Others are kept for those
        who read the field's metadata.
    """
    if isinstance(default, list | tuple):
        return field(default=tuple(default), metadata=limits)
    return field(default=default, metadata=limits)


def limits(kind: Any, name: str) -> tuple[Any, Any]:
    """The bounds of a field with `between`."""
    found = next(f for f in dataclasses.fields(kind) if f.name == name)
    low, high = found.metadata["between"]
    return low, high


def meanings(kind: type) -> dict[str, str]:
    """The docstrings of a class's fields, by name, each on one line. Fields without one are left out."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        try:
            (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(each))).body
        except OSError:  # there are no sources
            continue
        for one, text in itertools.pairwise(getattr(body, "body", ())):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Expr):
                found[one.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def read_table(kind: Any, name: str, table: Mapping[str, Any], where: str) -> Any:
    """Makes a dataclass of a table. Raises: UserError, naming the key."""
    known = {f.name: f for f in dataclasses.fields(kind)}
    types = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in known:
            raise UserError(f"{where}: unknown key {name}.{key}{meant(key, known)}; [{name}] has {', '.join(known)}")
        values[key] = _value(value, types[key], known[key].metadata, f"{where}: {name}.{key}", known[key].default)
    return kind(**values)


def _value(value: Any, kind: Any, limits: Mapping[str, Any], where: str, default: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            example = [value] if type(value) in (element, *([int] if element is float else [])) else list(default or ())
            such = f", such as {json.dumps(example)}" if example else ""
            raise UserError(f"{where} = {value!r}: expected a list{such}")
        inner = {"between": limits["each"]} if "each" in limits else limits
        return tuple(_value(v, element, inner, where, None) for v in value)
    if kind is Any:
        return value
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
        raise UserError(f"{where} = {value!r}: expected {names[kind]}")
    allowed = limits.get("one_of")
    allowed = allowed() if callable(allowed) else allowed
    if allowed is not None and value not in allowed:
        raise UserError(f"{where} = {value!r}: {one_of(value, allowed)}")
    if "between" in limits:
        low, high = limits["between"]
        if not low <= value <= high:
            raise UserError(f"{where} = {value!r}: expected {low} to {high}")
    return value
