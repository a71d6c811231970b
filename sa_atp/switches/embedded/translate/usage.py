"""Finds the fields that a program reads and writes: those to extract from packets, and those to write back.

The deparser copies a header that is only read, and assembles only bytes that the program may have changed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.program import Program

Reference = tuple[str, str]  # (header, field)

# primitives whose first parameter is written, not read
WRITES_FIRST = frozenset({"assign", "register_read", "modify_field_with_hash_based_offset", "modify_field", "set"})


@dataclass(slots=True)
class Usage:
    read: set[Reference] = field(default_factory=set)
    written: set[Reference] = field(default_factory=set)
    made: set[str] = field(default_factory=set)  # headers that the program may make valid or overwrite
    removed: set[str] = field(default_factory=set)  # headers that the program may make invalid
    filled: set[str] = field(default_factory=set)  # headers with a varbit that may have a length
    written_in_egress: set[Reference] = field(default_factory=set)
    validity_in_egress: set[str] = field(default_factory=set)

    @property
    def tracks_length(self) -> bool:
        """Whether egress reads the length of packets, which setValid and setInvalid change."""
        return ("standard_metadata", "packet_length") in self.read and bool(self.made | self.removed)


def references(node: Any) -> Iterator[Reference]:
    """Every field that a piece of JSON refers to; a header of a stack with a variable index has the stack's name."""
    if isinstance(node, Mapping):
        if node.get("type") in ("field", "stack_field", "element"):
            yield (node["value"][0], node["value"][1])
            yield from references(node.get("index"))
        else:
            for child in node.values():
                yield from references(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from references(child)


def asked_for(condition: Mapping[str, Any]) -> Iterator[str]:
    """Headers that must be valid for a condition to hold, if it is a conjunction."""
    node = condition["value"]
    if condition["type"] == "field" and node[1] == "$valid$":
        yield node[0]
    elif condition["type"] == "header":
        yield node
    elif condition["type"] == "expression":
        if "op" not in node:
            yield from asked_for(node)
        elif node["op"] in ("d2b", "valid"):
            yield from asked_for(node["right"])
        elif node["op"] == "and":
            yield from asked_for(node["left"])
            yield from asked_for(node["right"])


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
    """Adds the uses of a statement. Returns: fields that it writes, and headers whose validity it changes."""
    op, parameters = primitive["op"], primitive["parameters"]
    written: set[Reference] = set()
    validity: set[str] = set()
    made, sources = _headers_made(program, op, parameters)
    for header in made:
        siblings = program.siblings(header)
        validity.update((header, *siblings))
        usage.removed.update(siblings)
        written.update((header, f.name) for f in program.headers[header].fields)
    usage.made.update(made, sources)
    usage.read.update((header, f.name) for header in sources for f in program.headers[header].fields)
    if op != "add_header":
        usage.removed.update(made)  # an assignment may make a header valid or invalid
        usage.filled.update(made)
    if op == "remove_header":
        validity.add(parameters[0]["value"])
        usage.removed.add(parameters[0]["value"])
    elif op in ("extract", "extract_VL"):
        name = parameters[0]["value"]
        headers = program.stacks.get(name, ()) if parameters[0]["type"] == "stack" else (name,)
        usage.filled.update(headers)
        for header in headers:
            usage.removed.update(program.siblings(header))
        usage.read.update(references(parameters[1:]))
    elif op in WRITES_FIRST:
        target = parameters[0]
        if target.get("type") not in ("field", "element"):
            raise Unsupported(f"a statement {op} whose target is a {target.get('type')}", "program")
        written.add((target["value"][0], target["value"][1]))
        usage.read.update(references(target.get("index")))
        usage.read.update(references(parameters[1:]))
        for parameter in parameters[1:]:
            if parameter["type"] == "calculation":
                usage.read.update(references(program.calculations[parameter["value"]].inputs))
    elif op in ("mark_to_drop", "drop"):
        written.update({("standard_metadata", "egress_spec"), ("standard_metadata", "mcast_grp")})
    elif not made:
        usage.read.update(references(parameters))
    usage.written |= written
    return written, validity


def _headers_made(program: Program, op: str, parameters: Sequence[Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Headers that a statement makes valid or overwrites completely, and the headers that it copies."""
    if op == "add_header":
        return (parameters[0]["value"],), ()
    if op == "assign_VL":  # the rest of the header is assembled beside it
        return tuple(node["value"][0] for node in parameters[:1]), tuple(node["value"][0] for node in parameters[1:])
    if op == "assign_header":
        return (parameters[0]["value"],), (parameters[1]["value"],)
    if op in ("push", "pop"):
        headers = program.stacks.get(parameters[0]["value"], ())
        return headers, headers
    groups = {"assign_header_stack": program.stacks, "assign_union": program.unions}.get(op)
    if groups is not None:
        return groups[parameters[0]["value"]], groups[parameters[1]["value"]]
    return (), ()


def _resolved(program: Program, usage: Usage) -> Usage:
    """A usage with aliases replaced by their fields, and stacks by their headers."""

    def resolve(found: set[Reference]) -> set[Reference]:
        return {
            program.aliases.get((header, name), (header, name))
            for place, name in found
            for header in program.stacks.get(place, (place,))
            if name != "$valid$"
        }

    return Usage(
        read=resolve(usage.read),
        written=resolve(usage.written),
        made=usage.made,
        removed=usage.removed,
        filled=usage.filled,
        written_in_egress=resolve(usage.written_in_egress),
        validity_in_egress=usage.validity_in_egress,
    )
