"""State of the rules, declared once: an ordinary object for Python, a record with the same fields for compiled code.

A *record class* annotates its fields in its body: `int`, `float`, `bool`, or another record class. Rules are functions that
read and write such fields as attributes. Called with an object they run as plain Python; net/loop/compiled.py compiles the
same functions for the record, a structured NumPy type, on which a call takes nanoseconds.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

_TYPES: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}
_CODES = {int: "q", float: "d", bool: "?"}  # of struct
T = TypeVar("T")


@cache
def dtype_of(kind: type) -> np.dtype[np.void]:
    """The structured type of a record class: int64, float64 and bool, records within records."""
    hints = get_type_hints(kind).items()
    return np.dtype([(name, _TYPES.get(hint) or dtype_of(hint)) for name, hint in hints], align=True)


def table(kind: type, rows: int) -> NDArray[np.void]:
    """Makes a structured array of records of a class, all zero."""
    return np.zeros(rows, dtype_of(kind))


class Record(Generic[T]):
    """One record for compiled code. Objects of its class are copied into it, and back.

    All fields are copied at once, as a C structure: NumPy would take longer to set them one by one than a kernel runs.
    """

    def __init__(self, kind: type[T]) -> None:
        self.array = table(kind, 1)
        """The record, as compiled code is given it: a structured array of one."""
        memory: Any = self.array.view(np.uint8)
        self._memory = memoryview(memory)
        of: type = kind
        self._struct, self._get, self._set = _copying(of)

    def write(self, known: T) -> None:
        """Copies an object's fields into the record. Raises: struct.error: one of them is not of its type."""
        self._struct.pack_into(self._memory, 0, *self._get(known))

    def read(self, known: T) -> None:
        """Copies the record into an object's fields, and those of its parts, which stay the objects that they are."""
        self._set(known, self._struct.unpack_from(self._memory))


class Records:
    """An array of records for compiled code, into which objects of their class are copied."""

    def __init__(self, kind: type, rows: int) -> None:
        self.array = table(kind, rows)
        """The records, all zero at first: a structured array."""
        memory: Any = self.array.view(np.uint8)
        self._memory = memoryview(memory)
        self._struct, self._get, _ = _copying(kind)

    def write(self, row: int, known: object) -> None:
        """Copies an object's fields into a record. Raises: struct.error: one of them is not of its type."""
        self._struct.pack_into(self._memory, row * self._struct.size, *self._get(known))


@cache
def _copying(kind: type) -> tuple[struct.Struct, Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Returns a record class as a C structure, and functions that get its numbers from an object, and set them."""
    codes, names = _numbers(kind, "known")
    layout = struct.Struct(codes)
    assert layout.size == dtype_of(kind).itemsize
    made: dict[str, Any] = {}
    fields = ", ".join(names)
    exec(f"def get(known): return ({fields},)\ndef set(known, values): ({fields},) = values", made)
    return layout, made["get"], made["set"]


def _numbers(kind: type, known: str) -> tuple[str, list[str]]:
    """Returns the codes of struct for a record class, and expressions for its numbers. Args: known: the object's name."""
    codes, names = "", []
    for name, hint in get_type_hints(kind).items():
        if hint in _CODES:
            codes += _CODES[hint]
            names.append(f"{known}.{name}")
        else:
            within, found = _numbers(hint, f"{known}.{name}")
            codes += within
            names += found
    return f"0q{codes}0q", names  # a record begins and ends where a 64-bit number may stand
