"""Which fields a program reads and writes: what must be taken out of a packet, and what must be put back.

A header that is only looked at costs nothing on the way out: its bytes are copied as they came. Only the bytes that the
program may have changed are assembled again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sa_atp.softswitch.errors import PipelineError
from sa_atp.softswitch.program import Program

Reference = tuple[str, str]  # (header, field)

# primitives whose first parameter is written, not read
WRITES_FIRST = frozenset({"assign", "register_read", "modify_field_with_hash_based_offset", "modify_field", "set"})


@dataclass(slots=True)
class Usage:
    read: set[Reference] = field(default_factory=set)
    written: set[Reference] = field(default_factory=set)
    made: set[str] = field(default_factory=set)  # headers that the program itself may turn valid or overwrite
    written_in_egress: set[Reference] = field(default_factory=set)
    validity_in_egress: set[str] = field(default_factory=set)


def references(node: Any) -> Iterator[Reference]:
    """Every field that a piece of JSON mentions."""
    if isinstance(node, Mapping):
        if node.get("type") == "field":
            yield (node["value"][0], node["value"][1])
        else:
            for child in node.values():
                yield from references(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from references(child)


def analyse(program: Program) -> Usage:
    usage = Usage()
    for state in program.states.values():
        usage.read.update(references(state.key))
        for operation in state.operations:
            if operation["op"] == "primitive":
                operation = operation["parameters"][0]
            _primitive(program, usage, operation)
    for control in (program.ingress, program.egress):
        reached = reachable_actions(control.tables.values())
        for table in control.tables.values():
            usage.read.update((k.header, k.field) for k in table.key)
        for conditional in control.conditionals.values():
            usage.read.update(references(conditional.expression))
        written: set[Reference] = set()
        validity: set[str] = set()
        for action_id in reached:
            for primitive in program.actions[action_id].primitives:
                w, v = _primitive(program, usage, primitive)
                written |= w
                validity |= v
        if control is program.egress:
            usage.written_in_egress = written
            usage.validity_in_egress = validity
    for checksum in program.checksums:
        usage.read.update(references(checksum.calculation.inputs))
        usage.read.update(references(checksum.condition))
        usage.read.add((checksum.header, checksum.field))
        if checksum.update:
            usage.written.add((checksum.header, checksum.field))
            usage.written_in_egress.add((checksum.header, checksum.field))
    return _resolved(program, usage)


def reachable_actions(tables: Iterable[Any]) -> set[int]:
    reached: set[int] = set()
    for table in tables:
        reached.update(table.action_ids)
        reached.add(table.default_action)
    return reached


def _primitive(program: Program, usage: Usage, primitive: Mapping[str, Any]) -> tuple[set[Reference], set[str]]:
    """Adds what one statement uses; returns the fields it writes and the headers whose validity it changes."""
    op, parameters = primitive["op"], primitive["parameters"]
    written: set[Reference] = set()
    validity: set[str] = set()
    if op in ("add_header", "remove_header"):
        validity.add(parameters[0]["value"])
        if op == "add_header":
            usage.made.add(parameters[0]["value"])
    elif op == "assign_header":
        target, source = parameters[0]["value"], parameters[1]["value"]
        validity.add(target)
        usage.made.update((target, source))
        written.update((target, f.name) for f in program.headers[target].fields)
        usage.read.update((source, f.name) for f in program.headers[source].fields)
    elif op in WRITES_FIRST:
        if parameters[0].get("type") != "field":
            raise PipelineError(f"a statement {op} whose target is not a field: {parameters[0]}")
        written.update(references(parameters[0]))
        usage.read.update(references(parameters[1:]))
    elif op in ("mark_to_drop", "drop"):
        written.update({("standard_metadata", "egress_spec"), ("standard_metadata", "mcast_grp")})
    elif op != "extract":
        usage.read.update(references(parameters))
    usage.written |= written
    return written, validity


def _resolved(program: Program, usage: Usage) -> Usage:
    """The same, with aliases replaced by the fields they stand for."""

    def resolve(found: set[Reference]) -> set[Reference]:
        return {program.aliases.get(r, r) for r in found if r[1] != "$valid$"}

    return Usage(
        read=resolve(usage.read),
        written=resolve(usage.written),
        made=usage.made,
        written_in_egress=resolve(usage.written_in_egress),
        validity_in_egress=usage.validity_in_egress,
    )
