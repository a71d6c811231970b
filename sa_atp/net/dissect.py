"""Captures as text: one line for each SA-ATP packet of a pcap or pcapng file. Importing this imports scapy."""

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scapy.layers.l2  # noqa: F401  (registers Ethernet and its relatives as link types)
from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, UDP
from scapy.utils import PcapReader

from sa_atp.errors import UserError
from sa_atp.net.layer import FLAG_NAMES, SaAtp
from sa_atp.spec import HEADER_BYTES, LANE_BUILDS, UDP_PORT, Kind
from sa_atp.tensor.scaling import SUM_LIMIT
from sa_atp.wire.header import first_byte, size_of

_FIRST_BYTES = {first_byte(kind): kind for kind in Kind}
MAX_BODY = 160  # characters of a control message that are shown


@dataclass(slots=True)
class Counts:
    """What a capture held, when it has been read to its end."""

    packets: int = 0
    """SA-ATP packets."""
    malformed: int = 0
    """Packets on the SA-ATP port that are none."""
    others: int = 0
    cut: bool = False
    """The file ends in the middle of a packet, or is corrupt from there on."""


@dataclass(frozen=True, slots=True)
class Dissected:
    """A packet of a capture.

    packet: from the link layer on. sa_atp: the SaAtp layer, None if it is no SA-ATP though it was sent to that port;
    problem: why it is none.
    """

    time_s: float
    packet: Any
    sa_atp: Any
    problem: str = ""

    @property
    def job(self) -> int | None:
        return None if self.sa_atp is None else int(self.sa_atp.job)

    def line(self, origin_s: float) -> str:
        """One line; times count from the origin."""
        head = (
            f"{self.time_s - origin_s:12.6f}  {_end(self.packet, 'src', 'sport')} > {_end(self.packet, 'dst', 'dport')}"
        )
        return f"{head}  {self.problem or describe(self.sa_atp, self.packet[UDP])}"


def read(path: Path, counts: Counts) -> Iterator[Dissected]:
    """The SA-ATP packets, and what else was on its port, in the order of the file; `counts` grows on the way.

    Raises: UserError: the file cannot be read, or is no capture.
    """
    notes: list[str] = []

    def take_note(record: logging.LogRecord) -> bool:
        notes.append(record.getMessage())
        return False

    scapy_log = logging.getLogger("scapy.runtime")
    scapy_log.filters.insert(0, take_note)  # before the one that swallows what comes often
    try:
        with path.open("rb") as file:
            watched: Any = _Watched(file)
            for packet in PcapReader(watched):
                found = _dissect(packet, counts)
                if found is not None:
                    yield found
            counts.cut = watched.cut or any("pcap" in note.lower() for note in notes)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (Scapy_Exception, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: not a capture that can be read ({error}); expected pcap or pcapng") from None
    finally:
        scapy_log.removeFilter(take_note)


def _dissect(packet: Any, counts: Counts) -> Dissected | None:
    if UDP not in packet or IP not in packet:
        counts.others += 1
        return None
    found, problem = None, ""
    if UDP_PORT in (packet[UDP].sport, packet[UDP].dport):
        if SaAtp not in packet:
            problem = f"not SA-ATP: {len(packet[UDP].payload)} bytes are too few for a header"
        elif not packet[SaAtp].is_sound:
            problem = f"not SA-ATP: version {packet[SaAtp].version}, kind {packet[SaAtp].kind}"
        else:
            found = packet[SaAtp]
    elif looks_like_one(payload := bytes(packet[UDP].payload)):
        found = SaAtp(payload)
    else:
        counts.others += 1
        return None
    counts.packets += not problem
    counts.malformed += bool(problem)
    return Dissected(float(packet.time), packet, found, problem)


def looks_like_one(payload: bytes) -> bool:
    """Whether a datagram is SA-ATP whatever its ports are: a parameter server may have another, and switches answer in
    its name.
    """
    if len(payload) < HEADER_BYTES or payload[0] not in _FIRST_BYTES:
        return False
    kind = _FIRST_BYTES[payload[0]]
    if kind is Kind.CONTROL:
        return payload[HEADER_BYTES : HEADER_BYTES + 1] == b"{"
    return len(payload) in {size_of(kind, lanes) for lanes in LANE_BUILDS}


def describe(packet: Any, udp: Any) -> str:
    """Everything after the addresses."""
    parts = [f"{Kind(packet.kind).name:<11}", f"job={packet.job}", f"epoch={packet.epoch}"]
    if packet.kind == Kind.CONTROL:
        parts.append(f"request={packet.seq}")
    else:
        parts += [f"seq={packet.seq}", f"slot={packet.slot}", f"bits={packet.bits:#x}"]
    names = [name for bit, name in reversed(list(enumerate(FLAG_NAMES))) if int(packet.flags) >> bit & 1]
    parts.append(f"flags={','.join(names) or '-'}")
    if packet.kind == Kind.CONTROL:
        body = bytes(packet.payload).decode("utf-8", "replace")
        parts.append(body if len(body) <= MAX_BODY else body[:MAX_BODY] + "...")
        return " ".join(parts)
    parts.append(f"exponent={packet.exponent} tag={packet.tag}")
    lanes = packet.lanes
    if lanes:
        poisoned = sum(lane <= -SUM_LIMIT or lane >= SUM_LIMIT for lane in lanes)
        parts.append(f"lanes={len(lanes)} min={min(lanes)} max={max(lanes)} zero={lanes.count(0)}")
        if poisoned:
            parts.append(f"poisoned={poisoned}")
    if udp.len is not None and udp.len - 8 > len(packet):
        parts.append(f"({udp.len - 8 - len(packet)} more bytes were not captured)")
    return " ".join(parts)


def _end(packet: Any, address: str, port: str) -> str:
    return f"{getattr(packet[IP], address)}:{getattr(packet[UDP], port)}"


class _Watched:
    """A file that notes when it ends in the middle of something that is read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.name = file.name
        self.cut = False

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self.cut |= 0 < len(data) < size
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
