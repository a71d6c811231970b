"""Control messages between workers and the parameter server: a header of kind CONTROL and a JSON object.

They are few and small, so they are readable rather than dense. Nothing in them is trusted: whoever takes a field out
says what it must be, and everything else raises MalformedError. (protocol section 9)
"""

import json
from typing import Any

from sa_atp.spec import HEADER_BYTES, Flag, Kind
from sa_atp.wire.header import pack

MAX_BYTES = 1400  # fits in an Ethernet frame with all headers

Body = dict[str, Any]


class MalformedError(ValueError):
    """What arrived is not a message of this protocol."""


def encode(body: Body, *, request: int, job: int = 0, epoch: int = 0, reply: bool = False) -> bytes:
    """One datagram. request: number by which the reply is recognised, 32 bits; 0 where none is expected."""
    text = json.dumps(body, separators=(",", ":")).encode()
    packet = pack(Kind.CONTROL, body=text, seq=request, job=job, epoch=epoch, flags=Flag.FROM_PS if reply else 0)
    if len(packet) > MAX_BYTES:
        raise ValueError(f"a control message of {len(packet)} bytes exceeds {MAX_BYTES}")
    return packet


def decode(packet: bytes) -> Body:
    """The JSON object of a control packet whose header has been checked. Raises: MalformedError."""
    if len(packet) > MAX_BYTES:
        raise MalformedError(f"{len(packet)} bytes exceed {MAX_BYTES}")
    try:
        body = json.loads(packet[HEADER_BYTES:])
    except (ValueError, RecursionError):
        raise MalformedError("the body is not JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise MalformedError("the body is not an object with a type")
    return body


def integer(body: Body, name: str, low: int, high: int) -> int:
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise MalformedError(f"{name} must be an integer from {low} to {high}")
    return value


def text(body: Body, name: str, longest: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > longest:
        raise MalformedError(f"{name} must be a string of at most {longest} characters")
    return value


def integers(body: Body, name: str, low: int, high: int, most: int) -> list[int]:
    value = body.get(name)
    if (
        not isinstance(value, list)
        or len(value) > most
        or any(type(v) is not int or not low <= v <= high for v in value)
    ):
        raise MalformedError(f"{name} must be a list of at most {most} integers from {low} to {high}")
    return value
