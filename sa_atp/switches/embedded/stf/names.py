"""Resolves the names and values of a test in a compiled program.

It reads BMv2 JSON without `loading`, because a test may run programs on BMv2 that the embedded target refuses.

A name may be any unambiguous end of a name, as in p4c's runner. Keys that a test leaves out match everything (ternary,
lpm, range) or zero (exact). A ternary value with * matches any digit there and in higher places; without * it is the
value of the whole field. The larger priority wins.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError
from sa_atp.switches.embedded.errors import PipelineError, reading_json
from sa_atp.switches.embedded.p4runtime_server import keys
from sa_atp.switches.embedded.stf.grammar import ActionCall, Add, StfValue, number
from sa_atp.switches.p4runtime.entities import Exact, Lpm, Match, Optional, Range, TableEntry, Ternary
from sa_atp.switches.p4runtime.schema import (
    ActionInfo,
    ActionUse,
    CounterInfo,
    FieldInfo,
    RegisterInfo,
    Schema,
    TableInfo,
    find,
)

_DIGIT_BITS = {"x": 4, "b": 1}
LEAST_PRIORITY = 1  # in P4Runtime; in tests it is 0


@dataclass(frozen=True, slots=True)
class CounterName:
    """A counter. table: the table whose entries it counts; "" for a counter with an index."""

    name: str
    table: str


class ProgramNames:
    """Tables, actions, counters and registers of a program, found by any unambiguous end of their names."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._tables = {table.name: table for table in schema.tables}
        self._counters = {counter.name: CounterName(counter.name, "") for counter in schema.counters} | {
            t.direct_counter.name: CounterName(t.direct_counter.name, t.name) for t in schema.tables if t.direct_counter
        }

    @classmethod
    def from_source(cls, source: Mapping[str, Any]) -> "ProgramNames":
        """The names in parsed BMv2 JSON. Raises: PipelineError."""
        with reading_json("program"):
            return cls(_schema(source))

    @classmethod
    def from_file(cls, path: Path) -> "ProgramNames":
        """The names in a file of BMv2 JSON. Raises: PipelineError: the message names the file."""
        try:
            source = json.loads(path.read_bytes())
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise PipelineError(f"{path}: not BMv2 JSON ({error})") from None
        if not isinstance(source, dict) or "pipelines" not in source or "header_types" not in source:
            raise PipelineError(f"{path}: not BMv2 JSON: expected the output of p4c-bm2-ss")
        return cls.from_source(source)

    # --- looking up ---------------------------------------------------------------------------------------------------

    def changeable_tables(self) -> Sequence[str]:
        """Tables whose entries the control plane may change."""
        return [table.name for table in self.schema.tables if table.match and not table.is_const]

    def counter(self, name: str) -> CounterName:
        return find("counter", name, self._counters, any_end=True)

    def register(self, name: str) -> str:
        return find("register", name, {each.name: each.name for each in self.schema.registers}, any_end=True)

    def entry(self, add: Add) -> TableEntry:
        """The entry of a statement. Raises: UserError."""
        table = find("table", add.table, self._tables, any_end=True)
        match: dict[str, Match] = {f.name: Exact(0) for f in table.match if f.kind == "exact"}
        given = set()
        for name, value in add.match:
            field = _field_of(table, name)
            if field.name in given:
                raise UserError(f"table {table.name}: {field.name} is given twice")
            given.add(field.name)
            match[field.name] = _match(field, value)
        if table.needs_priority and add.priority is None:
            raise UserError(f"table {table.name} matches by ternary or range: expected a priority after its name")
        priority = (add.priority or 0) + LEAST_PRIORITY if table.needs_priority else 0
        entry = self._entry(table, add.call, match=match, priority=priority)
        keys.key(table, entry)
        return entry

    def default(self, table_name: str, call: ActionCall) -> TableEntry:
        """A default action. Raises: UserError."""
        return self._entry(find("table", table_name, self._tables, any_end=True), call, is_default=True)

    def _entry(self, table: TableInfo, call: ActionCall, **rest: Any) -> TableEntry:
        actions = {use.action.name: use.action for use in table.actions}
        action = find("action", call.action, actions, f"table {table.name}", any_end=True)
        if len(dict(call.arguments)) < len(call.arguments):
            raise UserError(f"action {action.name}: a parameter is given twice")
        params = {name: _plain(value, f"{action.name}: {name}") for name, value in call.arguments}
        keys.data(action, params)
        return TableEntry(table=table.name, action=action.name, params=params, **rest)


def _schema(source: Mapping[str, Any]) -> Schema:
    """What BMv2 JSON says of a program's control plane; it has no ids."""
    types = {t["name"]: {name: bits for name, bits, *_ in t["fields"]} for t in source["header_types"]}
    instances = {h["name"]: types[h["header_type"]] for h in source["headers"]}
    for stack in (*source.get("header_stacks", ()), *source.get("header_union_stacks", ())):
        for i in range(stack["size"]):
            instances.setdefault(f"{stack['name']}[{i}]", types.get(stack.get("header_type"), {}))
    actions = {
        a["id"]: ActionInfo(
            id=0,
            name=a["name"],
            alias=a["name"],
            params=tuple(FieldInfo(id=0, name=p["name"], bits=p["bitwidth"]) for p in a["runtime_data"]),
        )
        for a in source["actions"]
    }
    counters = [(_counter(c), c) for c in source.get("counter_arrays", ())]
    direct = {c["binding"]: info for info, c in counters if c.get("is_direct")}
    return Schema(
        tables=tuple(
            TableInfo(
                id=0,
                name=table["name"],
                alias=table["name"],
                match=tuple(_field(k, instances) for k in table["key"]),
                actions=tuple(
                    ActionUse(action=actions[i], in_entries=True, as_default=True) for i in table["action_ids"]
                ),
                size=table["max_size"],
                default_is_const=False,
                is_const=table.get("entries") is not None,
                direct_counter=direct.get(table["name"]),
            )
            for pipeline in source["pipelines"]
            for table in pipeline["tables"]
        ),
        actions=tuple(actions.values()),
        counters=tuple(info for info, c in counters if not c.get("is_direct")),
        registers=tuple(
            RegisterInfo(id=0, name=r["name"], alias=r["name"], size=r["size"], bits=r["bitwidth"], signed=False)
            for r in source.get("register_arrays", ())
        ),
        packet_in=(),
        packet_out=(),
    )


def _counter(counter: Mapping[str, Any]) -> CounterInfo:
    name = counter["name"]
    return CounterInfo(id=0, name=name, alias=name, size=counter.get("size", 0), counts_packets=True, counts_bytes=True)


def _field(key: Mapping[str, Any], instances: Mapping[str, Mapping[str, int]]) -> FieldInfo:
    target = key["target"]
    header, field = (target, "") if isinstance(target, str) else (target[0], target[1])
    name = key.get("name") or ".".join(part for part in (header, field) if part)
    if key["match_type"] == "valid" or field == "$valid$":
        return FieldInfo(id=0, name=name, bits=1, kind=key["match_type"].replace("valid", "exact"))
    return FieldInfo(id=0, name=name, bits=instances[header][field], kind=key["match_type"])


def _field_of(table: TableInfo, name: str) -> FieldInfo:
    for wanted in (name, f"{name}$", f"{name}.$valid$", re.sub(r"\.valid$", ".$valid$", name)):
        for key in table.match:
            if key.name == wanted:
                return key
    found = [k for k in table.match if k.name.endswith((f".{name}", f".{name}$"))]
    if name == "valid":
        found = [k for k in table.match if k.name.endswith("$valid$")]
    if len(found) == 1:
        return found[0]
    keys = ", ".join(k.name for k in table.match) or "none"
    raise UserError(f"table {table.name}: {'ambiguous' if found else 'unknown'} key {name}; it has {keys}")


# --- values -----------------------------------------------------------------------------------------------------------


def _match(field: FieldInfo, value: StfValue) -> Match:
    full = (1 << field.bits) - 1
    where = f"key {field.name}"
    if field.kind == "range":
        low = number(value.text)
        high = number(value.second) if value.form == "range" else low
        if value.form not in ("plain", "range") or low > high:
            raise UserError(f"{where}: {value}: expected a number or LOW->HIGH")
        return Range(low, high)
    if value.form == "range":
        raise UserError(f"{where}: {value}: it matches by {field.kind}, not by range")
    if field.kind in ("exact", "optional"):
        first = _plain(value, where)
        return Exact(first) if field.kind == "exact" else Optional(first)
    first, mask = _value_and_mask(value, field.bits, where)
    if first > full:
        raise UserError(f"{where}: {first} does not fit in {field.bits} bits")
    if field.kind == "ternary":
        return Ternary(first & mask, mask)
    prefix_bits = mask.bit_count()
    if mask != full & ~(full >> prefix_bits):
        raise UserError(f"{where}: {value}: expected a prefix: no * before a digit that counts")
    return Lpm(first & mask, prefix_bits)


def _value_and_mask(value: StfValue, bits: int, where: str) -> tuple[int, int]:
    full = (1 << bits) - 1
    if value.form == "prefix":
        length = number(value.second)
        if length > bits:
            raise UserError(f"{where}: {value}: a prefix of more than {bits} bits")
        return number(value.text), full & ~(full >> length)
    if value.form == "mask":
        return number(value.text), number(value.second)
    if "*" not in value.text:
        return number(value.text), full
    digits = value.text[2:]
    per_digit = _DIGIT_BITS[value.text[1].lower()]
    first = mask = 0
    for digit in digits:
        first = first << per_digit | (0 if digit == "*" else int(digit, 16))
        mask = mask << per_digit | (0 if digit == "*" else (1 << per_digit) - 1)
    return first, mask & full


def _plain(value: StfValue, where: str) -> int:
    if value.form != "plain":
        raise UserError(f"{where}: {value}: expected one number")
    return number(value.text)
