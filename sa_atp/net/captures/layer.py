"""SA-ATP for scapy: a layer that dissects and builds packets, bound to the UDP port. Importing this imports scapy.

    from scapy.layers.inet import IP, UDP
    from sa_atp.net.captures.layer import SaAtp
    IP(dst="10.0.0.9") / UDP(sport=5000, dport=21313) / SaAtp(kind="DATA", job=1, seq=7, bits_lo=1, lanes=range(64))

The fields come from protocol/packets/spec.py, like those of the switch's parser. (protocol section 2)
"""

import struct
from collections.abc import Iterable
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    ConditionalField,
    Field,
    FlagsField,
    IntField,
    ShortField,
    SignedByteField,
    XIntField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from sa_atp.net.captures.packet_text import contributions_of
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    FIELDS,
    HEADER_BYTES,
    UDP_PORT,
    VERSION,
    WITH_LANES,
    Flag,
    Kind,
)

# scapy wants the names of flags from the lowest bit on
_NAMES = {flag.value: flag.name for flag in Flag}
FLAG_NAMES = [_NAMES.get(1 << bit) or f"bit{bit}" for bit in range(8)]


class LanesField(Field[list[int], list[int]]):
    """The rest of the packet, as big-endian int32 values. A list, because scapy takes a tuple for a range."""

    islist = 1

    def __init__(self, name: str) -> None:
        super().__init__(name, [], "i")

    def i2len(self, packet: Any, value: Iterable[int]) -> int:
        return 4 * len(list(value))

    def any2i(self, packet: Any, value: Any) -> list[int]:
        return list(value) if isinstance(value, Iterable) else [int(value)]

    def i2repr(self, packet: Any, value: list[int]) -> str:
        return f"<{len(value)} lanes>"

    def addfield(self, packet: Any, before: bytes, value: Iterable[int] | None) -> bytes:
        values = list(value or ())
        return before + struct.pack(f"!{len(values)}i", *values)

    def getfield(self, packet: Any, data: bytes) -> tuple[bytes, list[int]]:
        count = len(data) // 4
        return data[4 * count :], list(struct.unpack(f"!{count}i", data[: 4 * count]))


def _field(name: str, bits: int, signed: bool) -> Any:
    if name == "version":
        return BitField(name, VERSION, bits)
    if name == "kind":
        return BitEnumField(name, Kind.DATA, bits, {kind.value: kind.name for kind in Kind})
    if name == "flags":
        return FlagsField(name, 0, bits, FLAG_NAMES)
    if name.startswith("bits_"):
        return XIntField(name, 0)
    if signed and bits == 8:
        return SignedByteField(name, 0)
    return {8: ByteField, 16: ShortField, 32: IntField}[bits](name, 0)


def _has_lanes(packet: Any) -> bool:
    return packet.kind in WITH_LANES


class MoreBitsField(LanesField):
    """The further 64-bit words of a wide build's bitmap, as a list: none in other builds.

    Their number follows from the length of the packet, which is different in every build.
    """

    def i2len(self, packet: Any, value: Iterable[int]) -> int:
        return 8 * len(list(value))

    def i2repr(self, packet: Any, value: list[int]) -> str:
        return f"<{len(value)} words>"

    def addfield(self, packet: Any, before: bytes, value: Iterable[int] | None) -> bytes:
        values = list(value or ())
        return before + struct.pack(f"!{len(values)}Q", *values)

    def getfield(self, packet: Any, data: bytes) -> tuple[bytes, list[int]]:
        size = HEADER_BYTES + len(data)
        contributions = contributions_of(Kind(packet.kind), size) if packet.is_sound else CONTRIBUTION_BITS
        count = (contributions - CONTRIBUTION_BITS) // 64
        return data[8 * count :], list(struct.unpack(f"!{count}Q", data[: 8 * count]))


class SaAtp(Packet):
    """The SA-ATP header, and the lanes of kinds that have some; the body of a control message is the payload."""

    name = "SA-ATP"
    fields_desc = [  # noqa: RUF012  (scapy's way)
        *(_field(*field) for field in FIELDS),
        MoreBitsField("more_bits"),
        ConditionalField(LanesField("lanes"), _has_lanes),
    ]

    @property
    def bits(self) -> int:
        """The whole contribution bitmap."""
        more = sum(int(word) << 64 * (n + 1) for n, word in enumerate(self.more_bits))
        return more | int(self.bits_hi) << 32 | int(self.bits_lo)

    @property
    def is_sound(self) -> bool:
        """Whether version and kind are known."""
        return self.version == VERSION and self.kind in set(Kind)

    def mysummary(self) -> str:
        kind = Kind(self.kind).name if self.is_sound else f"kind {self.kind}"
        return f"SA-ATP {kind} job {self.job} epoch {self.epoch} seq {self.seq}"


bind_layers(UDP, SaAtp, dport=UDP_PORT)
bind_layers(UDP, SaAtp, sport=UDP_PORT)
