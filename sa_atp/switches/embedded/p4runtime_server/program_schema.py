"""The schema of a compiled program, without protobuf, and its differences from a P4Info."""

from collections import Counter
from collections.abc import Iterable, Mapping

from sa_atp.basics.words import plural
from sa_atp.switches.embedded.program import Program, Table
from sa_atp.switches.p4runtime.schema import (
    ActionInfo,
    ActionUse,
    CounterInfo,
    FieldInfo,
    RegisterInfo,
    Schema,
    TableInfo,
)


def from_program(program: Program) -> Schema:
    """The schema of a compiled program: it has no ids, and all registers are unsigned, as their signs are not known."""
    tables = [t for t in program.tables() if not t.hidden]
    used = {i: program.actions[i] for t in tables for i in (*t.action_ids, t.default_action)}
    action_aliases = aliases({a.name for a in used.values()})
    table_aliases = aliases({t.name for t in tables})
    counter_aliases = aliases({c.name for c in program.counters})
    register_aliases = aliases({r.name for r in program.registers})
    actions = {
        a.name: ActionInfo(
            id=0,
            name=a.name,
            alias=action_aliases[a.name],
            params=tuple(FieldInfo(id=i + 1, name=name, bits=bits) for i, (name, bits) in enumerate(a.parameters)),
        )
        for a in used.values()
    }
    return Schema(
        tables=tuple(_program_table(t, table_aliases[t.name], program, actions) for t in tables),
        actions=tuple(actions.values()),
        counters=tuple(
            CounterInfo(
                id=0, name=c.name, alias=counter_aliases[c.name], size=c.size, counts_packets=True, counts_bytes=True
            )
            for c in program.counters
        ),
        registers=tuple(
            RegisterInfo(id=0, name=r.name, alias=register_aliases[r.name], size=r.size, bits=r.bits, signed=False)
            for r in program.registers
        ),
        packet_in=(),
        packet_out=(),
    )


def _program_table(table: Table, alias: str, program: Program, actions: Mapping[str, ActionInfo]) -> TableInfo:
    names = {program.actions[i].name: i in table.action_ids for i in (table.default_action, *table.action_ids)}
    counter = None
    if table.with_counters:
        counter = CounterInfo(id=0, name=table.name, alias=alias, size=0, counts_packets=True, counts_bytes=True)
    return TableInfo(
        id=0,
        name=table.name,
        alias=alias,
        match=tuple(FieldInfo(id=i + 1, name=k.name, bits=k.bits, kind=k.match_type) for i, k in enumerate(table.key)),
        actions=tuple(
            ActionUse(action=actions[name], in_entries=in_entries, as_default=True)
            for name, in_entries in names.items()
        ),
        size=table.max_size,
        default_is_const=table.default_const,
        is_const=table.const_entries is not None,
        direct_counter=counter,
    )


def aliases(names: Iterable[str]) -> dict[str, str]:
    """The shortest unambiguous end of each dotted name."""
    ends = {name: _ends(name) for name in names}
    shared = Counter(end for each in ends.values() for end in each)
    return {name: next((end for end in each if shared[end] == 1), name) for name, each in ends.items()}


def _ends(name: str) -> list[str]:
    """The ends of a dotted name, the shortest first."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts) - 1, -1, -1)]


# --- differences ------------------------------------------------------------------------------------------------------


def differences(p4info: Schema, program: Schema) -> list[str]:
    """The differences between a P4Info and a compiled program, one sentence each; empty if they belong together."""
    found = [f"{name} of the P4Info is not supported by the embedded target" for name in p4info.unsupported]
    tables = {t.name: t for t in program.tables}
    for table in p4info.tables:
        compiled = tables.pop(table.name, None)
        if compiled is None:
            found.append(f"table {table.name} is in the P4Info but not in the compiled program")
        else:
            found += _table_differences(table, compiled)
    found += [f"table {name} is in the compiled program but not in the P4Info" for name in tables]
    for what, described, made in (
        ("counter", p4info.counters, program.counters),
        ("register", p4info.registers, program.registers),
    ):
        sizes = {info.name: info.size for info in made}
        for info in described:
            if info.name not in sizes:
                found.append(f"{what} {info.name} is in the P4Info but not in the compiled program")
            elif info.size != sizes[info.name]:
                cells = plural(info.size, "cell")
                found.append(f"{what} {info.name} has {cells} in the P4Info and {sizes[info.name]} in the program")
    return found


def _key_kinds(table: TableInfo) -> list[tuple[str, int]]:
    # p4c writes an optional field as a ternary one into BMv2 JSON
    return [("ternary" if f.kind == "optional" else f.kind, f.bits) for f in table.match]


def _table_differences(table: TableInfo, compiled: TableInfo) -> list[str]:
    found = []
    described, made = _key_kinds(table), _key_kinds(compiled)
    if described != made:
        found.append(f"table {table.name} has the key {described} in the P4Info and {made} in the compiled program")
    actions = {use.action.name: use.action for use in compiled.actions}
    for use in table.actions:
        action = actions.get(use.action.name)
        if action is None:
            found.append(f"table {table.name}: the compiled program has no action {use.action.name}")
        elif [p.bits for p in action.params] != [p.bits for p in use.action.params]:
            found.append(f"action {action.name} has other parameters in the P4Info than in the compiled program")
    if table.direct_counter is not None and compiled.direct_counter is None:
        found.append(f"table {table.name}: the compiled program has no direct counter")
    return found
