"""Dissects single frames with scapy: slow, for unusual encapsulations. Importing this imports scapy."""

from typing import Any

import numpy as np
import scapy.layers.l2  # noqa: F401  (registers Ethernet and its relatives as link types)
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from sa_atp.basics.words import plural
from sa_atp.net.captures.layer import SaAtp
from sa_atp.net.captures.packet_text import control_text, flags_text, looks_like_sa_atp
from sa_atp.protocol.numbers.scaling import SUM_LIMIT
from sa_atp.protocol.packets.spec import HEADER_BYTES, UDP_PORT, Kind


def layers(frame: bytes, link_type: int) -> Any:
    """A frame as scapy's layers, or as bytes if scapy cannot parse it."""
    try:
        return conf.l2types.num2layer[link_type](frame)
    except Exception:  # an unknown link type, or a frame that scapy fails on
        return Raw(frame)


def sa_atp_layer(packet: Any) -> Any:
    """The SaAtp layer of a packet, whatever its ports are; None if it has none."""
    return packet[SaAtp] if SaAtp in packet else SaAtp(bytes(packet[UDP].payload))


def dissect_one(frame: bytes, link_type: int) -> tuple[str, int | None] | None:
    """(text, job) of a frame, as in `dissect.DissectedPacket`; None if it is neither SA-ATP nor on its port."""
    packet = layers(frame, link_type)
    if UDP not in packet or IP not in packet:
        return None
    ends = f"{_end(packet, 'src', 'sport')} > {_end(packet, 'dst', 'dport')}  "
    if UDP_PORT in (packet[UDP].sport, packet[UDP].dport):
        if SaAtp not in packet:
            return (
                f"{ends}not SA-ATP: {plural(len(packet[UDP].payload), 'byte is', 'bytes are')} too few for a header",
                None,
            )
        found = packet[SaAtp]
        if not found.is_sound:
            return f"{ends}not SA-ATP: version {found.version}, kind {found.kind}", None
    else:
        payload = bytes(packet[UDP].payload)
        if len(payload) < HEADER_BYTES:
            return None
        behind = payload[HEADER_BYTES : HEADER_BYTES + 1] or b"\0"
        if not looks_like_sa_atp(*(np.array([value]) for value in (payload[0], len(payload), behind[0])))[0]:
            return None
        found = SaAtp(payload)
    return ends + describe(found, packet[UDP]), int(found.job)


def describe(packet: Any, udp: Any) -> str:
    """The text of a packet after its addresses."""
    parts = [f"{Kind(packet.kind).name:<11}", f"job={packet.job}", f"epoch={packet.epoch}"]
    if packet.kind == Kind.CONTROL:
        parts.append(f"request={packet.seq}")
    else:
        parts += [f"seq={packet.seq}", f"slot={packet.slot}", f"bits={packet.bits:#x}"]
    parts.append(flags_text(int(packet.kind), int(packet.flags)))
    if packet.kind == Kind.CONTROL:
        return " ".join([*parts, control_text(bytes(packet.payload))])
    parts.append(f"exponent={packet.exponent} tag={packet.tag}")
    lanes = packet.lanes
    if lanes:
        poisoned = sum(lane <= -SUM_LIMIT or lane >= SUM_LIMIT for lane in lanes)
        parts.append(f"lanes={len(lanes)} min={min(lanes)} max={max(lanes)} zero={lanes.count(0)}")
        if poisoned:
            parts.append(f"poisoned={poisoned}")
    if udp.len is not None and udp.len - 8 > len(packet):
        parts.append(f"({plural(udp.len - 8 - len(packet), 'more byte was', 'more bytes were')} not captured)")
    return " ".join(parts)


def _end(packet: Any, address: str, port: str) -> str:
    return f"{getattr(packet[IP], address)}:{getattr(packet[UDP], port)}"
