"""Packets as a test describes them, and as the hex digits of an STF line.

Written from the formats themselves (RFC 791, 768, 826 and p4src/wire.toml), not with the project's own codecs, so that an
error there cannot hide here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

# p4src/wire.toml
CONTROL, DATA, RESULT, PROBE, PROBE_REPLY = range(5)
RESEND, PARTIAL, COLLISION, CONGESTION, OVERFLOW, ON_BEHALF, FAN_OUT, FROM_PS = (1 << bit for bit in range(7, -1, -1))
SA_PORT = 21313

KIND_NAMES = ("control", "data", "result", "probe", "probe reply")
FLAG_NAMES = ("resend", "partial", "collision", "congestion", "overflow", "on behalf", "fan-out", "from ps")


@dataclass(frozen=True)
class Host:
    """An end of the network."""

    name: str
    mac: int
    ip: int
    udp_port: int


@dataclass(frozen=True)
class Header:
    """The SA-ATP header; `bits` are the contributions, of so many as the build has."""

    kind: int = DATA
    slot: int = 0
    job: int = 0
    epoch: int = 0
    seq: int = 0
    bits: int = 0
    flags: int = 0
    exponent: int = 0
    tag: int = 0
    version: int = 1
    contributions: int = 64

    def groups(self) -> list[str]:
        words = [self.bits >> first & (1 << 64) - 1 for first in range(0, self.contributions, 64)]
        return [
            f"{self.version:x}{self.kind:x}", f"{self.flags:02x}", f"{self.slot:04x}", f"{self.job:02x}",
            f"{self.epoch:02x}", f"{self.exponent & 0xFF:02x}", f"{self.tag:02x}", f"{self.seq:08x}",
            *(f"{word:016x}" for word in words),
        ]  # fmt: skip


@dataclass(frozen=True)
class Packet:
    """An IPv4 packet, UDP by default.

    sa: the SA-ATP header, None where there is none. lanes: values after it, None where there are none.
    payload: bytes after all of that. cut: bytes that are missing at the end.
    ip_checksum, total_bytes, udp_bytes: None for the right one.
    """

    source: Host
    target: Host
    sa: Header | None = None
    lanes: tuple[int, ...] | None = None
    payload: bytes = b""
    cut: int = 0
    tos: int = 0
    identification: int = 0
    fragment: int = 0x4000
    ttl: int = 64
    protocol: int = 17
    options: bytes = b""
    udp_checksum: int = 0
    ip_checksum: int | None = None
    udp_bytes: int | None = None
    dst_port: int | None = None  # None: the target's

    def groups(self) -> list[str]:
        """Hex digits, a group a field."""
        body: list[str] = []
        if self.sa is not None:
            body += self.sa.groups()
        body += [f"{lane & 0xFFFFFFFF:08x}" for lane in self.lanes or ()]
        if self.payload:
            body.append(self.payload.hex())
        if self.protocol == 17 and not self.fragment & 0x1FFF:
            octets = 8 + sum(len(group) for group in body) // 2
            dst_port = self.target.udp_port if self.dst_port is None else self.dst_port
            body = [
                f"{self.source.udp_port:04x}", f"{dst_port:04x}",
                f"{octets if self.udp_bytes is None else self.udp_bytes:04x}", f"{self.udp_checksum:04x}",
                *body,
            ]  # fmt: skip
        ip = self._ip(20 + len(self.options) + sum(len(group) for group in body) // 2)
        found = [f"{self.target.mac:012x}", f"{self.source.mac:012x}", "0800", *ip, *body]
        return _without_end(found, self.cut)

    def _ip(self, total_bytes: int) -> list[str]:
        first = 0x40 | 5 + len(self.options) // 4
        before = [f"{first:02x}", f"{self.tos:02x}", f"{total_bytes:04x}", f"{self.identification:04x}",
                  f"{self.fragment:04x}", f"{self.ttl:02x}", f"{self.protocol:02x}"]  # fmt: skip
        after = [f"{self.source.ip:08x}", f"{self.target.ip:08x}", *([self.options.hex()] if self.options else [])]
        right = ip_checksum(bytes.fromhex("".join(before) + "0000" + "".join(after)))
        return [*before, f"{right if self.ip_checksum is None else self.ip_checksum:04x}", *after]

    @property
    def checksum_is_right(self) -> bool:
        return self.ip_checksum is None

    def having(self, **changes: Any) -> Packet:
        """A copy with other fields; those of the SA-ATP header may be given too."""
        names = {f.name for f in dataclasses.fields(Packet)}
        sa = {name: value for name, value in changes.items() if name not in names}
        if sa:
            assert self.sa is not None
            changes = {**{n: v for n, v in changes.items() if n in names}, "sa": dataclasses.replace(self.sa, **sa)}
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Arp:
    """An ARP packet; operation 1 asks, 2 answers."""

    source: Host
    target: Host
    operation: int
    target_mac: int = 0
    ethernet_target: int = field(default=0xFFFF_FFFF_FFFF)

    def groups(self) -> list[str]:
        return [
            f"{self.ethernet_target:012x}", f"{self.source.mac:012x}", "0806", "0001", "0800", "06", "04",
            f"{self.operation:04x}", f"{self.source.mac:012x}", f"{self.source.ip:08x}", f"{self.target_mac:012x}",
            f"{self.target.ip:08x}",
        ]  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """Any other Ethernet frame."""

    source: Host
    target: Host
    ether_type: int
    payload: bytes

    def groups(self) -> list[str]:
        return [f"{self.target.mac:012x}", f"{self.source.mac:012x}", f"{self.ether_type:04x}", self.payload.hex()]


AnyPacket = Packet | Arp | Raw


def ip_checksum(header: bytes) -> int:
    """RFC 1071, over a header whose checksum field is zero."""
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _without_end(groups: list[str], octets: int) -> list[str]:
    """Takes bytes off the end."""
    groups = list(groups)
    left = 2 * octets
    while left:
        last = groups.pop()
        if len(last) > left:
            groups.append(last[: len(last) - left])
        left -= min(left, len(last))
    return groups


def text(header: Header) -> str:
    """For comments."""
    flags = [name for bit, name in zip(range(7, -1, -1), FLAG_NAMES, strict=True) if header.flags >> bit & 1]
    kind = KIND_NAMES[header.kind] if header.kind < len(KIND_NAMES) else f"kind {header.kind}"
    return (
        f"{kind}{' (' + ', '.join(flags) + ')' if flags else ''}, job {header.job}, seq {header.seq}, "
        f"slot {header.slot}, bits {header.bits:#x}"
    )
