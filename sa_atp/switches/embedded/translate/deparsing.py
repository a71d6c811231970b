"""Translates the deparser, and decides which fields of a header are in variables.

A header of an arriving packet is known by its offset. Only fields that the program reads are extracted into variables;
the deparser copies bytes that no statement may have changed from the packet.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.program import Field, Header, words_of
from sa_atp.switches.embedded.translate.expressions import Translator
from sa_atp.switches.embedded.translate.headers import Headers
from sa_atp.switches.embedded.translate.part import Part

WORD_BYTES = 8
HEAD_BYTES = 42  # of a packet's head, which may be stored apart: Ethernet, IPv4 without options, UDP
HEAD_ROW, HEAD_AT = 64, 16  # bytes of a head's row, and where in it the head begins


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole bytes of a header that begin and end with a field.

    behind: whether a varbit comes before it, so that its place depends on the packet; `first_byte` does not count it.
    """

    first_byte: int
    size: int
    fields: tuple[Field, ...]
    behind: bool


def chunks(header: Header) -> list[Chunk]:
    """A header in chunks as small as field boundaries allow; a chunk longer than a word can only be copied."""
    found: list[Chunk] = []
    pending: list[Field] = []
    behind = False
    for field in header.fields:
        if field.is_varbit:
            behind = True
            continue
        pending.append(field)
        end = field.offset_bits + field.bits
        if end % 8 == 0:
            first = pending[0].offset_bits // 8
            found.append(Chunk(first, end // 8 - first, tuple(pending), behind))
            pending = []
    return found


class Deparsing(Part):
    def __init__(self, translator: Translator) -> None:
        super().__init__(translator)
        self.headers = Headers(translator)
        self.plans = {
            h.name: self._plan(h) for h in self.program.headers.values() if not h.metadata and not h.is_vector
        }

    # --- fields in variables ------------------------------------------------------------------------------------------

    def _plan(self, header: Header) -> list[tuple[Chunk, bool]]:
        """The chunks of a header, and whether each may have changed, and so is assembled from its fields and not copied."""
        made = header.name in self.usage.made
        plan = [
            (chunk, made or any((header.name, f.name) in self.usage.written for f in chunk.fields))
            for chunk in chunks(header)
        ]
        for chunk, changed in plan:
            if chunk.size > WORD_BYTES and changed and len(chunk.fields) > 1:
                raise Unsupported("fields that do not align to bytes within 8 bytes", header.name)
        return plan

    def needed(self, header: Header) -> list[Field]:
        """The fields that are in variables, because they are read, or share a byte with one that is written."""
        fields = []
        for chunk, changed in self.plans[header.name]:
            for field in chunk.fields:
                if changed or (header.name, field.name) in self.usage.read:
                    fields.append(field)
        return fields

    def came_with_packet(self, header: Header) -> str:
        return self.translator.offset(header.name)

    # --- deparser -----------------------------------------------------------------------------------------------------

    def deparser(self) -> None:
        """Writes the packet to out[at], its length to `end`, and the place of its body to `body`.

        The head is the first HEAD_BYTES bytes, the body the rest. If heads are stored apart, bodies are contiguous: a
        head is written over the end of the body before, copied to its own place, and the body is restored. Copies of a
        packet that differ only in their heads share one body.
        """
        # Headers that egress may take from one copy, or give it, are not written for each copy to be compared: copies that
        # have the same of them have the same bytes there.
        out = self.out
        with out.block("if apart != 0:"):
            out(f"copy_bytes(kept, 0, out, at, {HEAD_BYTES})")
        changed, unchanged = self._halves()
        loose = [name for name in unchanged if name in self.usage.validity_in_egress]
        shape = " | ".join(f"i64({self.translator.valid(name)}) << {i}" for i, name in enumerate(loose)) or "0"
        out("end = 0")
        self._emit_all(changed)
        out(f"shape = {shape}")
        with out.block(
            "if apart != 0 and copied_to >= 0 and end == copied_end and shape == copied_shape and end >= apart "
            "and same_bytes(out, at + apart, copied_to + apart, end - apart):"
        ):
            out("body, end, taken_up = copied_to + apart, copied_length, 0")
        with out.block("else:"):
            out("copied_end, copied_shape = end, shape")
            self._emit_all(unchanged)
            with out.block("if length > offset:"):
                out("copy_bytes(out, at + end, packets, start + offset, length - offset)")
                out("end += length - offset")
            out("copied_to, copied_length, body, taken_up = at, end, at + apart, max(end - apart, 0)")
        with out.block("if apart != 0:"):
            out(f"copy_bytes(heads, made * {HEAD_ROW} + {HEAD_AT}, out, at, {HEAD_BYTES})")
            out(f"copy_bytes(out, at, kept, 0, {HEAD_BYTES})")

    def _halves(self) -> tuple[Sequence[str], Sequence[str]]:
        """The headers up to the last one whose fields egress may change, and the others."""
        order = self.program.deparse_order
        changing = {name for name, _ in self.usage.written_in_egress}
        first = max((i + 1 for i, name in enumerate(order) if name in changing), default=0)
        return order[:first], order[first:]

    def _emit_all(self, names: Sequence[str]) -> None:
        for name in names:
            header = self.program.headers[name]
            with self.out.block(f"if {self.translator.valid(name)}:"):
                if header.is_vector:
                    self._emit_vector(header)
                else:
                    self._emit(header)
                self.out(f"end += {self.headers.size(header)}")

    def _emit_vector(self, header: Header) -> None:
        start = self.came_with_packet(header)
        with self.out.block(f"if {self.translator.packed(header.name)}:"):
            self.out(f"copy_bytes(out, at + end, packets, start + {start}, {header.size_bytes})")
        with self.out.block("else:"):
            self.out(f"store_vector(out, at + end, {self.translator.vector(header.name)})")

    def _emit(self, header: Header) -> None:
        start = self.came_with_packet(header)
        copied: list[Chunk] = []

        def flush() -> None:
            if copied:
                first = copied[0].first_byte
                size = copied[-1].first_byte + copied[-1].size - first
                at = self._after(header, copied[0])
                self.out(f"copy_bytes(out, at + end + {first}{at}, packets, start + {start} + {first}{at}, {size})")
                copied.clear()

        behind = False
        for chunk, changed in self.plans[header.name]:
            if chunk.behind and not behind:
                flush()
                behind = True
            if not changed:
                copied.append(chunk)
                continue
            flush()
            self._store(chunk, header)
        flush()
        if header.varbit is not None:
            first, size = header.varbit.offset_bits // 8, self.translator.varbit_bytes(header)
            self.out(
                f"copy_bytes(out, at + end + {first}, packets, start + {self.translator.varbit_at(header)}, {size})"
            )

    def _after(self, header: Header, chunk: Chunk) -> str:
        """Source of a chunk's displacement by a varbit."""
        return f" + {self.translator.varbit_bytes(header)}" if chunk.behind else ""

    def _store(self, chunk: Chunk, header: Header) -> None:
        if chunk.size > WORD_BYTES:
            at = chunk.first_byte
            (field,) = chunk.fields
            for variable, (_, bits) in zip(self.translator.variables(header, field), words_of(field.bits), strict=True):
                self._store_word(f"{at}{self._after(header, chunk)}", bits // 8, variable)
                at += bits // 8
            return
        terms = []
        end_bit = 8 * (chunk.first_byte + chunk.size)
        for field in chunk.fields:
            code = self.translator.variable(header, field)
            if field.signed:
                code = f"(u64({code}) & {self.constant((1 << field.bits) - 1)})"
            shift = end_bit - field.offset_bits - field.bits
            terms.append(f"({code} << {self.constant(shift)})" if shift else code)
        self._store_word(f"{chunk.first_byte}{self._after(header, chunk)}", chunk.size, " | ".join(terms))

    def _store_word(self, at: str, size: int, value: str) -> None:
        """Writes a store of the low bytes of a word after `end`."""
        if size in (1, 2, 4, 8):
            self.out(f"store{size}(out, at + end + {at}, {value})")
            return
        self.out(f"word = {value}")
        done = 0
        while size:
            piece = next(p for p in (4, 2, 1) if p <= size)
            size -= piece
            shifted = f"word >> {self.constant(8 * size)}" if size else "word"
            self.out(f"store{piece}(out, at + end + {at}{f' + {done}' if done else ''}, {shifted})")
            done += piece
