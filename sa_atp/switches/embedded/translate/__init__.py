"""Translates a compiled P4 program into a Python function that processes a batch of packets.

    program ──> usage      finds fields that are read, and fields that are written
            ──> layout     places registers and tables in memory
            ──> parsing    the parser               ┐
            ──> matching   control flow and tables  │
            ──> statements actions, loops rerolled  ├──> source of `process`, and the names of its arguments
            ──> headers    validity, stacks, unions │
            ──> checksums                           │
            ──> deparsing  the deparser             ┘

The source runs as plain Python (slowly, to step through it), or compiled by numba; see bits.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.switches.embedded.block_locks import BLOCKS
from sa_atp.switches.embedded.errors import Unsupported, reading_json
from sa_atp.switches.embedded.program import Field, Header, Program
from sa_atp.switches.embedded.translate import checksums
from sa_atp.switches.embedded.translate.deparsing import HEAD_BYTES, Deparsing
from sa_atp.switches.embedded.translate.expressions import FIXED_ARGUMENTS, FRAME_WORDS, Translator
from sa_atp.switches.embedded.translate.layout import MemoryLayout, rows
from sa_atp.switches.embedded.translate.matching import Matching
from sa_atp.switches.embedded.translate.parsing import Parsing
from sa_atp.switches.embedded.translate.part import Part
from sa_atp.switches.embedded.translate.source import Source
from sa_atp.switches.embedded.translate.statements import DROP_PORT, Statements

STANDARD = "standard_metadata"
PORT_BITS = 9  # queues are looked up by port
NORMAL, REPLICATION = 0, 5  # simple_switch's PKT_INSTANCE_TYPE_NORMAL and PKT_INSTANCE_TYPE_REPLICATION


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """The source of `process`, and the arguments in its call frame, of FRAME_WORDS words each.

    arguments: those after FIXED_ARGUMENTS: ("table", table), ("index", table), ("register", array), ("counter", counter),
        ("entries", table), ("vector", header), ("holds", "").
    shared: whether several cores may run it at the same time, each with its own call frame.
    """

    source: str
    layout: MemoryLayout
    arguments: tuple[tuple[str, str], ...]
    shared: bool = False


def translate(program: Program, *, shared: bool = False) -> Translation:
    """Translates a program. Args: shared: whether several cores may run it at the same time (see `block_locks`).

    Raises:
        Unsupported: the message names the construct and its place.
        PipelineError: the program is inconsistent.
    """
    with reading_json("pipeline"):
        return _Process(Translator(program, shared=shared)).translation()


class _Process(Part):
    def __init__(self, translator: Translator) -> None:
        super().__init__(translator)
        statements = Statements(translator)
        self.packets = Deparsing(translator)
        self.parsing = Parsing(translator, self.packets, statements)
        self.matching = Matching(translator, statements)
        self.used = self.usage.read | self.usage.written

    def translation(self) -> Translation:
        arguments = self._arguments()
        self.matching.lookup_functions()
        self.out("@compiled")
        with self.out.block("def process(frame):"):
            self._body(arguments)
        head = Source()
        head(
            f'"""{self.program.name} as the embedded target runs it. Written by sa_atp.switches.embedded.translate."""'
        )
        head()
        for value, name in sorted(self.translator.names.constants.items()):
            head(f"{name} = constant(0x{value:x})")
        head()
        return Translation(
            source=head.text() + self.out.text(),
            layout=self.layout,
            arguments=tuple((kind, name) for _, kind, name, _ in arguments),
            shared=self.translator.shared,
        )

    def _arguments(self) -> Sequence[tuple[str, str, str, str]]:
        """For each argument: its name in `process`, its kind, its owner, and source that takes it from place {}."""
        names = self.translator.names
        found: list[tuple[str, str, str, str]] = []
        for table in self.layout.tables.values():
            if table.kind == "none" and table.table.default_const:
                continue
            found.append((self.matching.array(table), "table", table.table.name, rows(64, table.columns)))
            if table.kind == "direct":
                found.append((self.matching.index(table), "index", table.table.name, "array_u64_1(frame, {})"))
            if table.table.with_counters:
                found.append((names.of("entries_counter", table.table.name), "entries", table.table.name, rows(64, 2)))
        found += [(array.name, "register", array.name, array.view) for array in self.layout.arrays]
        found += [(names.of("counter", c.name), "counter", c.name, rows(64, 2)) for c in self.program.counters]
        for name, (_, signed) in self.layout.vectors.items():
            view = f"array_{'i' if signed else 'u'}32_1(frame, {{}})"
            found.append((self.translator.vector(name), "vector", name, view))
        if self.translator.shared:
            found.append(("holds", "holds", "", "array_i64_1(frame, {})"))
        return found

    # --- the function -----------------------------------------------------------------------------------------------

    def _body(self, arguments: Sequence[tuple[str, str, str, str]]) -> None:
        out = self.out
        for i, (name, kind) in enumerate(FIXED_ARGUMENTS):
            out(f"{name} = {kind}(frame, {FRAME_WORDS * i})")
        for i, (name, kind, _, view) in enumerate(arguments, len(FIXED_ARGUMENTS)):
            out(f"{name} = {view.format(FRAME_WORDS * i)}  # {kind}")
        out("n, made, at = first, 0, 0")
        if self.translator.shared:
            out(f"held = {self.constant(BLOCKS)}")
        with out.block("while n < last:"):
            out("length = lengths[n]")
            out("room = row_bytes if apart == 0 else length + most_added")
            with out.block("if made + most_copies > len(out_lengths) or at + most_copies * room > len(out):"):
                out("break")
            out("start = starts[n]")
            with out.block("if head_of[n] >= 0:"):  # over the end of a packet that has been handled
                out(f"copy_bytes(packets, start, heads_in, head_of[n], {HEAD_BYTES})")
            out("n += 1")
            self._reset()
            self.parsing.parser()
            checksums.verify(self.translator)
            self.matching.control(self.program.ingress)
            self._replicate()
        if self.translator.shared:
            out("let_go(holds, held)")
        out("set_frame_word(frame, 0, n)")
        out(f"set_frame_word(frame, {FRAME_WORDS}, made)")
        out("return 0")

    def _standard(self, name: str) -> str:
        header, field = self.program.field(STANDARD, name, "standard metadata")
        return self.translator.variable(header, field)

    def _set_standard(self, name: str, code: str) -> None:
        """Sets a field of the standard metadata, if the program reads it."""
        if name in self.program.headers[STANDARD].index and (STANDARD, name) in self.used:
            _, field = self.program.field(STANDARD, name, "standard metadata")
            mask = self.constant((1 << field.bits) - 1)
            self.out(f"{self._standard(name)} = {code} & {mask}")

    def _reset(self) -> None:
        """Sets metadata to zero, and headers invalid."""
        zero = self.constant(0)
        always = {(STANDARD, "egress_spec"), (STANDARD, "mcast_grp"), (STANDARD, "parser_error")}
        for header in self.program.headers.values():
            if header.varbit is not None:
                self.out(f"{self.translator.varbit_at(header)}, {self.translator.varbit_bytes(header)} = 0, 0")
            if header.metadata:
                for field in header.fields:
                    if (header.name, field.name) in self.used | always and not field.is_varbit:
                        self._zero(header, field)
                continue
            self.out(f"{self.translator.valid(header.name)} = False")
            self.out(f"{self.packets.came_with_packet(header)} = 0")
            if header.is_vector:
                self.out(f"{self.translator.packed(header.name)} = False")
                continue
            for field in self.packets.needed(header):
                self._zero(header, field)
        if any((STANDARD, f) in self.used for f in ("checksum_error",)) or self.program.checksums:
            self.out(f"{self._standard('checksum_error')} = {zero}")
        self._set_standard("ingress_port", "u64(ports[n - 1])")
        self._set_standard("packet_length", "u64(length)")
        self._set_standard("ingress_global_timestamp", "u64(now)")
        if self.usage.tracks_length:
            self.out("grown = 0")

    def _zero(self, header: Header, field: Field) -> None:
        for variable in self.translator.variables(header, field):
            self.out(f"{variable} = {'i64(0)' if field.signed else self.constant(0)}")

    def _replicate(self) -> None:
        """Replicates after ingress (multicast, drop, or one port), and runs egress for each copy, as simple_switch does.

        Each copy begins egress with the state after ingress, except for its own number and port: changes of egress to one
        copy, a drop included, do not affect the next.
        """
        out, constant = self.out, self.constant
        spec = self._standard("egress_spec")
        _, field = self.program.field(STANDARD, "egress_spec", "standard metadata")
        if field.bits > PORT_BITS:
            raise Unsupported(f"port numbers of {field.bits} bits ({PORT_BITS} at most)", f"{STANDARD}.egress_spec")
        out(f"group, unicast = {self._standard('mcast_grp')}, {spec}")
        out("copy, end_copy = 0, 1")
        out("copied_to, copied_end, copied_shape, copied_length, body, taken_up = -1, 0, 0, 0, 0, 0")
        with out.block(f"if group != {constant(0)}:"):
            with out.block(f"if group + {constant(1)} < u64(len(group_starts)):"):
                out(f"copy, end_copy = group_starts[group], group_starts[group + {constant(1)}]")
            with out.block("else:"):
                out("end_copy = 0")
        with out.block(f"elif unicast == {constant(DROP_PORT)}:"):
            out("end_copy = 0")
        saved = self._saved()
        for name in saved:
            out(f"saved_{name} = {name}")
        if self.usage.tracks_length:
            out("length_now = length + grown")  # for egress, whose changes do not affect the next copy
        with out.block("while copy < end_copy:"):
            for name in saved:
                out(f"{name} = saved_{name}")
            with out.block(f"if group != {constant(0)}:"):
                out("port = u64(group_ports[copy])")
                self._set_standard("egress_rid", "u64(group_copies[copy])")
                self._set_standard("instance_type", constant(REPLICATION))
            with out.block("else:"):
                out("port = unicast")
                self._set_standard("instance_type", constant(NORMAL))
            self._set_standard("egress_port", "port")
            self._set_standard("packet_length", f"u64({'length_now' if self.usage.tracks_length else 'length'})")
            self._set_standard("enq_timestamp", "u64(now)")
            self._set_standard("deq_timedelta", constant(0))
            self._set_standard("egress_global_timestamp", "u64(now)")
            for depth in ("enq_qdepth", "deq_qdepth"):
                self._set_standard(depth, "u64(depths[port])")
            out(f"{spec} = {constant(0)}")
            self.matching.control(self.program.egress)
            with out.block(f"if {spec} != {constant(DROP_PORT)}:"):
                checksums.update(self.translator)
                self.packets.deparser()
                out("out_starts[made] = body")
                out("out_lengths[made] = end")
                out("out_ports[made] = port")
                out("out_sources[made] = n - 1")
                out("at += row_bytes if apart == 0 else taken_up")
                out("made += 1")
            out("copy += 1")

    def _saved(self) -> Sequence[str]:
        """Variables that egress changes, and that are restored for the next copy."""
        names = [self.translator.valid(header_name) for header_name in sorted(self.usage.validity_in_egress)]
        for stack, headers in self.program.stacks.items():
            if not self.usage.validity_in_egress.isdisjoint(headers):
                names.append(self.translator.next_of(stack))
        for header_name, field_name in sorted(self.usage.written_in_egress):
            header: Header = self.program.headers[header_name]
            field: Field = header.index[field_name]
            if header.is_vector:
                raise Unsupported("a change of a vector header", f"egress, {header_name}.{field_name}")
            if field.is_varbit:
                names += [self.translator.varbit_at(header), self.translator.varbit_bytes(header)]
            else:
                names += self.translator.variables(header, field)
        return names
