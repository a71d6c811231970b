"""Captures as text: one line for each SA-ATP packet of a pcap or pcapng file. Importing this imports scapy."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scapy.layers.l2  # noqa: F401  (registers Ethernet and its relatives as link types)
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from sa_atp.net.captures.capture_file import CaptureFile
from sa_atp.net.captures.packet_text import looks_like_sa_atp, packet_text
from sa_atp.protocol.packets.spec import UDP_PORT

ETHERNET = 1  # a link type


@dataclass(slots=True)
class CaptureCounts:
    """Numbers of packets in a capture; complete when it has been read to its end."""

    packets: int = 0
    """SA-ATP packets."""
    malformed: int = 0
    """Packets on the SA-ATP port that are not SA-ATP."""
    others: int = 0
    cut: bool = False
    """Whether the file is truncated or corrupt."""


@dataclass(slots=True)
class DissectedPacket:
    """A packet of a capture: SA-ATP, or something else on its port.

    time_s: since 1970. text: the line, from the addresses on. job: None if it is not SA-ATP. packet: as scapy's layers,
    from the link layer on.
    """

    time_s: float
    text: str
    job: int | None
    packet: Any

    def line(self, origin_s: float) -> str:
        """The packet as one line; its time is relative to the origin."""
        return f"{self.time_s - origin_s:12.6f}  {self.text}"

    @property
    def sa_atp(self) -> Any:
        """The packet's SaAtp layer, whatever its ports are, or None."""
        from sa_atp.net.captures.layer import SaAtp

        return None if self.job is None else SaAtp(_payload(self.packet[UDP]))


def read(path: Path, counts: CaptureCounts) -> Iterator[DissectedPacket]:
    """Yields the SA-ATP packets and what else was on its port, in order; adds to `counts`.

    Raises: UserError: the file cannot be read, or is not a capture.
    """
    file = CaptureFile(path)
    for frame in file.frames():
        found = dissect(frame.data, frame.link_type, frame.time_s)
        if found is None:
            counts.others += 1
            continue
        counts.packets += found.job is not None
        counts.malformed += found.job is None
        yield found
    counts.cut = file.cut


def dissect(frame: bytes, link_type: int = ETHERNET, time_s: float = 0.0) -> DissectedPacket | None:
    """Returns: None if the frame is neither SA-ATP nor on its port."""
    packet = _layers(frame, link_type)
    ip, udp = packet.getlayer(IP), packet.getlayer(UDP)
    if ip is None or udp is None:
        return None
    payload = _payload(udp)
    if UDP_PORT not in (udp.sport, udp.dport) and not looks_like_sa_atp(payload):
        return None
    text, job = packet_text(payload, udp.len - 8)
    return DissectedPacket(time_s, f"{ip.src}:{udp.sport} > {ip.dst}:{udp.dport}  {text}", job, packet)


def _layers(frame: bytes, link_type: int) -> Any:
    """A frame as scapy's layers, or as bytes if scapy cannot parse it."""
    try:
        return conf.l2types.num2layer[link_type](frame)
    except Exception:  # an unknown link type, or a frame that scapy fails on
        return Raw(frame)


def _payload(udp: Any) -> bytes:
    """The bytes behind a UDP header, without padding."""
    found: bytes = udp.payload.original if udp.payload else b""
    return found
