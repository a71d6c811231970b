"""A compiled program as typed data: headers, parser, tables and actions, with references resolved.

It has the structure of BMv2 JSON (behavioral-model, docs/JSON_format.md), from which `loading` makes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sa_atp.switches.embedded.errors import PipelineError

# An expression of the JSON, unchanged: {"type": ..., "value": ...}. The translator walks it once.
Expression = Mapping[str, Any]

VECTOR_MIN_FIELDS = 16  # a packet header with as many equal 32-bit fields is translated to an array, not to variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    name: str
    bits: int  # 0 for a varbit, whose length is known only with the packet
    signed: bool
    offset_bits: int  # from the start of its header; a varbit before it does not count
    is_varbit: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A header instance, or a struct of metadata."""

    name: str
    fields: tuple[Field, ...]
    metadata: bool
    index: Mapping[str, Field]
    most_bytes: int  # its size, with the longest varbit

    @property
    def varbit(self) -> Field | None:
        return next((f for f in self.fields if f.is_varbit), None)

    @property
    def size_bits(self) -> int:
        return sum(f.bits for f in self.fields)

    @property
    def size_bytes(self) -> int:
        """Its size without a varbit."""
        return self.size_bits // 8

    @property
    def is_vector(self) -> bool:
        """Whether it has many equal 32-bit fields, such as lanes: then a loop handles them, not a statement for each."""
        return (
            not self.metadata
            and len(self.fields) >= VECTOR_MIN_FIELDS
            and all(f.bits == 32 and f.signed == self.fields[0].signed for f in self.fields)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    value: int | None  # None: default
    mask: int | None
    next_state: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParserState:
    name: str
    operations: tuple[Mapping[str, Any], ...]
    key: tuple[Mapping[str, Any], ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    id: int
    name: str
    parameters: tuple[tuple[str, int], ...]  # (name, bits)
    primitives: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyField:
    name: str
    match_type: str  # exact, lpm, ternary, range, optional
    header: str
    field: str
    bits: int
    mask: int  # of the field, before it is matched: `key = { hdr.h.f & MASK: ... }`

    @property
    def is_masked(self) -> bool:
        return self.mask != (1 << self.bits) - 1

    @property
    def needs_priority(self) -> bool:
        """Whether entries need a priority, because several may match a packet equally well."""
        return self.match_type in ("ternary", "range", "optional")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An entry of a table.

    match: for each key field (value, mask), no bit of the value outside the mask, or (low, high) for a range.
    priority: the larger wins (P4Runtime); 0 unless a field is ternary, range or optional.
    number: index of its direct counter.
    """

    match: tuple[tuple[int, int], ...]
    action: int
    data: tuple[int, ...]
    priority: int = 0
    number: int = field(default=0, compare=False)

    @property
    def identity(self) -> tuple[tuple[tuple[int, int], ...], int]:
        return (self.match, self.priority)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    name: str
    id: int
    pipeline: str
    key: tuple[KeyField, ...]
    max_size: int
    action_ids: tuple[int, ...]
    next_by_action: Mapping[int, str | None]
    next_hit: tuple[str | None, str | None] | None  # (hit, miss), if the program uses `.hit`
    default_action: int
    default_data: tuple[int, ...]
    default_const: bool
    const_entries: tuple[Entry, ...] | None
    with_counters: bool
    hidden: bool  # made by the compiler for a bare statement


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditional:
    name: str
    expression: Expression
    true_next: str | None
    false_next: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """Ingress or egress: a graph of tables and conditionals."""

    name: str
    first: str | None
    tables: Mapping[str, Table]
    conditionals: Mapping[str, Conditional]


@dataclass(frozen=True, kw_only=True, slots=True)
class Register:
    name: str
    size: int
    bits: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    name: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    name: str
    algorithm: str
    inputs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checksum:
    name: str
    header: str
    field: str
    calculation: Calculation
    verify: bool
    update: bool
    condition: Expression | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    name: str
    headers: Mapping[str, Header]
    stacks: Mapping[str, tuple[str, ...]]  # names of their headers
    unions: Mapping[str, tuple[str, ...]]  # the same; at most one is valid
    states: Mapping[str, ParserState]
    first_state: str
    deparse_order: tuple[str, ...]
    actions: Mapping[int, Action]
    ingress: Control
    egress: Control
    registers: tuple[Register, ...]
    counters: tuple[Counter, ...]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    errors: Mapping[str, int]
    aliases: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def tables(self) -> Iterator[Table]:
        yield from self.ingress.tables.values()
        yield from self.egress.tables.values()

    def siblings(self, header: str) -> tuple[str, ...]:
        """The other headers of a header's union, which become invalid when it becomes valid."""
        members = next((names for names in self.unions.values() if header in names), ())
        return tuple(name for name in members if name != header)

    def field(self, header: str, name: str, where: str) -> tuple[Header, Field]:
        """Resolves a field reference, aliases included."""
        header, name = self.aliases.get((header, name), (header, name))
        instance = self.headers.get(header)
        if instance is None or name not in instance.index:
            raise PipelineError(f"{where}: there is no field {header}.{name}")
        return instance, instance.index[name]


WORD_BITS = 64


def words_of(bits: int) -> list[tuple[int, int]]:
    """The words of a number, the highest first: lowest bit and number of bits of each."""
    lows = range((max(bits, 1) - 1) // WORD_BITS * WORD_BITS, -1, -WORD_BITS)
    return [(low, min(bits - low, WORD_BITS)) for low in lows]


def number(text: str) -> int:
    """Parses a hexstr of the JSON; p4c writes negative constants as '-0x01'."""
    return int(text, 16)
