"""UDP datagrams as Ethernet frames and back, in batches.

Sockets and the simulator carry only UDP payloads; a P4 pipeline needs whole frames. IPv4 without options, DF set,
ECN-capable (ECT(0)), UDP without checksum.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address

import numpy as np

from sa_atp.basics.arrays import ByteRows, Lengths, Mask, Octets, Words
from sa_atp.protocol.packets.datagrams import Address

HEADERS_BYTES = 14 + 20 + 8
ECT0 = 2
CS5 = 0b101000  # DSCP of signalling (RFC 4594): control messages
UDP = 17  # as protocol of an IPv4 header
_ADDRESSES = struct.Struct("!IIHHH")  # IP addresses, UDP ports and UDP length, which are adjacent


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a UDP flow as Ethernet sees it."""

    mac: int
    address: Address


@lru_cache(maxsize=4096)
def ip_number(ip: str) -> int:
    return int(IPv4Address(ip))


@lru_cache(maxsize=4096)
def ip_text(number: int) -> str:
    return str(IPv4Address(number))


def mac_for(ip: str) -> int:
    """A locally administered MAC address that spells the IP address."""
    return 0x02_00_00_00_00_00 | ip_number(ip)


def checksum(header: bytes) -> int:
    """Internet checksum of an IPv4 header whose checksum field is zero (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


@lru_cache(maxsize=4096)
def headers_for(source: Endpoint, target: Endpoint, payload_bytes: int, *, urgent: bool = False) -> Octets:
    """The 42 bytes before a payload of this size; read-only. Args: urgent: networks should forward it before data."""
    udp_bytes = 8 + payload_bytes
    ip = struct.pack(
        "!BBHHHBBHII", 0x45, CS5 << 2 | ECT0 if urgent else ECT0, 20 + udp_bytes, 0, 0x4000, 64, UDP, 0,
        ip_number(source.address[0]), ip_number(target.address[0]),
    )  # fmt: skip
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    ethernet = target.mac.to_bytes(6, "big") + source.mac.to_bytes(6, "big") + b"\x08\x00"
    udp = struct.pack("!HHHH", source.address[1], target.address[1], udp_bytes, 0)
    found = np.frombuffer(ethernet + ip + udp, np.uint8)
    found.flags.writeable = False
    return found


def is_urgent(frame: bytes) -> bool:
    """Whether a frame with an IPv4 header is marked to be forwarded before data."""
    return frame[15] >> 2 == CS5


def wrap(payloads: ByteRows, source: Endpoint, target: Endpoint, out: ByteRows | None = None) -> ByteRows:
    """Puts headers before payloads.

    Args:
        payloads: uint8[n, size].
        out: uint8[n, >= 42 + size] to write into; default: a new array of just that size.
    """
    n, size = payloads.shape
    frames = np.empty((n, HEADERS_BYTES + size), np.uint8) if out is None else out
    frames[:, :HEADERS_BYTES] = headers_for(source, target, size)
    frames[:, HEADERS_BYTES : HEADERS_BYTES + size] = payloads
    return frames


def is_datagram(frames: ByteRows, lengths: Lengths) -> Mask:
    """bool[n]: whether a frame holds one whole UDP datagram in IPv4 without options."""
    head = frames[:, :HEADERS_BYTES]
    ethernet = (head[:, 12] == 0x08) & (head[:, 13] == 0x00)
    ip = (head[:, 14] == 0x45) & (head[:, 23] == UDP)
    udp_bytes = head[:, 38].astype(np.int64) << 8 | head[:, 39]
    found: Mask = ethernet & ip & (lengths >= HEADERS_BYTES) & (udp_bytes >= 8) & (udp_bytes <= lengths - 34)
    return found


def datagram(frame: bytes) -> tuple[Address, Address, bytes] | None:
    """Source, destination and payload of one frame; None if it holds no whole UDP datagram (see `is_datagram`)."""
    if len(frame) < HEADERS_BYTES or frame[12:15] != b"\x08\x00\x45" or frame[23] != UDP:
        return None
    source_ip, target_ip, source_port, target_port, udp_bytes = _ADDRESSES.unpack_from(frame, 26)
    if not 8 <= udp_bytes <= len(frame) - 34:
        return None
    return (
        (ip_text(source_ip), source_port),
        (ip_text(target_ip), target_port),
        frame[HEADERS_BYTES : HEADERS_BYTES + udp_bytes - 8],
    )


def flows(frames: ByteRows) -> Words:
    """uint64[n]: destination IP and port of each frame, as one number (ip << 16 | port)."""
    ip = frames[:, 30:34].astype(np.uint64)
    port = frames[:, 36:38].astype(np.uint64)
    found = np.zeros(len(frames), np.uint64)
    for i in range(4):
        found = found << np.uint64(8) | ip[:, i]
    return found << np.uint64(16) | port[:, 0] << np.uint64(8) | port[:, 1]


def address_of(flow: int) -> Address:
    return ip_text(flow >> 16), flow & 0xFFFF


def source_of(frame: Octets) -> Address:
    """The source address of a frame for which `is_datagram` is true."""
    ip = int.from_bytes(frame[26:30].tobytes(), "big")
    return ip_text(ip), int(frame[34]) << 8 | int(frame[35])
