"""Checksums and hashes over lists of fields.

As on BMv2, fields of an invalid header are left out of the list (behavioral-model, calculations.cpp): the others move
up, and the last byte is padded with zeros.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from sa_atp.switches.embedded.errors import Unsupported
from sa_atp.switches.embedded.program import Calculation, Checksum, number, words_of
from sa_atp.switches.embedded.translate.expressions import Translator, Value
from sa_atp.switches.embedded.translate.usage import asked_for

IDENTITY_BYTES = 8  # as many as fit in the result


@dataclass(frozen=True, slots=True)
class InputRun:
    """Consecutive inputs that are present together: fields of one header, or inputs that always are (header None).

    parts: (source, bits) of each. span: (place, bytes), as source, of bytes of the packet: a varbit, or the payload.
    """

    header: str | None
    parts: tuple[tuple[str, int], ...] = ()
    span: tuple[str, str] | None = None

    @property
    def bits(self) -> int:
        return sum(bits for _, bits in self.parts)

    def block(self, translator: Translator) -> AbstractContextManager[None]:
        return nullcontext() if self.header is None else translator.out.block(f"if {translator.valid(self.header)}:")


def inputs(translator: Translator, calculation: Calculation, valid: frozenset[str] = frozenset()) -> list[InputRun]:
    """The inputs of a calculation. Args: valid: headers that are known to be valid."""

    def certain(header: str) -> bool:
        return header in valid or translator.program.headers[header].metadata

    runs: list[InputRun] = []
    for node in calculation.inputs:
        run = _run(translator, node, calculation.name)
        if run.header is not None and certain(run.header):
            run = InputRun(None, run.parts, run.span)
        if runs and runs[-1].header == run.header and runs[-1].parts and run.parts:
            run = InputRun(run.header, (*runs.pop().parts, *run.parts))
        runs.append(run)
    return runs


def _run(translator: Translator, node: Mapping[str, Any], where: str) -> InputRun:
    if node["type"] == "payload":
        return InputRun(None, span=("offset", "(length - offset)"))
    if node["type"] == "hexstr":
        value, bits = number(node["value"]), int(node["bitwidth"])
        words = [(translator.constant(value >> low & (1 << n) - 1), n) for low, n in words_of(bits)]
        return InputRun(None, tuple(words))
    name, field_name = node["value"]
    header, field = translator.program.field(name, field_name, where)
    if field.is_varbit:
        return InputRun(header.name, span=(translator.varbit_at(header), translator.varbit_bytes(header)))
    codes = translator.words(translator.read_field(header.name, field.name, where), field.bits, where)
    return InputRun(header.name, tuple(zip(codes, (bits for _, bits in words_of(field.bits)), strict=True)))


# --- the Internet checksum --------------------------------------------------------------------------------------------


def ones_complement(translator: Translator, runs: Sequence[InputRun], target: str) -> None:
    """Writes: target = the Internet checksum (RFC 1071) of the concatenated fields, added word by word."""
    constant, out = translator.constant, translator.out
    end = 0  # bits before the next field, without those that `moved` counts
    moved = False  # whether a variable counts bits, too: a run that may be absent was no multiple of 16 bits
    if not runs or runs[0].header is not None or runs[0].span:
        out(f"{target} = {constant(0)}")
    if any(run.header is not None or run.span for run in runs):
        out(f"moved = {constant(0)}")
    for i, run in enumerate(runs):
        if run.span:
            moved = True
            with run.block(translator):
                _add_span(translator, run.span, end, target)
            continue
        terms = []
        here = end
        for code, bits in run.parts:
            here += bits
            terms += _moved_words(translator, code, bits, here) if moved else _words(translator, code, bits, here)
        with run.block(translator):
            first = i == 0 and run.header is None
            out(f"{target} = {'' if first else f'{target} + '}{' + '.join(terms)}")
            if run.header is not None and run.bits % 16:
                out(f"moved = moved + {constant(run.bits)}")
        if run.header is None:
            end = here
        elif run.bits % 16:
            moved = True
    for _ in range(4 if moved else 2):
        out(f"{target} = ({target} & {constant(0xFFFF)}) + ({target} >> {constant(16)})")
    out(f"{target} = {target} ^ {constant(0xFFFF)}")


def _words(translator: Translator, code: str, bits: int, end: int) -> list[str]:
    """The terms that a field which ends at bit `end` adds to the sum of 16-bit words."""
    constant = translator.constant
    shift = -end % 16  # distance of the field's last bit from the end of its word
    terms = []
    low = 0
    while low < bits:
        piece = min(bits - low, 16 - shift)
        term = code if low == 0 else f"({code} >> {constant(low)})"
        if piece < bits - low:
            term = f"({term} & {constant((1 << piece) - 1)})"
        terms.append(f"({term} << {constant(shift)})" if shift else term)
        low, shift = low + piece, 0
    return terms


def _moved_words(translator: Translator, code: str, bits: int, end: int) -> list[str]:
    """`_words` for a field that begins `moved` bits later, a number that is known only at run time."""
    constant = translator.constant
    total = " + ".join(_words(translator, code, bits, 0))
    return [f"(({total}) << (({constant(-end % 16)} - moved) & {constant(15)}))"]


def _add_span(translator: Translator, span: tuple[str, str], end: int, target: str) -> None:
    constant, out = translator.constant, translator.out
    at, count = span
    with out.block(f"for step in range({count}):"):
        shift = f"(({constant(-(end + 8))} - moved) & {constant(15)})"
        out(f"{target} = {target} + (load1(packets, start + {at} + step) << {shift})")
        out(f"moved = moved + {constant(8)}")


# --- hashes -----------------------------------------------------------------------------------------------------------


def hash_of(translator: Translator, calculation: Calculation) -> str:
    """Writes the computation of a hash. Returns: the variable of the result."""
    runs = inputs(translator, calculation)
    constant, out = translator.constant, translator.out
    if calculation.algorithm == "csum16":
        ones_complement(translator, runs, "hashed")
        return "hashed"
    crc32 = calculation.algorithm == "crc32"
    out(f"hashed = {constant(0xFFFFFFFF if crc32 else 0)}")
    out(f"taken = {constant(0)}")
    for i, run in enumerate(runs):
        with run.block(translator):
            if run.span:
                at, count = run.span
                with out.block(f"for step in range({count}):"):
                    _take(translator, calculation.algorithm, f"load1(packets, start + {at} + step)")
                continue
            for byte in _bytes(translator, run, calculation, is_last=i == len(runs) - 1):
                _take(translator, calculation.algorithm, byte)
    if crc32:
        out(f"hashed = hashed ^ {constant(0xFFFFFFFF)}")
    return "hashed"


def _take(translator: Translator, algorithm: str, byte: str) -> None:
    """Writes a hash's step for its next byte, the low 8 bits of `byte`; the variable `taken` counts bytes."""
    constant, out = translator.constant, translator.out
    if algorithm in ("crc16", "crc32"):
        out(f"hashed = u64({algorithm.upper()}[(hashed ^ {byte}) & {constant(0xFF)}]) ^ (hashed >> {constant(8)})")
        return
    if algorithm == "xor16":  # the first byte of two is the high one
        shift = f"((~taken & {constant(1)}) << {constant(3)})"
        out(f"hashed = hashed ^ (({byte} & {constant(0xFF)}) << {shift})")
    else:
        with out.block(f"if taken < {constant(IDENTITY_BYTES)}:"):
            out(f"hashed = (hashed << {constant(8)}) | ({byte} & {constant(0xFF)})")
    out(f"taken = taken + {constant(1)}")


def _bytes(translator: Translator, run: InputRun, calculation: Calculation, *, is_last: bool) -> Iterator[str]:
    """Yields the bytes of a run, each as source whose low 8 bits count; writes the statements that it needs before."""
    constant, out = translator.constant, translator.out
    pending: list[tuple[str, int]] = []
    for i, part in enumerate(run.parts):
        pending.append(part)
        width = sum(bits for _, bits in pending)
        if i == len(run.parts) - 1 and width % 8 and is_last:
            pending.append((constant(0), -width % 8))
            width += -width % 8
        if width > 64:
            raise Unsupported("a hash over fields that do not align to bytes", calculation.name)
        if width % 8:
            continue
        out(f"packed = {constant(0)}")
        for code, bits in pending:
            out(f"packed = ({f'packed << {constant(bits)}' if bits < 64 else constant(0)}) | {code}")
        for shift in range(width - 8, -1, -8):
            yield f"(packed >> {constant(shift)})" if shift else "packed"
        pending = []
    if pending:
        raise Unsupported("a hash over fields of several headers that share a byte", calculation.name)


# --- checksums of headers ---------------------------------------------------------------------------------------------


def _condition(translator: Translator, checksum: Checksum) -> tuple[str, frozenset[str]]:
    """The condition for checking or writing a checksum, and the headers that are valid then.

    In an invalid header, a checksum is neither checked nor written.
    """
    valid = translator.valid(checksum.header)
    if checksum.condition is None:
        return valid, frozenset({checksum.header})
    condition = translator.boolean(translator.expression(checksum.condition, checksum.name))
    return condition if condition == valid else f"{valid} and {condition}", frozenset(
        {checksum.header, *asked_for(checksum.condition)}
    )


def _compute(translator: Translator, checksum: Checksum, valid: frozenset[str]) -> None:
    ones_complement(translator, inputs(translator, checksum.calculation, valid), "computed")


def verify(translator: Translator) -> None:
    out = translator.out
    header, flag = translator.program.field("standard_metadata", "checksum_error", "checksum")
    for checksum in translator.program.checksums:
        if checksum.verify:
            condition, valid = _condition(translator, checksum)
            with out.block(f"if {condition}:"):
                _compute(translator, checksum, valid)
                given = translator.read_field(checksum.header, checksum.field, checksum.name)
                with out.block(f"if computed != {translator.unsigned(given)}:"):
                    out(f"{translator.variable(header, flag)} = {translator.constant(1)}")


def update(translator: Translator) -> None:
    out = translator.out
    for checksum in translator.program.checksums:
        if checksum.update:
            condition, valid = _condition(translator, checksum)
            with out.block(f"if {condition}:"):
                _compute(translator, checksum, valid)
                header, field = translator.program.field(checksum.header, checksum.field, checksum.name)
                cut = translator.cut(Value("computed", "unsigned", 16), field.bits, field.signed)
                out(f"{translator.variable(header, field)} = {cut}")


def crc_tables() -> Mapping[str, Any]:
    """The tables of CRC-16/ARC and CRC-32 (both reflected), as BMv2 computes them."""
    import numpy as np

    tables = {}
    for name, polynomial in (("CRC16", 0xA001), ("CRC32", 0xEDB88320)):
        table = []
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = (value >> 1) ^ (polynomial if value & 1 else 0)
            table.append(value)
        tables[name] = np.array(table, np.uint64)
    return tables
