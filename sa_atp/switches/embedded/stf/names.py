"""Resolves the names and values of a test in a compiled program.

It reads BMv2 JSON without `loading`, because a test may run programs on BMv2 that the embedded target refuses.

A name may be any unambiguous end of a name, as in p4c's runner. Keys that a test leaves out match everything (ternary,
lpm, range) or zero (exact). A ternary value with * matches any digit there and in higher places; without * it is the
value of the whole field. The larger priority wins.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sa_atp.basics.errors import UserError
from sa_atp.switches.embedded.errors import PipelineError, reading_json
from sa_atp.switches.embedded.stf.grammar import ActionCall, Add, StfValue, number
from sa_atp.switches.p4runtime.schema import Schema

Kind = Literal["exact", "lpm", "ternary", "range"]
_KINDS: Mapping[str, Kind] = {
    "exact": "exact",
    "valid": "exact",
    "lpm": "lpm",
    "ternary": "ternary",
    "optional": "ternary",
    "range": "range",
}
_DIGIT_BITS = {"x": 4, "b": 1}


@dataclass(frozen=True, slots=True)
class BoundMatch:
    """A match of an entry. first, second: value and mask, or low and high of a range; prefix_bits: for an lpm."""

    kind: Kind
    first: int
    second: int
    prefix_bits: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundEntry:
    """An entry with the program's full names; priority: the larger wins, None if the table has no priorities."""

    table: str
    match: tuple[BoundMatch, ...]
    action: str
    data: tuple[int, ...]
    priority: int | None


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    kind: Kind
    bits: int


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    keys: tuple[_Key, ...]
    actions: Mapping[str, tuple[tuple[str, int], ...]]  # name: (parameter, bits) of each
    is_const: bool  # its entries are part of the program

    @property
    def has_priority(self) -> bool:
        return any(key.kind in ("ternary", "range") for key in self.keys)


@dataclass(frozen=True, slots=True)
class CounterName:
    """A counter. table: the table whose entries it counts; "" for a counter with an index."""

    name: str
    table: str


class ProgramNames:
    """Tables, actions, counters and registers of a program, found by any unambiguous end of their names."""

    def __init__(self, tables: Iterable[_Table], counters: Iterable[CounterName], registers: Iterable[str]) -> None:
        self._tables = {table.name: table for table in tables}
        self._counters = {counter.name: counter for counter in counters}
        self._registers = {name: name for name in registers}

    @classmethod
    def from_source(cls, source: Mapping[str, Any]) -> "ProgramNames":
        """The names in parsed BMv2 JSON. Raises: PipelineError."""
        with reading_json("program"):
            return cls(
                _tables(source),
                [
                    CounterName(c["name"], c.get("binding", "") if c.get("is_direct") else "")
                    for c in source.get("counter_arrays", ())
                ],
                [register["name"] for register in source.get("register_arrays", ())],
            )

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

    @classmethod
    def from_schema(cls, schema: Schema) -> "ProgramNames":
        """The names in a schema, for a program of another target."""
        return cls(
            (
                _Table(
                    table.name,
                    tuple(_Key(field.name, _KINDS[field.kind], field.bits) for field in table.match),
                    {
                        use.action.name: tuple((param.name, param.bits) for param in use.action.params)
                        for use in table.actions
                    },
                    table.is_const,
                )
                for table in schema.tables
            ),
            (
                *(CounterName(counter.name, "") for counter in schema.counters),
                *(CounterName(t.direct_counter.name, t.name) for t in schema.tables if t.direct_counter is not None),
            ),
            (register.name for register in schema.registers),
        )

    # --- looking up ---------------------------------------------------------------------------------------------------

    def changeable_tables(self) -> Sequence[str]:
        """Tables whose entries the control plane may change."""
        return [table.name for table in self._tables.values() if table.keys and not table.is_const]

    def counter(self, name: str) -> CounterName:
        return self._counters[_find("counter", name, self._counters)]

    def register(self, name: str) -> str:
        return _find("register", name, self._registers)

    def entry(self, add: Add) -> BoundEntry:
        """The entry of a statement. Raises: UserError."""
        table = self._tables[_find("table", add.table, self._tables)]
        given: dict[str, StfValue] = {}
        for name, value in add.match:
            key = _key_of(table, name)
            if key.name in given:
                raise UserError(f"table {table.name}: {key.name} is given twice")
            given[key.name] = value
        if table.has_priority and add.priority is None:
            raise UserError(f"table {table.name} matches by ternary or range: expected a priority after its name")
        action, data = self._call(table, add.call)
        return BoundEntry(
            table=table.name,
            match=tuple(_match(key, given.get(key.name)) for key in table.keys),
            action=action,
            data=data,
            priority=add.priority if table.has_priority else None,
        )

    def default(self, table_name: str, call: ActionCall) -> tuple[str, str, tuple[int, ...]]:
        """Table, action and parameters of a default action. Raises: UserError."""
        table = self._tables[_find("table", table_name, self._tables)]
        return (table.name, *self._call(table, call))

    def _call(self, table: _Table, call: ActionCall) -> tuple[str, tuple[int, ...]]:
        action = _find(f"action of table {table.name}", call.action, table.actions)
        parameters = table.actions[action]
        given = dict(call.arguments)
        if len(given) != len(call.arguments) or given.keys() != {name for name, _ in parameters}:
            expected = ", ".join(name for name, _ in parameters) or "no parameters"
            written = ", ".join(name for name, _ in call.arguments) or "none"
            raise UserError(f"action {action}: expected {expected}, not {written}")
        return action, tuple(
            _fitting(_plain(given[name], f"{action}: {name}"), bits, f"action {action}: {name}")
            for name, bits in parameters
        )


def _tables(source: Mapping[str, Any]) -> list[_Table]:
    types = {t["name"]: {name: bits for name, bits, *_ in t["fields"]} for t in source["header_types"]}
    instances = {h["name"]: types[h["header_type"]] for h in source["headers"]}
    for stack in (*source.get("header_stacks", ()), *source.get("header_union_stacks", ())):
        for i in range(stack["size"]):
            instances.setdefault(f"{stack['name']}[{i}]", types.get(stack.get("header_type"), {}))
    actions = {a["id"]: a for a in source["actions"]}
    return [
        _Table(
            table["name"],
            tuple(_key(k, instances) for k in table["key"]),
            {
                actions[i]["name"]: tuple((p["name"], p["bitwidth"]) for p in actions[i]["runtime_data"])
                for i in table["action_ids"]
            },
            table.get("entries") is not None,
        )
        for pipeline in source["pipelines"]
        for table in pipeline["tables"]
    ]


def _key(key: Mapping[str, Any], instances: Mapping[str, Mapping[str, int]]) -> _Key:
    target = key["target"]
    header, field = (target, "") if isinstance(target, str) else (target[0], target[1])
    name = key.get("name") or ".".join(part for part in (header, field) if part)
    kind = _KINDS[key["match_type"]]
    if key["match_type"] == "valid" or field == "$valid$":
        return _Key(name, kind, 1)
    return _Key(name, kind, instances[header][field])


def _find(what: str, name: str, known: Mapping[str, Any]) -> str:
    """The only name that is equal to `name`, or ends in it. Raises: UserError."""
    if name in known:
        return name
    found = [k for k in known if k.endswith("." + name)] or [k for k in known if k.endswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{what} {name}: that may be {' or '.join(sorted(found))}")
    raise UserError(f"there is no {what} {name}; the program has {', '.join(sorted(known)) or 'none'}")


def _key_of(table: _Table, name: str) -> _Key:
    for wanted in (name, f"{name}$", f"{name}.$valid$", re.sub(r"\.valid$", ".$valid$", name)):
        for key in table.keys:
            if key.name == wanted:
                return key
    found = [k for k in table.keys if k.name.endswith((f".{name}", f".{name}$"))]
    if name == "valid":
        found = [k for k in table.keys if k.name.endswith("$valid$")]
    if len(found) == 1:
        return found[0]
    keys = ", ".join(k.name for k in table.keys) or "none"
    raise UserError(f"table {table.name}: {'ambiguous' if found else 'unknown'} key {name}; it has {keys}")


# --- values -----------------------------------------------------------------------------------------------------------


def _match(key: _Key, value: StfValue | None) -> BoundMatch:
    full = (1 << key.bits) - 1
    if value is None:
        return BoundMatch(key.kind, 0, full if key.kind in ("exact", "range") else 0)
    where = f"key {key.name}"
    if key.kind == "range":
        low = number(value.text)
        high = number(value.second) if value.form == "range" else low
        if value.form not in ("plain", "range") or low > high:
            raise UserError(f"{where}: {value}: expected a number or LOW->HIGH")
        return BoundMatch("range", low, _fitting(high, key.bits, where))
    if value.form == "range":
        raise UserError(f"{where}: {value}: it matches by {key.kind}, not by range")
    if key.kind == "exact":
        first = _plain(value, where)
        return BoundMatch("exact", _fitting(first, key.bits, where), full)
    first, mask = _value_and_mask(value, key.bits, where)
    _fitting(first, key.bits, where)
    if key.kind == "lpm":
        prefix_bits = mask.bit_count()
        if mask != full & ~(full >> prefix_bits):
            raise UserError(f"{where}: {value}: expected a prefix: no * before a digit that counts")
        return BoundMatch("lpm", first & mask, mask, prefix_bits)
    return BoundMatch("ternary", first & mask, mask)


def _value_and_mask(value: StfValue, bits: int, where: str) -> tuple[int, int]:
    full = (1 << bits) - 1
    if value.form == "prefix":
        length = number(value.second)
        if length > bits:
            raise UserError(f"{where}: {value}: a prefix of more than {bits} bits")
        return number(value.text), full & ~(full >> length)
    if value.form == "mask":
        return number(value.text), _fitting(number(value.second), bits, where)
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


def _fitting(found: int, bits: int, where: str) -> int:
    if found >> bits:
        raise UserError(f"{where}: {found} does not fit in {bits} bits")
    return found
