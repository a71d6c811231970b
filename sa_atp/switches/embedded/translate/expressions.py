"""Translates expressions of the JSON into Python source.

BMv2 computes with integers of any size and truncates them when they are stored; p4c writes truncations (`& 0xff`) where P4
needs them. Translated unsigned values are 64-bit words, which have the same low bits, and signed values are 64-bit two's
complement. Where the result could differ (saturation of wide sums, ordered comparison of an untruncated difference), the
translation uses signed arithmetic, and refuses operands that do not fit.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sa_atp.switches.embedded import bits
from sa_atp.switches.embedded.errors import PipelineError, Unsupported
from sa_atp.switches.embedded.program import WORD_BITS, Field, Header, Program, number, words_of
from sa_atp.switches.embedded.translate.layout import layout
from sa_atp.switches.embedded.translate.source import Source
from sa_atp.switches.embedded.translate.usage import analyse

Kind = Literal["unsigned", "signed", "bool", "constant", "wide"]
ARITHMETIC = {"+": "+", "-": "-", "*": "*", "&": "&", "|": "|", "^": "^"}
MASK64 = (1 << WORD_BITS) - 1
COMPARISON = ("==", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Value:
    """Source of a value, and what is known about the value."""

    code: str
    kind: Kind
    bits: int = 64  # that its magnitude fits in
    may_be_negative: bool = False  # an unsigned difference or complement that has not been truncated
    constant: int = 0
    words: tuple[str, ...] = ()  # of a wide value, the highest first


# The first arguments in the call frame of `process`, and the operation that takes each: see `call_frame.py`.
FIXED_ARGUMENTS = (
    ("first", "frame_word"), ("last", "frame_word"), ("now", "frame_word"),
    ("packets", "array_u8_1"), ("starts", "array_i64_1"), ("lengths", "array_i64_1"), ("ports", "array_i64_1"),
    ("heads_in", "array_u8_1"), ("head_of", "array_i64_1"), ("depths", "array_i64_1"),
    ("out", "array_u8_1"), ("heads", "array_u8_1"), ("kept", "array_u8_1"),
    ("out_starts", "array_i64_1"), ("out_lengths", "array_i64_1"), ("out_ports", "array_i64_1"),
    ("out_sources", "array_i64_1"), ("apart", "frame_word"), ("row_bytes", "frame_word"), ("most_added", "frame_word"),
    ("group_starts", "array_i64_1"), ("group_ports", "array_i64_1"), ("group_copies", "array_i64_1"),
    ("most_copies", "frame_word"),
)  # fmt: skip
FRAME_WORDS = 3  # of each argument: a number, or address, rows and columns of an array
# Names that the translated function uses itself, and that a header and a field could make, too.
OWN_NAMES = frozenset({
    *(name for name, _ in FIXED_ARGUMENTS), *bits.plain(), "end_copy", "length_now", "copied_to", "copied_end",
    "copied_length", "taken_up", "holds", "held", "hold", "let_go", "block",
})  # fmt: skip
OWN_PREFIXES = ("K_", "saved_")


class PythonNames:
    """Python names for the program's objects, and the pool of constants."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._taken: set[str] = set(OWN_NAMES)
        self.constants: dict[int, str] = {}

    def of(self, *path: str) -> str:
        if path not in self._names:
            base = re.sub(r"\W+", "_", "_".join(path)).strip("_")
            base = f"p4_{base}" if base.startswith(OWN_PREFIXES) else base
            name, n = base, 2
            while name in self._taken:
                name, n = f"{base}_{n}", n + 1
            self._taken.add(name)
            self._names[path] = name
        return self._names[path]

    def constant(self, value: int) -> str:
        """The name of a 64-bit unsigned constant: numba takes a bare literal for a signed one, and mixes both to floats."""
        value &= (1 << 64) - 1
        return self.constants.setdefault(value, f"K_{value:x}")


class Translator:
    """The program, its Python names, the source under construction, and values as source, for all parts."""

    def __init__(self, program: Program, *, shared: bool = False) -> None:
        self.program = program
        self.shared = shared  # several cores run the program at the same time, see `block_locks`
        self.names = PythonNames()
        self.constant = self.names.constant
        self.usage = analyse(program)
        self.layout = layout(program, {r.name: self.names.of("register", r.name) for r in program.registers})
        self.out = Source()
        self.where = ""  # the place in the program, for messages
        self.loop: dict[str, str] = {}  # in a rerolled loop: the index, as source, into each vector header
        self.from_packet: set[str] = set()  # in a rerolled loop: the vector headers that it reads in the packet

    # --- places ---------------------------------------------------------------------------------------------------

    def variable(self, header: Header, field: Field) -> str:
        return self.names.of(header.name, field.name)

    def variables(self, header: Header, field: Field) -> list[str]:
        """The variables of a field, several if it is longer than a word, the highest first."""
        if field.bits <= WORD_BITS:
            return [self.variable(header, field)]
        return [self.names.of(header.name, field.name, f"from_{low}") for low, _ in words_of(field.bits)]

    def valid(self, header: str) -> str:
        return self.names.of("valid", header)

    def vector(self, header: str) -> str:
        return self.names.of("vector", header)

    def offset(self, header: str) -> str:
        """The variable with the place in the packet that a header came from."""
        return self.names.of("offset", header)

    def packed(self, header: str) -> str:
        """The variable that is true while the values of a vector header are in the packet, and not in its array."""
        return self.names.of("packed", header)

    def lane(self, header: Header, field: Field) -> str:
        """The index of a field in its vector header; in a loop, the loop's index."""
        return self.loop.get(header.name, str(header.fields.index(field)))

    def next_of(self, stack: str) -> str:
        """The variable with the number of headers in a stack, as the parser and shifts count them."""
        return self.names.of("next", stack)

    def last_of_stack(self, stack: str, name: str, where: str) -> Value:
        """A field of the last header that was extracted into a stack."""
        values = self._fields_of_stack(stack, name, where)
        code = values[0].code
        for i, value in enumerate(values[1:], 2):
            code = f"({value.code} if {self.next_of(stack)} == {i} else {code})"
        return Value(code, values[0].kind, values[0].bits)

    def element(self, node: Mapping[str, Any], where: str, parameters: tuple["Value", ...]) -> Value:
        """A field of a stack's header, by an index expression; zero beyond the end, where BMv2 aborts."""
        index = self.unsigned(self.expression(node["index"], where, parameters))
        stack, name = node["value"]
        values = self._fields_of_stack(stack, name, where)
        code = "i64(0)" if values[0].kind == "signed" else self.constant(0)
        for i, value in enumerate(values):
            code = f"({value.code} if {index} == {self.constant(i)} else {code})"
        return Value(code, values[0].kind, values[0].bits)

    def _fields_of_stack(self, stack: str, name: str, where: str) -> list[Value]:
        values = [self.read_field(header, name, where) for header in self.program.stacks[stack]]
        if values[0].kind == "wide":
            raise Unsupported(f"a field of {values[0].bits} bits in a stack ({stack}.{name})", where)
        return values

    def varbit_at(self, header: Header) -> str:
        """The variable with the place of a varbit in the packet; its bytes are only copied and summed, never read."""
        return self.names.of("varbit_at", header.name)

    def varbit_bytes(self, header: Header) -> str:
        return self.names.of("varbit_bytes", header.name)

    def read_field(self, header: str, name: str, where: str) -> Value:
        if name == "$valid$":
            return Value(f"({self.constant(1)} if {self.valid(header)} else {self.constant(0)})", "unsigned", 1)
        instance, field = self.program.field(header, name, where)
        if field.is_varbit:
            raise Unsupported(f"reading a varbit ({header}.{name})", where)
        if field.bits > WORD_BITS and field.signed:
            raise Unsupported(f"a signed field of {field.bits} bits ({header}.{name})", where)
        if field.bits > WORD_BITS:
            return self.of_words(self.variables(instance, field), field.bits)
        kind: Kind = "signed" if field.signed else "unsigned"
        if instance.is_vector:
            return Value(self._read_lane(instance, field), kind, field.bits)
        return Value(self.variable(instance, field), kind, field.bits)

    def _read_lane(self, header: Header, field: Field) -> str:
        lane = self.lane(header, field)
        unpacked = f"{'i64' if field.signed else 'u64'}({self.vector(header.name)}[{lane}])"
        at = f"4 * ({lane})" if "+" in lane else f"4 * {lane}"
        packed = f"load4(packets, start + {self.offset(header.name)} + {at})"
        if field.signed:
            packed = f"sign_extend({packed}, {field.bits})"
        if self.loop:
            return packed if header.name in self.from_packet else unpacked
        return f"({packed} if {self.packed(header.name)} else {unpacked})"

    # --- values of several words ----------------------------------------------------------------------------------

    def of_words(self, words: Sequence[str], bits: int) -> Value:
        return Value(words[0], "unsigned", bits) if len(words) == 1 else Value("", "wide", bits, words=tuple(words))

    def words(self, value: Value, bits: int, where: str) -> list[str]:
        """The words of a value of `bits` bits."""
        if bits <= WORD_BITS:
            return [self.cut(value, bits, signed=False)]
        if value.kind == "wide" and value.bits <= bits:
            return [self.constant(0)] * (len(words_of(bits)) - len(value.words)) + list(value.words)
        if value.kind == "constant":
            return [self.constant(value.constant >> low & (1 << n) - 1) for low, n in words_of(bits)]
        if (
            value.kind == "unsigned"
            and not value.may_be_negative
            and (value.bits < WORD_BITS or value.code.isidentifier())
        ):
            return [self.constant(0)] * (len(words_of(bits)) - 1) + [value.code]
        raise Unsupported(f"arithmetic of {bits} bits", where)

    def part(self, value: Value, first: int, bits: int) -> str:
        """At most a word of bits of a wide value, from bit `first` on."""
        lowest_first = value.words[::-1]
        word, shift = divmod(first, WORD_BITS)
        code = f"({lowest_first[word]} >> {self.constant(shift)})" if shift else lowest_first[word]
        if shift and shift + bits > WORD_BITS and word + 1 < len(lowest_first):
            code = f"({code} | ({lowest_first[word + 1]} << {self.constant(WORD_BITS - shift)}))"
        return code if bits == WORD_BITS else f"({code} & {self.constant((1 << bits) - 1)})"

    def _wide(self, op: str, left: Value, right: Value, where: str) -> Value:
        """The operations on wide values: bitwise operations, right shifts by a constant, equality."""
        bits = max(left.bits, right.bits)
        if op == ">>" and right.kind == "constant" and left.kind == "wide":
            rest = max(left.bits - right.constant, 0)
            words = [self.part(left, right.constant + low, n) for low, n in words_of(rest)] if rest else ["u64(0)"]
            return self.of_words(words, max(rest, 1))
        if op == "&" and min(left.bits, right.bits) <= WORD_BITS:  # the narrow operand truncates
            narrow, wide = (left, right) if left.bits < right.bits else (right, left)
            return Value(f"({self.unsigned(narrow)} & {self.words(wide, bits, where)[-1]})", "unsigned", narrow.bits)
        if op in ("&", "|", "^", "==", "!="):
            pairs = zip(self.words(left, bits, where), self.words(right, bits, where), strict=True)
            if op in ("&", "|", "^"):
                return self.of_words([f"({a} {op} {b})" for a, b in pairs], bits)
            equal = " and ".join(f"{a} == {b}" for a, b in pairs)
            return Value(f"({equal})" if op == "==" else f"(not ({equal}))", "bool", 1)
        raise Unsupported(f"{op!r} on {bits} bits", where)

    # --- values ---------------------------------------------------------------------------------------------------

    def unsigned(self, value: Value) -> str:
        if value.kind == "wide":
            raise Unsupported(f"arithmetic of {value.bits} bits", self.where)
        if value.kind == "constant":
            return self.constant(value.constant)
        if value.kind == "signed":
            return f"u64({value.code})"
        if value.kind == "bool":
            raise PipelineError(f"a boolean where a number is expected: {value.code}")
        return value.code

    def signed(self, value: Value, where: str) -> str:
        if value.kind == "constant":
            return f"i64({value.constant})"
        if value.kind == "signed":
            return value.code
        if value.kind == "unsigned" and value.bits < 64 and not value.may_be_negative:
            return f"i64({value.code})"
        raise Unsupported("signed arithmetic on 64-bit values", where)

    def boolean(self, value: Value) -> str:
        if value.kind != "bool":
            raise PipelineError(f"a number where a boolean is expected: {value.code}")
        return value.code

    def cut(self, value: Value, bits: int, signed: bool) -> str:
        """A value truncated to a field's type."""
        if value.kind == "wide":
            value = Value(self.part(value, 0, min(bits, WORD_BITS)), "unsigned", min(bits, WORD_BITS))
        if signed:
            if value.kind == "signed" and value.bits <= bits:
                return value.code
            if value.kind == "constant":
                half = 1 << (bits - 1)
                return f"i64({(value.constant + half) % (2 * half) - half})"
            return f"sign_extend({self.unsigned(value)}, {bits})"
        if value.kind == "constant":
            return self.constant(value.constant & ((1 << bits) - 1))
        code = self.unsigned(value)
        if bits >= 64:
            return code if code.isidentifier() else f"u64({code})"
        if value.kind == "unsigned" and value.bits <= bits and not value.may_be_negative:
            return code
        return f"({code} & {self.constant((1 << bits) - 1)})"

    def expression(self, node: Mapping[str, Any] | None, where: str, parameters: tuple[Value, ...] = ()) -> Value:
        if node is None:
            raise PipelineError(f"{where}: an operand is missing")
        self.where = where
        kind: str = node["type"]
        value = node["value"]
        if kind == "expression":
            if value.get("type") == "expression" or "op" not in value:
                return self.expression(value, where, parameters)
            return self._operation(value, where, parameters)
        if kind == "field":
            return self.read_field(value[0], value[1], where)
        if kind == "hexstr":
            constant = number(value)
            return Value(str(constant), "constant", max(constant.bit_length(), 1), constant < 0, constant)
        if kind == "bool":
            return Value("True" if value else "False", "bool", 1)
        if kind == "stack_field":
            return self.last_of_stack(value[0], value[1], where)
        if kind == "element":
            return self.element(node, where, parameters)
        if kind in ("local", "runtime_data"):
            return parameters[int(value)]
        if kind == "header":
            return Value(self.valid(value), "bool", 1)
        raise Unsupported(f"an operand of type {kind}", where)

    def _operation(self, node: Mapping[str, Any], where: str, parameters: tuple[Value, ...]) -> Value:
        op = node["op"]

        def operand(side: str) -> Value:
            return self.expression(node[side], where, parameters)

        if op == "valid":
            return operand("right")
        if op == "valid_union":
            members = self.program.unions[node["right"]["value"]]
            return Value(f"({' or '.join(self.valid(name) for name in members)})", "bool", 1)
        if op in ("last_stack_index", "size_stack"):
            following = f"u64({self.next_of(node['right']['value'])})"
            one = self.constant(1)
            return Value(f"({following} - {one})" if op == "last_stack_index" else following, "unsigned", 64)
        if op == "not":
            return Value(f"(not {self.boolean(operand('right'))})", "bool", 1)
        if op in ("and", "or"):
            return Value(f"({self.boolean(operand('left'))} {op} {self.boolean(operand('right'))})", "bool", 1)
        if op == "d2b":
            return Value(f"({self.unsigned(operand('right'))} != {self.constant(0)})", "bool", 1)
        if op == "b2d":
            code = f"({self.constant(1)} if {self.boolean(operand('right'))} else {self.constant(0)})"
            return Value(code, "unsigned", 1)
        if op in (*COMPARISON, *ARITHMETIC, "<<", ">>"):
            if node["left"]["type"].startswith("header"):
                raise Unsupported("a comparison of headers", where)
            return self._binary(op, operand("left"), operand("right"), where)
        if op == "~":
            value = operand("right")
            if value.kind == "signed":
                return Value(f"(~{value.code})", "signed", 64)
            return Value(f"(~{self.unsigned(value)})", "unsigned", 64, may_be_negative=True)
        if op == "?":
            condition = self.boolean(self.expression(node["cond"], where, parameters))
            return self._choose(condition, operand("left"), operand("right"), where)
        if op == "two_comp_mod":
            width = operand("right").constant
            if width > WORD_BITS:
                raise Unsupported(f"arithmetic of {width} bits", where)
            return Value(self.cut(operand("left"), width, signed=True), "signed", width)
        if op in ("sat_cast", "usat_cast"):
            return self._saturate(op, node, where, parameters)
        raise Unsupported(f"operation {op!r}", where)

    def _binary(self, op: str, left: Value, right: Value, where: str) -> Value:
        if "wide" in (left.kind, right.kind):
            return self._wide(op, left, right, where)
        if op in COMPARISON:
            return self._compare(op, left, right, where)
        if op in ARITHMETIC:
            return self._arithmetic(op, left, right, where)
        return self._shift(op, left, right)

    def _compare(self, op: str, left: Value, right: Value, where: str) -> Value:
        if left.kind == "bool" or right.kind == "bool":
            return Value(f"({self.boolean(left)} {op} {self.boolean(right)})", "bool", 1)
        if "signed" in (left.kind, right.kind):
            return Value(f"({self.signed(left, where)} {op} {self.signed(right, where)})", "bool", 1)
        if (left.may_be_negative or right.may_be_negative) and op not in ("==", "!="):
            raise Unsupported("an ordered comparison of an uncut difference", where)
        return Value(f"({self.unsigned(left)} {op} {self.unsigned(right)})", "bool", 1)

    def _arithmetic(self, op: str, left: Value, right: Value, where: str) -> Value:
        if op == "&" and right.bits > WORD_BITS and right.constant & MASK64 == MASK64 and _is_plain(left):
            return left  # a cast to a wide type
        if "signed" in (left.kind, right.kind) and not (op == "&" and (_is_plain(left) or _is_plain(right))):
            code = f"({self.signed(left, where)} {op} {self.signed(right, where)})"
            ours, theirs = _signed_bits(left), _signed_bits(right)
            bits = ours + theirs if op == "*" else max(ours, theirs) + 1
            if op in ("&", "|", "^"):
                bits = max(ours, theirs)
            if bits > 64:
                raise Unsupported("signed arithmetic beyond 64 bits", where)
            return Value(code, "signed", bits)
        code = f"({self.unsigned(left)} {op} {self.unsigned(right)})"
        negative = op == "-" or left.may_be_negative or right.may_be_negative
        bits = 64
        if op == "&":
            # a non-negative mask truncates any value, signed ones, too
            sides = [v.bits for v in (left, right) if _is_plain(v)]
            negative = not sides
            bits = min(sides, default=64)
        elif op in ("|", "^"):
            bits = max(left.bits, right.bits)
        elif op == "+":
            bits = max(left.bits, right.bits) + 1
        elif op == "*":
            bits = left.bits + right.bits
        return Value(code, "unsigned", min(bits, 64), negative)

    def _shift(self, op: str, left: Value, right: Value) -> Value:
        count = self.unsigned(right)
        if left.kind == "signed":
            if op == ">>":
                return Value(f"shift_right_signed({left.code}, {count})", "signed", left.bits)
            return Value(f"shift_left({self.unsigned(left)}, {count})", "unsigned", 64, may_be_negative=True)
        code = self.unsigned(left)
        if right.kind == "constant" and right.constant < 64:
            bits = left.bits - right.constant if op == ">>" else left.bits + right.constant
            return Value(f"({code} {op} {count})", "unsigned", min(max(bits, 1), 64), left.may_be_negative)
        name = "shift_right" if op == ">>" else "shift_left"
        return Value(f"{name}({code}, {count})", "unsigned", left.bits if op == ">>" else 64, left.may_be_negative)

    def _choose(self, condition: str, left: Value, right: Value, where: str) -> Value:
        bits = max(left.bits, right.bits)
        if left.kind == "bool" or right.kind == "bool":
            return Value(f"({self.boolean(left)} if {condition} else {self.boolean(right)})", "bool", 1)
        if "signed" in (left.kind, right.kind):
            return Value(
                f"({self.signed(left, where)} if {condition} else {self.signed(right, where)})", "signed", bits
            )
        code = f"({self.unsigned(left)} if {condition} else {self.unsigned(right)})"
        return Value(code, "unsigned", bits, left.may_be_negative or right.may_be_negative)

    def _saturate(self, op: str, node: Mapping[str, Any], where: str, parameters: tuple[Value, ...]) -> Value:
        """Clamps a sum or difference whose exact value fits in 64 signed bits."""
        width = self.expression(node["right"], where, parameters).constant
        if width >= WORD_BITS:
            raise Unsupported("saturating arithmetic beyond 62 bits", where)
        exact = self._exact(node["left"], where, parameters)
        if op == "sat_cast":
            return Value(f"clamp({exact.code}, {-(1 << (width - 1))}, {(1 << (width - 1)) - 1})", "signed", width)
        return Value(f"u64(clamp({exact.code}, 0, {(1 << width) - 1}))", "unsigned", width)

    def _exact(self, node: Mapping[str, Any], where: str, parameters: tuple[Value, ...]) -> Value:
        """The operand of a saturating cast in signed arithmetic, so that it is not truncated before the clamp."""
        inner = node
        while inner["type"] == "expression" and "op" not in inner["value"]:
            inner = inner["value"]
        if inner["type"] == "expression" and inner["value"]["op"] in ("+", "-"):
            left = self._exact(inner["value"]["left"], where, parameters)
            right = self._exact(inner["value"]["right"], where, parameters)
            bits = max(left.bits, right.bits) + 1
            if bits > 63:
                raise Unsupported("saturating arithmetic beyond 62 bits", where)
            return Value(f"({left.code} {inner['value']['op']} {right.code})", "signed", bits)
        value = self.expression(node, where, parameters)
        return Value(self.signed(value, where), "signed", value.bits)


def _is_plain(value: Value) -> bool:
    """Whether a value is certainly not negative."""
    return value.kind != "signed" and not value.may_be_negative


def _signed_bits(value: Value) -> int:
    """The width of a signed number that can hold a value."""
    return value.bits if value.kind == "signed" else value.bits + 1
