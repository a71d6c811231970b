"""Control packets with any JSON in them: what the codec would never make."""

import json
from typing import Any

from sa_atp.protocol.packets.header import pack
from sa_atp.protocol.packets.spec import HEADER_BYTES, Flag, Kind


def packet_of(body: Any, *, request: int, job: int = 0, epoch: int = 0, reply: bool = False) -> bytes:
    flags = Flag.FROM_PS if reply else 0
    text = json.dumps(body, separators=(",", ":")).encode()
    return pack(Kind.CONTROL, body=text, seq=request, job=job, epoch=epoch, flags=flags)


def body_of(packet: bytes) -> dict[str, Any]:
    found = json.loads(packet[HEADER_BYTES:])
    assert isinstance(found, dict)
    return found
