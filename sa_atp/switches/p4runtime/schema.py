"""The schema of a program for its control plane: tables, actions, counters, registers, with widths and names.

A schema comes from a P4Info, with ids, or, on the embedded target, from the compiled program, without ids and without
protobuf; see `embedded.p4runtime_server.program_schema`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sa_atp.switches.p4runtime.entities import KINDS, Match
from sa_atp.switches.p4runtime.errors import Code, Refusal

NEEDS_PRIORITY = frozenset({"ternary", "range", "optional"})


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldInfo:
    """A match field, an action parameter, or a field of a controller header."""

    id: int
    name: str
    bits: int
    kind: str = ""  # of a match field: exact, lpm, ternary, range, optional


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionInfo:
    id: int
    name: str
    alias: str
    params: tuple[FieldInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionUse:
    """An action of a table, and whether it may be used in entries, as default action, or both."""

    action: ActionInfo
    in_entries: bool
    as_default: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TableInfo:
    id: int
    name: str
    alias: str
    match: tuple[FieldInfo, ...]
    actions: tuple[ActionUse, ...]
    size: int
    default_is_const: bool
    is_const: bool  # its entries are part of the program
    direct_counter: "CounterInfo | None"

    @property
    def needs_priority(self) -> bool:
        return any(f.kind in NEEDS_PRIORITY for f in self.match)


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterInfo:
    id: int
    name: str
    alias: str
    size: int  # 0 for a direct counter: one cell an entry
    counts_packets: bool
    counts_bytes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterInfo:
    id: int
    name: str
    alias: str
    size: int
    bits: int  # 0: not a plain number
    signed: bool


class _Named(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def alias(self) -> str: ...


_Info = TypeVar("_Info", bound=_Named)
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class Schema:
    tables: tuple[TableInfo, ...]
    actions: tuple[ActionInfo, ...]
    counters: tuple[CounterInfo, ...]
    registers: tuple[RegisterInfo, ...]
    packet_in: tuple[FieldInfo, ...]  # header before packets to the controller; empty where the program has none
    packet_out: tuple[FieldInfo, ...]
    unsupported: tuple[str, ...] = ()  # objects of other kinds, by name
    _found: dict[tuple[str | int, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def table(self, key: str | int) -> TableInfo:
        """A table by id or name. Raises: Refusal: there is none."""
        return self._find("table", key, self.tables)

    def counter(self, key: str | int) -> CounterInfo:
        return self._find("counter", key, self.counters)

    def register(self, key: str | int) -> RegisterInfo:
        return self._find("register", key, self.registers)

    def table_action(self, table: TableInfo, key: str | int) -> ActionUse:
        """The table's action by id or name."""
        found = self._found.get(("table action", table.name, key))
        if found is None:
            action = _find("action", key, [use.action for use in table.actions], f"table {table.alias}")
            [found] = [use for use in table.actions if use.action is action]
            self._found["table action", table.name, key] = found
        return found

    def _find(self, what: str, key: str | int, infos: Sequence[_Info]) -> _Info:
        found = self._found.get((what, key))
        if found is None:
            found = self._found[what, key] = _find(what, key, infos, "the program")
        return found


def _find(what: str, key: str | int, infos: Sequence[_Info], owner: str) -> _Info:
    if isinstance(key, str):
        return find(what, key, {name: info for info in infos for name in (info.name, info.alias)}, owner)
    return find(what, f"with id {key}", {f"with id {info.id}": info for info in infos}, owner)


def find(
    what: str, name: str, known: Mapping[str, _Found], owner: str = "the program", *, any_end: bool = False
) -> _Found:
    """Finds an object by its name, or by the end of its name after a dot, if only one object's name ends so.

    Args: known: by name; what has several names has its shortest last. owner: what has these, for messages.
        any_end: whether a name may end in it anywhere.

    Raises: Refusal: there is none, or there are several.
    """
    names = [name] if name in known else [each for each in known if each.endswith(f".{name}")]
    if any_end and not names:
        names = [each for each in known if each.endswith(name)]
    found = {id(known[each]): each for each in names}
    if len(found) > 1:
        several = " or ".join(sorted(found.values()))
        raise Refusal(Code.INVALID_ARGUMENT, f"{owner}: {what} {name} may be {several}: use one of these names")
    if not found:
        all_names = ", ".join(sorted({id(info): each for each, info in known.items()}.values())) or "none"
        raise Refusal(Code.INVALID_ARGUMENT, f"there is no {what} {name}; {owner} has {all_names}")
    return known[names[0]]


def match_field(table: TableInfo, name: str) -> FieldInfo:
    """A key field by its name, or by an unambiguous end of it ("dst" for "hdr.ipv4.dst")."""
    return find("match field", name, {f.name: f for f in table.match}, f"table {table.alias}")


def check_kind(field: FieldInfo, match: Match, where: str) -> None:
    """Raises: Refusal: the match is of another kind than its field."""
    if not isinstance(match, KINDS.get(field.kind, ())):
        raise Refusal(Code.INVALID_ARGUMENT, f"{where} matches by {field.kind}, not by {type(match).__name__.lower()}")


# --- from a P4Info ----------------------------------------------------------------------------------------------------


def from_p4info(p4info: Any) -> Schema:
    """The schema of a `p4.config.v1.P4Info`."""
    actions = {
        a.preamble.id: ActionInfo(
            id=a.preamble.id,
            name=a.preamble.name,
            alias=a.preamble.alias,
            params=tuple(FieldInfo(id=p.id, name=p.name, bits=p.bitwidth) for p in a.params),
        )
        for a in p4info.actions
    }
    direct = {c.direct_table_id: _counter(c, size=0, spec=c.spec) for c in p4info.direct_counters if c.direct_table_id}
    headers = {h.preamble.name: h for h in p4info.controller_packet_metadata}
    return Schema(
        tables=tuple(_table(t, actions, direct.get(t.preamble.id)) for t in p4info.tables),
        actions=tuple(actions.values()),
        counters=tuple(_counter(c, size=c.size, spec=c.spec) for c in p4info.counters),
        registers=tuple(_register(r) for r in p4info.registers),
        packet_in=_header(headers.get("packet_in")),
        packet_out=_header(headers.get("packet_out")),
        unsupported=tuple(
            f"{what} {item.preamble.name}"
            for what, items in (
                ("action profile", p4info.action_profiles),
                ("meter", p4info.meters),
                ("direct meter", p4info.direct_meters),
                ("value set", p4info.value_sets),
                ("digest", p4info.digests),
            )
            for item in items
        )
        + tuple(f"extern {e.extern_type_name}" for e in p4info.externs),
    )


def _table(table: Any, actions: Mapping[int, ActionInfo], counter: CounterInfo | None) -> TableInfo:
    match_kinds = type(table).DESCRIPTOR.fields_by_name["match_fields"].message_type.enum_types_by_name["MatchType"]
    scopes = type(table).DESCRIPTOR.fields_by_name["action_refs"].message_type.enum_types_by_name["Scope"]
    uses = []
    for ref in table.action_refs:
        if ref.id not in actions:
            raise Refusal(Code.INVALID_ARGUMENT, f"P4Info: table {table.preamble.name}: no action has id {ref.id}")
        scope = scopes.values_by_number[ref.scope].name
        uses.append(
            ActionUse(
                action=actions[ref.id],
                in_entries=scope != "DEFAULT_ONLY",
                as_default=scope != "TABLE_ONLY",
            )
        )
    return TableInfo(
        id=table.preamble.id,
        name=table.preamble.name,
        alias=table.preamble.alias,
        match=tuple(
            FieldInfo(
                id=f.id,
                name=f.name,
                bits=f.bitwidth,
                kind=f.other_match_type or match_kinds.values_by_number[f.match_type].name.lower(),
            )
            for f in table.match_fields
        ),
        actions=tuple(uses),
        size=table.size,
        default_is_const=table.const_default_action_id != 0,
        is_const=table.is_const_table,
        direct_counter=counter,
    )


def _counter(counter: Any, *, size: int, spec: Any) -> CounterInfo:
    unit = type(spec).DESCRIPTOR.enum_types_by_name["Unit"].values_by_number[spec.unit].name
    return CounterInfo(
        id=counter.preamble.id,
        name=counter.preamble.name,
        alias=counter.preamble.alias,
        size=size,
        counts_packets=unit in ("PACKETS", "BOTH"),
        counts_bytes=unit in ("BYTES", "BOTH"),
    )


def _register(register: Any) -> RegisterInfo:
    plain = register.type_spec.bitstring
    signed = plain.HasField("int")
    return RegisterInfo(
        id=register.preamble.id,
        name=register.preamble.name,
        alias=register.preamble.alias,
        size=register.size,
        bits=plain.int.bitwidth if signed else plain.bit.bitwidth,
        signed=signed,
    )


def _header(header: Any) -> tuple[FieldInfo, ...]:
    if header is None:
        return ()
    return tuple(FieldInfo(id=f.id, name=f.name, bits=f.bitwidth) for f in header.metadata)
