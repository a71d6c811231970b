"""The entities of P4Runtime: table entries, counters, registers and multicast groups, with names instead of ids.

The same classes serve writes, reads and queries: in a query a field at its default matches everything (a `CounterEntry`
without an index is all cells of the counter). Names may be full ("SwitchIngress.dispatch.bridge") or any unambiguous end of
that ("bridge"); entities that are read have the P4Info's aliases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class Exact:
    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    value: int
    prefix_bits: int


@dataclass(frozen=True, slots=True)
class Ternary:
    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Optional:
    value: int


Match = Exact | Lpm | Ternary | Range | Optional
KINDS: Mapping[str, type[Match]] = {
    "exact": Exact, "lpm": Lpm, "ternary": Ternary, "range": Range, "optional": Optional,
}  # fmt: skip


def matches_all(match: Match, bits: int) -> bool:
    """Whether a match of a field of so many bits matches everything; then P4Runtime leaves it out."""
    if isinstance(match, Range):
        return (match.low, match.high) == (0, (1 << bits) - 1)
    return (isinstance(match, Lpm) and not match.prefix_bits) or (isinstance(match, Ternary) and not match.mask)


@dataclass(frozen=True, slots=True)
class CounterData:
    """The value of a counter's cell. packets, bytes: None if the counter does not count them."""

    packets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """An entry of a table, or its default action.

    match: fields left out match everything. An exact field cannot be left out.
    priority: the larger wins; required if a field is ternary, range or optional, and else not allowed.
    action: in a query, "" matches any; in a changed default entry it means the program's own default.
    counts: the entry's direct counter; a query that sets it makes a read return it.
    """

    table: str = ""
    match: Mapping[str, Match] = field(default_factory=dict)
    action: str = ""
    params: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    is_default: bool = False
    metadata: bytes = b""  # any bytes of the controller, kept and returned
    controller_metadata: int = 0  # the same, as a number (deprecated in P4Runtime)
    counts: CounterData | None = None

    def __str__(self) -> str:
        if self.is_default:
            where = "default"
        else:
            where = ", ".join(f"{name}={_short(value)}" for name, value in self.match.items()) or "any"
        return f"{self.table or 'all tables'}[{where}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectCounterEntry:
    """The direct counter of a table entry; without a match, those of all entries of the table."""

    entry: TableEntry
    counts: CounterData | None = None

    def __str__(self) -> str:
        return f"counter of {self.entry}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterEntry:
    """A cell of a counter, or all cells (index None)."""

    counter: str = ""
    index: int | None = None
    counts: CounterData | None = None

    def __str__(self) -> str:
        return f"{self.counter or 'all counters'}[{'all' if self.index is None else self.index}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterEntry:
    """A cell of a register, or all cells (index None)."""

    register: str = ""
    index: int | None = None
    value: int | None = None

    def __str__(self) -> str:
        return f"{self.register or 'all registers'}[{'all' if self.index is None else self.index}]"


@dataclass(frozen=True, order=True, slots=True)
class Replica:
    """One copy: the port it leaves by, and the number that the program sees (egress_rid)."""

    port: int
    instance: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MulticastGroup:
    """A multicast group; in a query, group 0 matches all. Replicas are a set: no two are equal."""

    group: int = 0
    replicas: frozenset[Replica] = frozenset()

    def __str__(self) -> str:
        return f"multicast group {self.group}" if self.group else "all multicast groups"


Entity = TableEntry | DirectCounterEntry | CounterEntry | RegisterEntry | MulticastGroup


class UpdateKind(IntEnum):
    INSERT = 1
    MODIFY = 2
    DELETE = 3


@dataclass(frozen=True, slots=True)
class Update:
    kind: UpdateKind
    entity: Entity

    def __str__(self) -> str:
        return f"{self.kind.name} {self.entity}"


def _short(match: Match) -> str:
    if isinstance(match, Lpm):
        return f"0x{match.value:x}/{match.prefix_bits}"
    if isinstance(match, Ternary):
        return f"0x{match.value:x}&0x{match.mask:x}"
    if isinstance(match, Range):
        return f"{match.low}..{match.high}"
    return f"0x{match.value:x}"
