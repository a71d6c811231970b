"""Converts controller headers, the metadata of packet-in and packet-out. (section 16.1)

The program sees them as a header before the packet, with fields in the order of the P4Info; the controller sees them as a
list of numbered values.
"""

from collections.abc import Mapping

from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.schema import FieldInfo

Header = tuple[FieldInfo, ...]


def header_bytes(header: Header) -> int:
    """Bytes of a controller header before a packet, filled up to whole bytes."""
    return (sum(f.bits for f in header) + 7) // 8


def join(header: Header, values: Mapping[int, int], payload: bytes) -> bytes:
    """The packet with its controller header, for the program.

    Args: values: by metadata id. Missing values are zero, as on BMv2: programs pad their headers with fields that
        controllers do not know. (By the specification the packet would be refused.)

    Raises: Refusal: a value is unknown or too wide.
    """
    known = {f.id for f in header}
    for unknown in values.keys() - known:
        raise Refusal(Code.INVALID_ARGUMENT, f"packet-out: there is no metadata with id {unknown}")
    packed = bits = 0
    for field in header:
        value = values.get(field.id, 0)
        if value >> field.bits:
            raise Refusal(Code.OUT_OF_RANGE, f"packet-out: {field.name} = {value} does not fit in {field.bits} bits")
        packed = packed << field.bits | value
        bits += field.bits
    size = header_bytes(header)
    return (packed << (8 * size - bits)).to_bytes(size, "big") + payload


def split(header: Header, packet: bytes) -> tuple[dict[int, int], bytes]:
    """The values of a packet-in by metadata id, and its payload.

    Raises: Refusal: the packet is shorter than the header.
    """
    size = header_bytes(header)
    if len(packet) < size:
        raise Refusal(Code.INVALID_ARGUMENT, f"packet-in: {len(packet)} bytes do not hold a header of {size}")
    packed = int.from_bytes(packet[:size], "big")
    values, left = {}, 8 * size
    for field in header:
        left -= field.bits
        values[field.id] = packed >> left & ((1 << field.bits) - 1)
    return values, packet[size:]
