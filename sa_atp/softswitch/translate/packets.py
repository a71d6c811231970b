"""Packets in and out: the parser, and the deparser that puts changed headers back.

A header that came with the packet is remembered by its offset. Fields are taken out only where the program looks at
them; on the way out, bytes that no statement may have changed are copied from where they came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sa_atp.softswitch.errors import PipelineError, Unsupported
from sa_atp.softswitch.program import Field, Header, ParserState
from sa_atp.softswitch.translate.expressions import Translator, Value
from sa_atp.softswitch.translate.source import Source
from sa_atp.softswitch.translate.statements import Statements
from sa_atp.softswitch.translate.usage import Usage


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole bytes of a header that begin and end with a field."""

    first_byte: int
    size: int
    fields: tuple[Field, ...]


def chunks(header: Header) -> list[Chunk]:
    """The header in pieces of at most 8 bytes, as small as field boundaries allow."""
    found: list[Chunk] = []
    pending: list[Field] = []
    for field in header.fields:
        pending.append(field)
        end = field.offset_bits + field.bits
        if end % 8 == 0:
            first = pending[0].offset_bits // 8
            size = end // 8 - first
            if size > 8:
                raise Unsupported("fields that do not align to bytes within 8 bytes", header.name)
            found.append(Chunk(first, size, tuple(pending)))
            pending = []
    return found


class Packets:
    def __init__(self, translator: Translator, usage: Usage, statements: Statements, out: Source) -> None:
        self.translator = translator
        self.program = translator.program
        self.usage = usage
        self.statements = statements
        self.out = out
        self.plans = {
            h.name: self._plan(h) for h in self.program.headers.values() if not h.metadata and not h.is_vector
        }

    # --- what is needed of each header ------------------------------------------------------------------------------

    def _plan(self, header: Header) -> list[tuple[Chunk, bool]]:
        """(chunk, changed): a changed chunk is assembled from its fields, the others are copied."""
        made = header.name in self.usage.made
        return [
            (chunk, made or any((header.name, f.name) in self.usage.written for f in chunk.fields))
            for chunk in chunks(header)
        ]

    def needed(self, header: Header) -> list[Field]:
        """The fields that live in variables, because they are read, or share a byte with one that is written."""
        fields = []
        for chunk, changed in self.plans[header.name]:
            for field in chunk.fields:
                if changed or (header.name, field.name) in self.usage.read:
                    fields.append(field)
        return fields

    def came_with_packet(self, header: Header) -> str:
        return self.translator.names.of("offset", header.name)

    # --- parser -------------------------------------------------------------------------------------------------------

    def parser(self) -> None:
        """States in topological order, each guarded by the number of the state to enter next; 0 is the end."""
        order = self._topological()
        numbers = {name: i + 1 for i, name in enumerate(order)}
        self.out("offset = 0")
        self.out(f"state = {numbers[self.program.first_state]}")
        for name in order:
            with self.out.block(f"if state == {numbers[name]}:  # {name}"):
                self._state(self.program.states[name], numbers)

    def _topological(self) -> list[str]:
        order: list[str] = []
        visiting: set[str] = set()

        def visit(name: str) -> None:
            if name in order:
                return
            if name in visiting:
                raise Unsupported("a loop", f"parser state {name}")
            visiting.add(name)
            for transition in self.program.states[name].transitions:
                if transition.next_state is not None:
                    visit(transition.next_state)
            order.append(name)

        visit(self.program.first_state)
        return order[::-1]

    def _state(self, state: ParserState, numbers: Mapping[str, int]) -> None:
        where = f"parser state {state.name}"
        self.statements.where = where
        self.statements.parameters = ()
        # Each operation may fail, which ends parsing: what follows is nested in its success.
        self._operations(list(state.operations), state, numbers, where)

    def _operations(
        self, operations: Sequence[Mapping[str, Any]], state: ParserState, numbers: Mapping[str, int], where: str
    ) -> None:
        if not operations:
            self._transition(state, numbers, where)
            return
        operation, rest = operations[0], operations[1:]
        op, parameters = operation["op"], operation["parameters"]
        if op == "extract":
            if parameters[0]["type"] != "regular":
                raise Unsupported(f"extraction into a {parameters[0]['type']}", where)
            header = self.program.headers[parameters[0]["value"]]
            with self.out.block(f"if offset + {header.size_bytes} <= length:"):
                self._extract(header)
                self._operations(rest, state, numbers, where)
            with self.out.block("else:"):
                self._fail("PacketTooShort")
        elif op == "advance":
            bits = self.translator.expression(parameters[0], where)
            amount = f"i64({self.translator.unsigned(bits)} >> {self.translator.names.constant(3)})"
            with self.out.block(f"if offset + {amount} <= length:"):
                self.out(f"offset += {amount}")
                self._operations(rest, state, numbers, where)
            with self.out.block("else:"):
                self._fail("PacketTooShort")
        elif op == "verify":
            condition = self.translator.boolean(self.translator.expression(parameters[0], where))
            with self.out.block(f"if {condition}:"):
                self._operations(rest, state, numbers, where)
            with self.out.block("else:"):
                code = self.translator.expression(parameters[1], where)
                self._set_error(self.translator.unsigned(code))
        elif op == "set":
            self._set(parameters, rest, state, numbers, where)
        elif op == "primitive":
            self.statements.primitive(parameters[0])
            self._operations(rest, state, numbers, where)
        else:
            raise Unsupported(f"operation {op}", where)

    def _set(
        self,
        parameters: Sequence[Mapping[str, Any]],
        rest: Sequence[Mapping[str, Any]],
        state: ParserState,
        numbers: Mapping[str, int],
        where: str,
    ) -> None:
        target, source = parameters
        if source["type"] != "lookahead":
            self.statements.assign(target, self.translator.expression(source, where))
            self._operations(rest, state, numbers, where)
            return
        first, bits = source["value"]
        with self.out.block(f"if 8 * offset + {first + bits} <= 8 * length:"):
            self.statements.assign(target, self._look_ahead(first, bits, where))
            self._operations(rest, state, numbers, where)
        with self.out.block("else:"):
            self._fail("PacketTooShort")

    def _look_ahead(self, first: int, bits: int, where: str) -> Value:
        if bits > 64:
            raise Unsupported(f"lookahead of {bits} bits", where)
        return Value(self._bits_of("offset", first, bits, where), "unsigned", bits)

    def _extract(self, header: Header) -> None:
        self.out(f"{self.came_with_packet(header)} = offset")
        self.out(f"{self.translator.valid(header.name)} = True")
        if header.is_vector:
            self.out(f"load_vector(packets, n, offset, {self.translator.vector(header.name)})")
        else:
            for field in self.needed(header):
                code = self._bits_of("offset", field.offset_bits, field.bits, header.name)
                if field.signed:
                    code = f"sign_extend({code}, {field.bits})"
                self.out(f"{self.translator.variable(header, field)} = {code}")
        self.out(f"offset += {header.size_bytes}")

    def _bits_of(self, base: str, first_bit: int, bits: int, where: str) -> str:
        """Source for `bits` bits of the packet, `first_bit` bits behind `base`."""
        first, last = first_bit // 8, (first_bit + bits - 1) // 8
        size = last - first + 1
        spare = 8 * size - (first_bit % 8) - bits
        if size > 8:
            raise Unsupported(f"a field of {bits} bits across 9 bytes", where)
        code = self._load(f"{base} + {first}" if first else base, size)
        constant = self.translator.names.constant
        if spare:
            code = f"({code} >> {constant(spare)})"
        if bits < 8 * size - spare:
            code = f"({code} & {constant((1 << bits) - 1)})"
        return code

    def _load(self, at: str, size: int) -> str:
        if size in (1, 2, 4, 8):
            return f"load{size}(packets, n, {at})"
        high = 4 if size > 4 else 2
        low = size - high
        low_code = self._load(f"{at} + {high}", low)
        return f"((load{high}(packets, n, {at}) << {self.translator.names.constant(8 * low)}) | {low_code})"

    def _transition(self, state: ParserState, numbers: Mapping[str, int], where: str) -> None:
        keys = [self._key(node, where) for node in state.key]
        for i, (code, _) in enumerate(keys):
            self.out(f"key{i} = {code}")
        keyword = "if"
        for transition in state.transitions:
            goal = numbers[transition.next_state] if transition.next_state is not None else 0
            if transition.value is None:
                if keyword == "if":
                    self.out(f"state = {goal}")
                else:
                    with self.out.block("else:"):
                        self.out(f"state = {goal}")
                return
            tests = self._tests(transition.value, transition.mask, [bits for _, bits in keys])
            with self.out.block(f"{keyword} {' and '.join(tests) or 'True'}:"):
                self.out(f"state = {goal}")
            keyword = "elif"
        if keyword == "if":
            self.out("state = 0")
            return
        with self.out.block("else:"):
            self._fail("NoMatch")

    def _key(self, node: Mapping[str, Any], where: str) -> tuple[str, int]:
        if node["type"] == "lookahead":
            value = self._look_ahead(node["value"][0], node["value"][1], where)
        elif node["type"] == "field":
            value = self.translator.read_field(node["value"][0], node["value"][1], where)
        else:
            raise Unsupported(f"a select on a {node['type']}", where)
        return self.translator.cut(value, value.bits, signed=False), value.bits

    def _tests(self, value: int, mask: int | None, widths: Sequence[int]) -> list[str]:
        """A transition's value covers all keys, each padded to whole bytes; the result compares them one by one."""
        tests = []
        shift = sum((bits + 7) // 8 * 8 for bits in widths)
        constant = self.translator.names.constant
        for i, bits in enumerate(widths):
            shift -= (bits + 7) // 8 * 8
            full = (1 << bits) - 1
            m = full if mask is None else (mask >> shift) & full
            v = (value >> shift) & full
            if m == full:
                tests.append(f"key{i} == {constant(v)}")
            elif m:
                tests.append(f"(key{i} & {constant(m)}) == {constant(v & m)}")
        return tests

    def _fail(self, error: str) -> None:
        code = self.program.errors.get(error)
        if code is None:
            raise PipelineError(f"the program does not list the error {error}")
        self._set_error(self.translator.names.constant(code))

    def _set_error(self, code: str) -> None:
        header, field = self.program.field("standard_metadata", "parser_error", "parser")
        self.out(f"{self.translator.variable(header, field)} = {code}")
        self.out("state = 0")

    # --- deparser -----------------------------------------------------------------------------------------------------

    def deparser(self) -> None:
        """Writes the packet into out[made], and its length into `end`."""
        self.out("end = 0")
        for name in self.program.deparse_order:
            header = self.program.headers[name]
            with self.out.block(f"if {self.translator.valid(name)}:"):
                if header.is_vector:
                    self._emit_vector(header)
                else:
                    self._emit(header)
                self.out(f"end += {header.size_bytes}")
        with self.out.block("if length > offset:"):
            self.out("copy_bytes(out, made, end, packets, n, offset, length - offset)")
            self.out("end += length - offset")

    def _emit_vector(self, header: Header) -> None:
        start = self.came_with_packet(header)
        with self.out.block(f"if {self.translator.names.of('changed', header.name)}:"):
            self.out(f"store_vector(out, made, end, {self.translator.vector(header.name)})")
        with self.out.block("else:"):
            self.out(f"copy_bytes(out, made, end, packets, n, {start}, {header.size_bytes})")

    def _emit(self, header: Header) -> None:
        start = self.came_with_packet(header)
        copied: list[Chunk] = []

        def flush() -> None:
            if copied:
                first = copied[0].first_byte
                size = copied[-1].first_byte + copied[-1].size - first
                self.out(f"copy_bytes(out, made, end + {first}, packets, n, {start} + {first}, {size})")
                copied.clear()

        for chunk, changed in self.plans[header.name]:
            if not changed:
                copied.append(chunk)
                continue
            flush()
            self._store(chunk, header)
        flush()

    def _store(self, chunk: Chunk, header: Header) -> None:
        constant = self.translator.names.constant
        terms = []
        end_bit = 8 * (chunk.first_byte + chunk.size)
        for field in chunk.fields:
            code = self.translator.variable(header, field)
            if field.signed:
                code = f"(u64({code}) & {constant((1 << field.bits) - 1)})"
            shift = end_bit - field.offset_bits - field.bits
            terms.append(f"({code} << {constant(shift)})" if shift else code)
        value = " | ".join(terms)
        at, size = chunk.first_byte, chunk.size
        if size in (1, 2, 4, 8):
            self.out(f"store{size}(out, made, end + {at}, {value})")
            return
        self.out(f"word = {value}")
        while size:
            piece = next(p for p in (4, 2, 1) if p <= size)
            size -= piece
            shifted = f"word >> {constant(8 * size)}" if size else "word"
            self.out(f"store{piece}(out, made, end + {at}, {shifted})")
            at += piece
