"""Converts match keys and parameters between entities and the tables of a pipeline. (section 9.1.1)"""

from collections.abc import Iterable, Mapping

from sa_atp.switches.embedded.program import Entry
from sa_atp.switches.embedded.tables import TableState
from sa_atp.switches.p4runtime.entities import Exact, Lpm, Match, Optional, Range, TableEntry, Ternary, matches_all
from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import ActionInfo, FieldInfo, TableInfo, check_kind, match_field

MOST_PRIORITY = (1 << 31) - 1  # P4Runtime's priorities are int32
Key = tuple[tuple[int, int], ...]


def key(table: TableInfo, entry: TableEntry) -> Key:
    """The match key of an entity for a table: (value, mask) for each field, (low, high) for a range.

    Raises: Refusal: a field is unknown, missing, of another kind or out of range, or the priority does not fit.
    """
    given = {match_field(table, name).name: match for name, match in entry.match.items()}
    if table.needs_priority and not 0 < entry.priority <= MOST_PRIORITY:
        raise Refusal(
            Code.INVALID_ARGUMENT, f"{entry}: priority {entry.priority}: this table needs one from 1 to {MOST_PRIORITY}"
        )
    if not table.needs_priority and entry.priority:
        raise Refusal(Code.INVALID_ARGUMENT, f"{entry}: this table has no priorities")
    return tuple(_field_key(f, given.get(f.name), f"{entry}: {f.name}") for f in table.match)


def _field_key(field: FieldInfo, match: Match | None, where: str) -> tuple[int, int]:
    full = (1 << field.bits) - 1
    if match is None:
        if field.kind == "exact":
            raise Refusal(Code.INVALID_ARGUMENT, f"{where} is missing: an exact field cannot match everything")
        return (0, full) if field.kind == "range" else (0, 0)
    check_kind(field, match, where)
    if isinstance(match, Range):
        first, second = match.low, match.high
        if first > second:
            raise Refusal(Code.INVALID_ARGUMENT, f"{where}: the range {first}..{second} is empty")
    else:
        first, second = match.value, full
        if isinstance(match, Ternary):
            second = match.mask
        elif isinstance(match, Lpm):
            if not 0 <= match.prefix_bits <= field.bits:
                raise Refusal(
                    Code.INVALID_ARGUMENT, f"{where}: a prefix of {match.prefix_bits} bits: expected 0 to {field.bits}"
                )
            second = full & ~(full >> match.prefix_bits)
        if first >= 0 and second >= 0 and first & ~second & full:
            raise Refusal(Code.INVALID_ARGUMENT, f"{where}: the value has bits that its mask or prefix does not cover")
    if not (0 <= first <= full and 0 <= second <= full):
        raise Refusal(Code.OUT_OF_RANGE, f"{where} does not fit in {field.bits} bits")
    return (first, second)


def match_of(table: TableInfo, matched: Key) -> dict[str, Match]:
    """The inverse of `key`; fields that match everything are left out."""
    found = {f.name: (_match_of(f.kind, *pair), f.bits) for f, pair in zip(table.match, matched, strict=True)}
    return {name: match for name, (match, bits) in found.items() if not matches_all(match, bits)}


def _match_of(kind: str, first: int, second: int) -> Match:
    if kind == "range":
        return Range(first, second)
    if kind == "lpm":
        return Lpm(first, second.bit_count())
    if kind == "optional" and second:
        return Optional(first)
    return Exact(first) if kind == "exact" else Ternary(first, second)


def data(action: ActionInfo, params: Mapping[str, int]) -> tuple[int, ...]:
    """The parameters of an action, in its order. Raises: Refusal: one is unknown, missing or out of range."""
    expected = {p.name for p in action.params}
    if params.keys() != expected:
        raise Refusal(Code.INVALID_ARGUMENT, f"action {action.alias} takes {_names(expected)}, not {_names(params)}")
    for p in action.params:
        if not 0 <= params[p.name] < 1 << p.bits:
            raise Refusal(
                Code.OUT_OF_RANGE,
                f"action {action.alias}: {p.name} = {params[p.name]} does not fit in {p.bits} bits",
            )
    return tuple(params[p.name] for p in action.params)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no parameters"


def priority(table: TableInfo, state: TableState, entry: Entry) -> int:
    """An entry's priority in P4Runtime. For const entries of the program it follows from their order."""
    if not table.needs_priority:
        return 0
    return entry.priority + MOST_PRIORITY if state.table.const_entries is not None else entry.priority
