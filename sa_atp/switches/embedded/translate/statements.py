"""Translates actions: their primitives as Python statements."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sa_atp.switches.embedded.block_locks import BLOCK_BITS, BLOCKS
from sa_atp.switches.embedded.errors import PipelineError, Unsupported
from sa_atp.switches.embedded.program import WORD_BITS, Action, Header
from sa_atp.switches.embedded.translate.expressions import Translator, Value
from sa_atp.switches.embedded.translate.headers import Headers
from sa_atp.switches.embedded.translate.layout import RegisterPlace
from sa_atp.switches.embedded.translate.part import Part
from sa_atp.switches.embedded.translate.reroll import Families, FamilyMember, Loop, member_of, reroll
from sa_atp.switches.embedded.translate.usage import WRITES_FIRST, references

DROP_PORT = 511  # simple_switch's default

UNSUPPORTED = {
    "clone_ingress_pkt_to_egress": "clone",
    "clone_egress_pkt_to_egress": "clone",
    "resubmit": "resubmit",
    "recirculate": "recirculate",
    "generate_digest": "digest",
    "execute_meter": "meter",
    "modify_field_rng_uniform": "random",
    "truncate": "truncate",
}


class Statements(Part):
    """Writes the bodies of a program's actions; `parameters` and `where` are those of the present action."""

    def __init__(self, translator: Translator) -> None:
        super().__init__(translator)
        self.headers = Headers(translator)
        self.families = _families(translator)
        self.parameters: tuple[Value, ...] = ()
        self.where = ""

    # --- whole actions ----------------------------------------------------------------------------------------------

    def action(self, action: Action, parameters: Sequence[Value]) -> None:
        self.where = f"action {action.name}"
        self.parameters = tuple(parameters)
        if any(p["op"] in ("_jump", "_jump_if_zero") for p in action.primitives):
            self._with_jumps(action.primitives)
        else:
            self._straight(action.primitives)

    def _straight(self, primitives: Sequence[Mapping[str, Any]]) -> None:
        for item in reroll(primitives, self.families):
            if isinstance(item, Loop):
                self._loop(item)
            else:
                self.primitive(item)

    def _with_jumps(self, primitives: Sequence[Mapping[str, Any]]) -> None:
        """Writes statements with jumps: the variable `resume` is the statement to jump to.

        `if` statements jump forward, within one pass over all statements; loops jump back, and need another pass.
        """
        loops = any(p["op"].startswith("_jump") and self._target(p) <= i for i, p in enumerate(primitives))
        self.out("resume = 0")
        with self.out.block("while True:") if loops else nullcontext():
            self._pass(primitives)
            if loops:
                self.out("break")

    def _pass(self, primitives: Sequence[Mapping[str, Any]]) -> None:
        targets = {self._target(p) for p in primitives if p["op"].startswith("_jump")}
        starts = sorted({0, *targets, *(i + 1 for i, p in enumerate(primitives) if p["op"].startswith("_jump"))})
        for start, end in zip(starts, [*starts[1:], len(primitives)], strict=True):
            if start >= len(primitives):
                break
            with self.out.block(f"if resume <= {start}:"):
                body = primitives[start:end]
                last = body[-1] if body and body[-1]["op"].startswith("_jump") else None
                self._straight(body[:-1] if last else body)
                if last is None:
                    continue
                target = self._target(last)
                if last["op"] == "_jump":
                    self._jump(target, end)
                else:
                    condition = self.translator.expression(last["parameters"][0], self.where, self.parameters)
                    code = (
                        condition.code
                        if condition.kind == "bool"
                        else f"{self.translator.unsigned(condition)} != {self.constant(0)}"
                    )
                    with self.out.block(f"if not ({code}):"):
                        self._jump(target, end)

    def _jump(self, target: int, following: int) -> None:
        self.out(f"resume = {target}")
        if target < following:
            self.out("continue")

    def _target(self, primitive: Mapping[str, Any]) -> int:
        value = self.translator.expression(primitive["parameters"][-1], self.where)
        return value.constant

    # --- loops ------------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        """Writes a loop, with family members indexed by the loop variable."""
        bases: dict[str, int] = {}

        def collect(node: Any) -> None:
            if isinstance(node, Mapping):
                member = member_of(node, self.families)
                if member is not None:
                    if bases.setdefault(member.family, member.index) != member.index:
                        raise Unsupported("a loop over two members of a family", self.where)
                    return
                for child in node.values():
                    collect(child)
            elif isinstance(node, list | tuple):
                for child in node:
                    collect(child)

        collect(loop.body)
        indices = {family: f"i + {base}" if base else "i" for family, base in bases.items()}
        for primitive in loop.body:
            if primitive["op"] in ("register_read", "register_write"):
                self._hold(self._index(_index_of(primitive)))
                break
        vectors = sorted(bases.keys() & self.layout.vectors.keys())
        written = [name for name in vectors if _writes_vector(loop.body, name)]
        with self.out.block(self._register_guard(loop.body)):
            for name in written:
                if loop.count < self.layout.vectors[name][0]:
                    self.headers.unpack(name)  # the loop leaves values that it does not write
            self._passes(loop, indices, [name for name in vectors if _reads_vector(loop.body, name)])
            for name in written:
                self.out(f"{self.translator.packed(name)} = False")

    def _passes(self, loop: Loop, indices: dict[str, str], read: Sequence[str]) -> None:
        """Writes a loop twice if it reads vector headers: with their values in the packet, and in their arrays."""
        if read:
            with self.out.block(f"if {' and '.join(map(self.translator.packed, read))}:"):
                self._pass_over(loop, indices, read)
        with self.out.block("else:") if read else nullcontext():
            for name in read if len(read) > 1 else ():
                self.headers.unpack(name)
            self._pass_over(loop, indices, ())

    def _pass_over(self, loop: Loop, indices: dict[str, str], from_packet: Sequence[str]) -> None:
        with self.out.block(f"for i in range({loop.count}):"):
            self.translator.loop, self.translator.from_packet = indices, set(from_packet)
            for primitive in loop.body:
                self.primitive(primitive)
            self.translator.loop, self.translator.from_packet = {}, set()

    def _register_guard(self, body: Sequence[Mapping[str, Any]]) -> str:
        """The check of a loop's register index, which all its registers share, outside the loop."""
        for primitive in body:
            if primitive["op"] in ("register_read", "register_write"):
                place = self.layout.registers[_register_of(primitive)]
                return f"if {self._index(_index_of(primitive))} < {self.constant(place.register.size)}:"
        return "if True:"

    # --- single statements --------------------------------------------------------------------------------------------

    def primitive(self, primitive: Mapping[str, Any]) -> None:
        op, parameters = primitive["op"], primitive["parameters"]
        if op in UNSUPPORTED:
            raise Unsupported(UNSUPPORTED[op], self.where)
        method = getattr(self, f"_do_{op.lower()}", None)
        if method is None:
            raise Unsupported(f"primitive {op}", self.where)
        method(*parameters)

    def value(self, node: Mapping[str, Any]) -> Value:
        return self.translator.expression(node, self.where, self.parameters)

    def assign(self, target: Mapping[str, Any], value: Value) -> None:
        """Writes an assignment to a field, truncated to the field's type."""
        if target["type"] == "element":
            stack, name = target["value"]
            self.out(f"place = {self._index(target['index'])}")
            for i, member in enumerate(self.program.stacks[stack]):
                with self.out.block(f"{'elif' if i else 'if'} place == {self.constant(i)}:"):
                    self.assign({"type": "field", "value": [member, name]}, value)
            return
        if target["type"] != "field":
            raise Unsupported(f"assignment to a {target['type']}", self.where)
        header, field = self.program.field(target["value"][0], target["value"][1], self.where)
        if field.bits > WORD_BITS:
            words = self.translator.words(value, field.bits, self.where)
            self.out(f"{', '.join(self.translator.variables(header, field))} = {', '.join(words)}")  # all at once
            return
        code = self.translator.cut(value, field.bits, field.signed)
        if not header.is_vector:
            self.out(f"{self.translator.variable(header, field)} = {code}")
            return
        if self.translator.loop:
            self.translator.from_packet.discard(header.name)
        else:
            self.headers.unpack(header.name)
        self.out(f"put1({self.translator.vector(header.name)}, {self.translator.lane(header, field)}, {code})")

    def _do_assign(self, target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        self.assign(target, self.value(source))

    def _do_assign_header(self, target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        self.headers.assign(self._header(target), self._header(source), self.where)

    def _do_assign_header_stack(self, target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        self.headers.assign_stack(target, source, self.where)

    def _do_assign_union(self, target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        program = self.program
        for to, origin in zip(program.unions[target["value"]], program.unions[source["value"]], strict=True):
            self.headers.assign(program.headers[to], program.headers[origin], self.where)

    def _do_assign_vl(self, target: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        to, origin = (self.program.headers[node["value"][0]] for node in (target, source))
        self.out(f"{self.translator.varbit_at(to)} = {self.translator.varbit_at(origin)}")
        self.out(f"{self.translator.varbit_bytes(to)} = {self.translator.varbit_bytes(origin)}")

    def _do_add_header(self, target: Mapping[str, Any]) -> None:
        self.headers.set_valid(self._header(target), self.where)

    def _do_remove_header(self, target: Mapping[str, Any]) -> None:
        self.headers.set_invalid(self._header(target))

    def _do_push(self, stack: Mapping[str, Any], count: Mapping[str, Any]) -> None:
        self.headers.shift(stack, self._count_of(count), self.where)

    def _do_pop(self, stack: Mapping[str, Any], count: Mapping[str, Any]) -> None:
        self.headers.shift(stack, -self._count_of(count), self.where)

    def _count_of(self, node: Mapping[str, Any]) -> int:
        value = self.value(node)
        if value.kind != "constant":
            raise Unsupported("a shift of a stack by a number that is not constant", self.where)
        return value.constant

    def _header(self, node: Mapping[str, Any]) -> Header:
        if node["type"] != "header":
            raise Unsupported(f"validity of a {node['type']}", self.where)
        return self.program.headers[node["value"]]

    def _do_mark_to_drop(self, *_: Any) -> None:
        standard = "standard_metadata"
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            header, field = self.program.field(standard, name, self.where)
            self.out(f"{self.translator.variable(header, field)} = {self.constant(value)}")

    _do_drop = _do_mark_to_drop

    def _do_register_read(
        self, target: Mapping[str, Any], register: Mapping[str, Any], index: Mapping[str, Any]
    ) -> None:
        place = self.layout.registers[register["value"]]
        at = self._index(index)
        value = Value(f"u64({self._cell(place, at)})", "unsigned", place.register.bits)
        with self._inside(place, at):
            self.assign(target, value)

    def _do_register_write(
        self, register: Mapping[str, Any], index: Mapping[str, Any], source: Mapping[str, Any]
    ) -> None:
        place = self.layout.registers[register["value"]]
        at = self._index(index)
        code = self.translator.cut(self.value(source), place.register.bits, signed=False)
        with self._inside(place, at):
            self.out(f"{self._cell(place, at)} = {code}")

    def _cell(self, place: RegisterPlace, at: str) -> str:
        if place.column is None:
            return f"{place.array}[{at}]"
        return f"{place.array}[{at}, {self.translator.loop.get(place.array, place.column)}]"

    def _hold(self, at: str) -> None:
        """Writes the lock of the cells at this index, until another index needs one (see `block_locks`)."""
        if self.translator.shared:
            self.out(f"block = ({at} >> {self.constant(BLOCK_BITS)}) & {self.constant(BLOCKS - 1)}")
            with self.out.block("if block != held:"):
                self.out("held = hold(holds, block, held)")

    def _inside(self, place: RegisterPlace, at: str) -> AbstractContextManager[None]:
        """Writes the bounds check of an access, which does nothing beyond the end, as on BMv2; a loop has its own check."""
        if self.translator.loop:
            return nullcontext()
        self._hold(at)
        return self.out.block(f"if {at} < {self.constant(place.register.size)}:")

    def _do_count(self, counter: Mapping[str, Any], index: Mapping[str, Any]) -> None:
        at = self._index(index)
        array = self.translator.names.of("counter", counter["value"])
        with self.out.block(f"if {at} < u64(len({array})):"):
            self.out(f"{array}[{at}, 0] += {self.constant(1)}")
            self.out(f"{array}[{at}, 1] += u64(length)")

    def _do_modify_field_with_hash_based_offset(
        self,
        target: Mapping[str, Any],
        base: Mapping[str, Any],
        calculation: Mapping[str, Any],
        size: Mapping[str, Any],
    ) -> None:
        from sa_atp.switches.embedded.translate.checksums import hash_of

        code = hash_of(self.translator, self.program.calculations[calculation["value"]])
        low = self.translator.unsigned(self.value(base))
        count = self.translator.unsigned(self.value(size))
        zero, one = self.constant(0), self.constant(1)
        self.out(f"modulus = {count}")
        self.out(f"modulus = modulus if modulus != {zero} else {one}")  # as simple_switch reads it
        self.assign(target, Value(f"({low} + {code} % modulus)", "unsigned", 64))

    def _do_exit(self) -> None:
        self.out("leaving = True")

    def _do_no_op(self) -> None:
        self.out("pass")

    def _do_log_msg(self, *_: Any) -> None:
        """Writes nothing: this target has no log."""

    def _do_assume(self, *_: Any) -> None:
        """Writes nothing: assume is a hint for verification tools."""

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _index(self, node: Mapping[str, Any]) -> str:
        return self.translator.unsigned(self.value(node))


def _families(translator: Translator) -> Families:
    families: dict[tuple[str, str], FamilyMember] = {}
    for name in translator.layout.vectors:
        for i, field in enumerate(translator.program.headers[name].fields):
            families[("field", f"{name}.{field.name}")] = FamilyMember(name, i)
    for register, place in translator.layout.registers.items():
        if place.column is not None:
            families[("register", register)] = FamilyMember(place.array, place.column)
    return families


def _writes_vector(body: Sequence[Mapping[str, Any]], header: str) -> bool:
    targets = (p["parameters"][0] for p in body if p["op"] in WRITES_FIRST)
    return any(target.get("type") == "field" and target["value"][0] == header for target in targets)


def _reads_vector(body: Sequence[Mapping[str, Any]], header: str) -> bool:
    sources = [p["parameters"][p["op"] in WRITES_FIRST :] for p in body]
    return any(name == header for name, _ in references(sources))


def _register_of(primitive: Mapping[str, Any]) -> str:
    for parameter in primitive["parameters"]:
        if parameter.get("type") == "register_array":
            return str(parameter["value"])
    raise PipelineError(f"{primitive['op']} without a register")


def _index_of(primitive: Mapping[str, Any]) -> Mapping[str, Any]:
    position = 2 if primitive["op"] == "register_read" else 1
    index: Mapping[str, Any] = primitive["parameters"][position]
    return index
