"""The memory layout of a program's state: the contract between translated code and its runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sa_atp.basics.arrays import Cells
from sa_atp.switches.embedded.errors import PipelineError
from sa_atp.switches.embedded.program import WORD_BITS, KeyField, Program, Register, Table, words_of

FAMILY_MIN = 16  # registers whose names differ only in a number at the end, from which on they share an array


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterPlace:
    """The place of a register: `array[index]`, or `array[index, column]` in a family."""

    array: str
    column: int | None
    register: Register


def rows(bits: int, columns: int) -> str:
    """Source that takes an array with this many columns out of a call frame; {} stands for its place."""
    return f"rows_u{bits}(frame, {{}}, {columns})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterArray:
    name: str
    size: int
    columns: int | None
    bits: int

    @property
    def dtype(self) -> npt.DTypeLike:
        for bits in (8, 16, 32, 64):
            if self.bits <= bits:
                return np.dtype(f"u{bits // 8}")
        raise AssertionError("the loader refuses wider registers")

    @property
    def view(self) -> str:
        """Source that takes the array out of a call frame; {} stands for its place."""
        bits = np.dtype(self.dtype).itemsize * 8
        return f"array_u{bits}_1(frame, {{}})" if self.columns is None else rows(bits, self.columns)

    def zeros(self) -> Cells:
        shape: tuple[int, ...] = (self.size,) if self.columns is None else (self.size, self.columns)
        return np.zeros(shape, self.dtype)


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """Bits of a key field in a key word: from `low` on, `shift` bits from the word's end."""

    field: int  # number of the key field
    shift: int
    low: int
    bits: int

    def of(self, values: Sequence[int]) -> int:
        return (values[self.field] >> self.low & (1 << self.bits) - 1) << self.shift


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLayout:
    """Columns of a table's array, uint64[rows, columns]; row 0 is the default entry.

    exact   a hash table: column 0 is 1 if the row is in use, then the key words, then the result
    scan    rows in order of precedence: for each key word value and mask, or low and high, then the result
    direct  rows with results; `index` (another array) has the row of each key value
    result  action id, parameters, and the number of the entry (for its counter)
    """

    table: Table
    kind: str  # "none", "exact", "scan" or "direct"
    words: tuple[tuple["KeyPiece", ...], ...]  # the contents of each key word
    parameters: int  # columns for them
    result: int  # first column of the result
    columns: int

    @property
    def entry_column(self) -> int:
        return self.result + 1 + self.parameters


DIRECT_BITS = 12  # a table whose whole key is this narrow is looked up by indexing


def table_layout(program: Program, table: Table) -> TableLayout:
    actions = {*table.action_ids, table.default_action}
    parameters = max(sum(len(words_of(bits)) for _, bits in program.actions[a].parameters) for a in actions)
    words = _words(table.key)
    if not table.key:
        kind, result = "none", 0
    elif any(k.match_type == "range" for k in table.key):
        # one word for each key field, so that low and high compare as numbers
        words = tuple((KeyPiece(i, 0, 0, k.bits),) for i, k in enumerate(table.key))
        kind, result = "scan", 2 * len(words)
    elif sum(k.bits for k in table.key) <= DIRECT_BITS:
        kind, result = "direct", 0
    elif all(k.match_type == "exact" for k in table.key):
        kind, result = "exact", 1 + len(words)
    else:
        kind, result = "scan", 2 * len(words)
    return TableLayout(
        table=table, kind=kind, words=words, parameters=parameters, result=result, columns=result + 2 + parameters
    )


def _words(key: tuple[KeyField, ...]) -> tuple[tuple[KeyPiece, ...], ...]:
    """Packs key fields, in order, into words; only fields that are longer than a word are split."""
    words: list[list[KeyPiece]] = []
    room = 0
    for i, field in enumerate(key):
        for low, bits in words_of(field.bits):
            if bits > room:
                words.append([])
                room = WORD_BITS
            words[-1].append(KeyPiece(i, WORD_BITS - room, low, bits))
            room -= bits
    return tuple(tuple(w) for w in words)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLayout:
    registers: Mapping[str, RegisterPlace]
    arrays: tuple[RegisterArray, ...]
    tables: Mapping[str, TableLayout]
    vectors: Mapping[str, tuple[int, bool]]  # header: (fields, signed)
    header_room: int  # bytes that headers may add to a packet


def layout(program: Program, names: Mapping[str, str]) -> MemoryLayout:
    """The layout of a program. Args: names: the Python name of each register's array, by register name."""
    families: dict[tuple[str, int, int], list[Register]] = {}
    for register in program.registers:
        stem = register.name.rstrip("0123456789")
        families.setdefault((stem, register.size, register.bits), []).append(register)
    places: dict[str, RegisterPlace] = {}
    arrays: list[RegisterArray] = []
    for (_, size, bits), members in families.items():
        if len(members) >= FAMILY_MIN:
            name = names[members[0].name] + "_and_following"
            arrays.append(RegisterArray(name=name, size=size, columns=len(members), bits=bits))
            for column, register in enumerate(members):
                places[register.name] = RegisterPlace(array=name, column=column, register=register)
        else:
            for register in members:
                name = names[register.name]
                arrays.append(RegisterArray(name=name, size=size, columns=None, bits=bits))
                places[register.name] = RegisterPlace(array=name, column=None, register=register)
    room = sum(program.headers[name].most_bytes for name in program.deparse_order)  # a header may be emitted twice
    if room > 9000:
        raise PipelineError(f"the headers that the program emits have {room} bytes; a packet has at most 9000")
    return MemoryLayout(
        registers=places,
        arrays=tuple(arrays),
        tables={t.name: table_layout(program, t) for t in program.tables()},
        vectors={h.name: (len(h.fields), h.fields[0].signed) for h in program.headers.values() if h.is_vector},
        header_room=room,
    )
