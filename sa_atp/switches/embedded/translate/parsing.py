"""Translates the parser: states, extractions, transitions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sa_atp.switches.embedded.errors import PipelineError, Unsupported
from sa_atp.switches.embedded.program import Header, ParserState, words_of
from sa_atp.switches.embedded.translate.deparsing import Deparsing
from sa_atp.switches.embedded.translate.expressions import Translator, Value
from sa_atp.switches.embedded.translate.part import Part, topological
from sa_atp.switches.embedded.translate.statements import Statements

MOST_TURNS = 10_000  # of a parser with a loop: beyond that it never ends, and BMv2 would never send the packet


class Parsing(Part):
    def __init__(self, translator: Translator, packets: Deparsing, statements: Statements) -> None:
        super().__init__(translator)
        self.packets = packets
        self.headers = packets.headers
        self.statements = statements

    def parser(self) -> None:
        """Writes the states, each guarded by the number of the state to enter next; 0 is the end.

        They are in topological order, so that one pass is enough; if the parser has a loop, they are in a loop.
        """
        order, loops = self._order()
        numbers = {name: i + 1 for i, name in enumerate(order)}
        self.out("offset = 0")
        for stack in self.program.stacks:
            self.out(f"{self.translator.next_of(stack)} = 0")
        self.out(f"state = {numbers[self.program.first_state]}")
        if loops:
            self.out("turns = 0")
        with self.out.block(f"while state != 0 and turns < {MOST_TURNS}:") if loops else nullcontext():
            if loops:
                self.out("turns += 1")
            for name in order:
                with self.out.block(f"if state == {numbers[name]}:  # {name}"):
                    self._state(self.program.states[name], numbers)
        if loops:
            with self.out.block(f"if turns == {MOST_TURNS}:"):
                self.out("continue")  # with the next packet

    def _order(self) -> tuple[list[str], bool]:
        """The states in topological order, and whether there is a loop."""
        states = self.program.states
        order, loop_at = topological(
            self.program.first_state, lambda name: [each.next_state for each in states[name].transitions]
        )
        return order, loop_at is not None

    # --- one state ----------------------------------------------------------------------------------------------------

    def _state(self, state: ParserState, numbers: Mapping[str, int]) -> None:
        where = f"parser state {state.name}"
        self.statements.where = where
        self.statements.parameters = ()
        # Each operation may fail, which ends parsing: the next ones are nested in its success.
        self._operations(list(state.operations), state, numbers, where)

    def _operations(
        self, operations: Sequence[Mapping[str, Any]], state: ParserState, numbers: Mapping[str, int], where: str
    ) -> None:
        if not operations:
            with self._ahead_for_key(state):
                self._transition(state, numbers, where)
            return
        operation, rest = operations[0], operations[1:]
        with self._operation(operation["op"], operation["parameters"], where):
            self._operations(rest, state, numbers, where)

    def _operation(self, op: str, parameters: Sequence[Any], where: str) -> AbstractContextManager[None]:
        """Writes an operation; statements that are written in its context run if it succeeds."""
        if op in ("extract", "extract_VL"):
            return self._extraction(parameters, where)
        if op == "advance":
            return self._advance(parameters[0], where)
        if op == "verify":
            return self._verify(parameters, where)
        if op == "set" and parameters[1]["type"] == "lookahead":
            return self._set_ahead(parameters, where)
        if op == "set":
            self.statements.assign(parameters[0], self.translator.expression(parameters[1], where))
        elif op == "primitive":
            self.statements.primitive(parameters[0])
        else:
            raise Unsupported(f"operation {op}", where)
        return nullcontext()

    @contextmanager
    def _unless(self, *errors: tuple[str, str]) -> Iterator[None]:
        """Writes checks for errors: (condition, error), in this order; the context is for success."""
        keyword = "if"
        for condition, error in errors:
            with self.out.block(f"{keyword} {condition}:"):
                self._fail(error)
            keyword = "elif"
        with self.out.block("else:"):
            yield

    def _advance(self, amount: Mapping[str, Any], where: str) -> AbstractContextManager[None]:
        bits = self._whole_bytes(amount, where)

        @contextmanager
        def done() -> Iterator[None]:
            with self._unless(bits, ("offset + skipped > length", "PacketTooShort")):
                self.out("offset += skipped")
                yield

        return done()

    def _whole_bytes(self, amount: Mapping[str, Any], where: str) -> tuple[str, str]:
        """Writes the conversion of a number of bits to `skipped` bytes. Returns: the error if it is not whole bytes."""
        self.out(f"bits = {self.translator.unsigned(self.translator.expression(amount, where))}")
        self.out(f"skipped = i64(bits >> {self.constant(3)})")
        return f"bits & {self.constant(7)} != {self.constant(0)}", "ParserInvalidArgument"

    @contextmanager
    def _verify(self, parameters: Sequence[Mapping[str, Any]], where: str) -> Iterator[None]:
        condition = self.translator.boolean(self.translator.expression(parameters[0], where))
        with self.out.block(f"if {condition}:"):
            yield
        with self.out.block("else:"):
            self._set_error(self.translator.unsigned(self.translator.expression(parameters[1], where)))

    @contextmanager
    def _set_ahead(self, parameters: Sequence[Mapping[str, Any]], where: str) -> Iterator[None]:
        first, bits = parameters[1]["value"]
        with self._unless(self._ends_before(first + bits)):
            self.statements.assign(parameters[0], self._look_ahead(first, bits, where))
            yield

    def _ends_before(self, bits: int) -> tuple[str, str]:
        """The error of a packet with fewer than `bits` bits left."""
        return f"8 * offset + {bits} > 8 * length", "PacketTooShort"

    def _look_ahead(self, first: int, bits: int, where: str) -> Value:
        return self.translator.of_words(self._words_of("offset", first, bits, where), bits)

    # --- extraction ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _extraction(self, parameters: Sequence[Mapping[str, Any]], where: str) -> Iterator[None]:
        target = parameters[0]
        errors: list[tuple[str, str]] = []
        following = ""
        if target["type"] == "regular":
            headers = [self.program.headers[target["value"]]]
        elif target["type"] == "stack":
            headers = self.headers.stack({"type": "header_stack", "value": target["value"]}, where)
            following = self.translator.next_of(target["value"])
            errors.append((f"{following} == {len(headers)}", "StackOutOfBounds"))
        else:
            raise Unsupported(f"extraction into a {target['type']}", where)
        size = str(headers[0].size_bytes)
        if len(parameters) == 1 and headers[0].varbit is not None:
            raise Unsupported(f"extraction of a varbit without its length ({headers[0].name})", where)
        if len(parameters) > 1:
            errors.append(self._whole_bytes(parameters[1], where))
            size += " + skipped"
        errors.append((f"offset + {size} > length", "PacketTooShort"))
        if len(parameters) > 1:
            errors.append((f"{size} > {headers[0].most_bytes}", "HeaderTooShort"))
        with self._unless(*errors):
            if following:
                for i, header in enumerate(headers):
                    with self.out.block(f"{'elif' if i else 'if'} {following} == {i}:"):
                        self._extract(header)
                self.out(f"{following} += 1")
            else:
                self._extract(headers[0])
            self.out(f"offset += {size}")
            yield

    def _extract(self, header: Header) -> None:
        self.out(f"{self.packets.came_with_packet(header)} = offset")
        self.headers.made_valid(header)
        if header.is_vector:
            self.out(f"{self.translator.packed(header.name)} = True")
            return
        base = "offset"
        if header.varbit is not None:
            self.out(f"{self.translator.varbit_at(header)} = offset + {header.varbit.offset_bits // 8}")
            self.out(f"{self.translator.varbit_bytes(header)} = skipped")
        for field in self.packets.needed(header):
            if header.varbit is not None and header.fields.index(field) > header.fields.index(header.varbit):
                base = "offset + skipped"
            words = self._words_of(base, field.offset_bits, field.bits, f"{header.name}.{field.name}")
            if field.signed:
                words = [f"sign_extend({words[0]}, {field.bits})"]
            for variable, code in zip(self.translator.variables(header, field), words, strict=True):
                self.out(f"{variable} = {code}")

    def _words_of(self, base: str, first_bit: int, bits: int, where: str) -> list[str]:
        return [self._bits_of(base, first_bit + bits - low - n, n, where) for low, n in words_of(bits)]

    def _bits_of(self, base: str, first_bit: int, bits: int, where: str) -> str:
        """Source of `bits` bits of the packet, `first_bit` bits after `base`."""
        first, last = first_bit // 8, (first_bit + bits - 1) // 8
        size = last - first + 1
        spare = 8 * size - (first_bit % 8) - bits
        if size > 8:
            raise Unsupported(f"a field of {bits} bits across 9 bytes", where)
        code = self._load(f"{base} + {first}" if first else base, size)
        if spare:
            code = f"({code} >> {self.constant(spare)})"
        if bits < 8 * size - spare:
            code = f"({code} & {self.constant((1 << bits) - 1)})"
        return code

    def _load(self, at: str, size: int) -> str:
        if size in (1, 2, 4, 8):
            return f"load{size}(packets, start + {at})"
        high = 4 if size > 4 else 2
        low = size - high
        low_code = self._load(f"{at} + {high}", low)
        return f"((load{high}(packets, start + {at}) << {self.constant(8 * low)}) | {low_code})"

    # --- transitions --------------------------------------------------------------------------------------------------

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
        with self.out.block("else:") if keyword == "elif" else nullcontext():
            self.out("state = 0")  # p4c always writes a default transition

    def _ahead_for_key(self, state: ParserState) -> AbstractContextManager[None]:
        """Writes the check that a select's lookahead is within the packet, as on BMv2."""
        ends = [sum(node["value"]) for node in state.key if node["type"] == "lookahead"]
        return self._unless(self._ends_before(max(ends))) if ends else nullcontext()

    def _key(self, node: Mapping[str, Any], where: str) -> tuple[str, int]:
        if node["type"] == "lookahead":
            value = self._look_ahead(node["value"][0], node["value"][1], where)
        elif node["type"] == "field":
            value = self.translator.read_field(node["value"][0], node["value"][1], where)
        elif node["type"] == "stack_field":
            value = self.translator.last_of_stack(node["value"][0], node["value"][1], where)
        else:
            raise Unsupported(f"a select on a {node['type']}", where)
        if value.kind == "wide":
            raise Unsupported(f"a select on {value.bits} bits", where)
        return self.translator.cut(value, value.bits, signed=False), value.bits

    def _tests(self, value: int, mask: int | None, widths: Sequence[int]) -> list[str]:
        """Comparisons of each key with its part of a transition's value, in which each key is padded to whole bytes."""
        tests = []
        shift = sum((bits + 7) // 8 * 8 for bits in widths)
        for i, bits in enumerate(widths):
            shift -= (bits + 7) // 8 * 8
            full = (1 << bits) - 1
            m = full if mask is None else (mask >> shift) & full
            v = (value >> shift) & full
            if m == full:
                tests.append(f"key{i} == {self.constant(v)}")
            elif m:
                tests.append(f"(key{i} & {self.constant(m)}) == {self.constant(v & m)}")
        return tests

    def _fail(self, error: str) -> None:
        code = self.program.errors.get(error)
        if code is None:
            raise PipelineError(f"the program does not list the error {error}")
        self._set_error(self.constant(code))

    def _set_error(self, code: str) -> None:
        header, field = self.program.field("standard_metadata", "parser_error", "parser")
        self.out(f"{self.translator.variable(header, field)} = {code}")
        self.out("state = 0")
