"""Checksums and hashes over lists of fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from sa_atp.softswitch.errors import Unsupported
from sa_atp.softswitch.program import Calculation, Checksum, number
from sa_atp.softswitch.translate.expressions import Translator
from sa_atp.softswitch.translate.source import Source


def _parts(translator: Translator, calculation: Calculation) -> list[tuple[str, int]]:
    """(source, bits) of each input, in order."""
    parts = []
    for node in calculation.inputs:
        if node["type"] == "hexstr":
            parts.append((translator.names.constant(number(node["value"])), int(node["bitwidth"])))
        else:
            value = translator.read_field(node["value"][0], node["value"][1], calculation.name)
            bits = value.bits
            parts.append((translator.cut(value, bits, signed=False), bits))
    return parts


def ones_complement(translator: Translator, out: Source, parts: Sequence[tuple[str, int]], target: str) -> None:
    """Target = the Internet checksum (RFC 1071) of the fields laid end to end, each piece added in its 16-bit word."""
    constant = translator.names.constant
    end = 0
    terms = []
    for code, bits in parts:
        end += bits
        # distance of the field's last bit from the end of its 16-bit word
        shift = -end % 16
        remaining, low = bits, 0
        while remaining > 0:
            piece = min(remaining, 16 - shift)
            term = code if low == 0 else f"({code} >> {constant(low)})"
            if piece < remaining:
                term = f"({term} & {constant((1 << piece) - 1)})"
            terms.append(f"({term} << {constant(shift)})" if shift else term)
            remaining, low, shift = remaining - piece, low + piece, 0
    out(f"{target} = {' + '.join(terms) or constant(0)}")
    for _ in range(2):
        out(f"{target} = ({target} & {constant(0xFFFF)}) + ({target} >> {constant(16)})")
    out(f"{target} = {target} ^ {constant(0xFFFF)}")


def hash_of(translator: Translator, out: Source, calculation: Calculation) -> str:
    """Writes what computes a hash of fields; returns the variable that holds it."""
    parts = _parts(translator, calculation)
    if calculation.algorithm == "csum16":
        ones_complement(translator, out, parts, "hashed")
        return "hashed"
    if calculation.algorithm == "identity" and sum(bits for _, bits in parts) <= 64:
        _pack(translator, out, parts, "hashed")
        return "hashed"
    if calculation.algorithm in ("crc16", "crc32"):
        _crc(translator, out, parts, calculation)
        return "hashed"
    raise Unsupported(f"hash algorithm {calculation.algorithm} over these fields", calculation.name)


def _pack(translator: Translator, out: Source, parts: Sequence[tuple[str, int]], target: str) -> None:
    out(f"{target} = {translator.names.constant(0)}")
    for code, bits in parts:
        out(f"{target} = ({target} << {translator.names.constant(bits)}) | {code}")


def _crc(translator: Translator, out: Source, parts: Sequence[tuple[str, int]], calculation: Calculation) -> None:
    """CRC over the bytes of the fields laid end to end."""
    constant = translator.names.constant
    table = "CRC16" if calculation.algorithm == "crc16" else "CRC32"
    out(f"hashed = {constant(0 if table == 'CRC16' else 0xFFFFFFFF)}")
    pending: list[tuple[str, int]] = []
    if sum(bits for _, bits in parts) % 8:
        raise Unsupported("a hash over fields that do not fill whole bytes", calculation.name)
    for part in parts:
        pending.append(part)
        width = sum(bits for _, bits in pending)
        if width > 64:
            raise Unsupported("a hash over fields that do not align to bytes", calculation.name)
        if width % 8 == 0:
            _pack(translator, out, pending, "packed")
            for shift in range(width - 8, -1, -8):
                byte = f"(packed >> {constant(shift)})" if shift else "packed"
                out(f"hashed = {table}[(hashed ^ {byte}) & {constant(0xFF)}] ^ (hashed >> {constant(8)})")
            pending = []
    if table == "CRC32":
        out(f"hashed = hashed ^ {constant(0xFFFFFFFF)}")


def _condition(translator: Translator, checksum: Checksum) -> str:
    """A checksum of an invalid header is neither checked nor written."""
    valid = translator.valid(checksum.header)
    if checksum.condition is None:
        return valid
    condition = translator.boolean(translator.expression(checksum.condition, checksum.name))
    return condition if condition == valid else f"{valid} and {condition}"


def verify(translator: Translator, out: Source, checksums: Sequence[Checksum]) -> None:
    header, flag = translator.program.field("standard_metadata", "checksum_error", "checksum")
    for checksum in checksums:
        if checksum.verify:
            with out.block(f"if {_condition(translator, checksum)}:"):
                ones_complement(translator, out, _parts(translator, checksum.calculation), "computed")
                given = translator.read_field(checksum.header, checksum.field, checksum.name)
                with out.block(f"if computed != {translator.unsigned(given)}:"):
                    out(f"{translator.variable(header, flag)} = {translator.names.constant(1)}")


def update(translator: Translator, out: Source, checksums: Sequence[Checksum]) -> None:
    for checksum in checksums:
        if checksum.update:
            with out.block(f"if {_condition(translator, checksum)}:"):
                header, field = translator.program.field(checksum.header, checksum.field, checksum.name)
                ones_complement(
                    translator, out, _parts(translator, checksum.calculation), translator.variable(header, field)
                )


def crc_tables() -> Mapping[str, Any]:
    """CRC-16/ARC and CRC-32 (both reflected), as BMv2 computes them."""
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
