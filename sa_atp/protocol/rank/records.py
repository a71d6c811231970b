"""State that rules work on, declared once: an ordinary object for Python, a record of the same fields for compiled code.

A *record class* annotates its fields in its body: `int`, `float`, `bool`, or another record class. Rules are functions that
read and write such fields as attributes. Called with an object they run as plain Python; net/loop/compiled.py compiles the
same functions for the record, a structured NumPy type, on which a call takes nanoseconds.
"""

from functools import cache
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

_TYPES: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}


@cache
def fields_of(kind: type) -> tuple[tuple[str, type | None], ...]:
    """Names of the fields of a record class in order, each with its record class; None: it is a number."""
    return tuple((name, None if hint in _TYPES else hint) for name, hint in get_type_hints(kind).items())


@cache
def dtype_of(kind: type) -> np.dtype[np.void]:
    """The structured type of a record class: int64, float64 and bool, records within records."""
    hints = get_type_hints(kind).items()
    return np.dtype([(name, _TYPES.get(hint) or dtype_of(hint)) for name, hint in hints], align=True)


def table(kind: type, rows: int) -> NDArray[np.void]:
    """Records of a class, all zero: a structured array of so many."""
    return np.zeros(rows, dtype_of(kind))


def values_of(kind: type, state: Any) -> tuple[Any, ...]:
    """What an object has in the fields of a record class, as an item of a structured array is assigned."""
    return tuple(
        getattr(state, name) if nested is None else values_of(nested, getattr(state, name))
        for name, nested in fields_of(kind)
    )


def set_values(kind: type, state: Any, values: tuple[Any, ...]) -> None:
    """Writes an item of a structured array (`.item()`) into an object with the fields of a record class."""
    for (name, nested), value in zip(fields_of(kind), values, strict=True):
        if nested is None:
            setattr(state, name, value)
        else:
            set_values(nested, getattr(state, name), value)
