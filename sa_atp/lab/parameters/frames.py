"""Messages of `sa_atp.lab.parameters` on a gRPC stream: the message as MessagePack, its array as raw bytes.

A frame is a message and its payload. It travels as one gRPC message, or several if the payload is long:
- 4 bytes: the length of the head, big-endian
- the head, MessagePack: [peer, message, bytes]. The peer is the receiver on the way to the server and the sender on the
  way back; bytes is the length of the payload
- the payload: float32[values] of JoinTraining, Push and GoAhead; samples of Transfer. The first CHUNK bytes are in the
  same gRPC message, the following ones in further messages
So a receiver knows the length of a frame from its head, and no gRPC message exceeds the default limit.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.parameters.rules import messages
from sa_atp.lab.parameters.rules.messages import GoAhead, JoinTraining, Push

SERVICE = "sa_atp.Parameters"
JOB, KEY, RANK = "sa-atp-job", "sa-atp-key", "sa-atp-rank"  # keys of a call's metadata
OPENING = "sa-atp-open-bin"  # of rank 0's stream: the message Open
ADMITTED = "sa-atp-admitted"  # key of the metadata with which the server accepts a stream
CHUNK = 1 << 20
MOST_HEAD_BYTES = 2 << 20  # enough for an update of a hundred thousand tasks

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[int, messages.AnyMessage, int]] = msgspec.msgpack.Decoder(
    tuple[int, messages.AnyMessage, int]
)
_NOTHING = np.empty(0, np.uint8)


class FrameError(ValueError):
    """A frame is malformed, or its payload larger than it may be."""


class ParamsFrame(NamedTuple):
    peer: int
    message: messages.AnyMessage
    payload: Octets

    @property
    def values(self) -> Values | None:
        """The payload as float32[values] if the message is about parameters; None: it has none."""
        has_values = isinstance(self.message, JoinTraining | Push | GoAhead) and len(self.payload) > 0
        return self.payload.view(np.float32) if has_values else None


def pack(peer: int, message: messages.AnyMessage, payload: Values | Octets | None = None) -> Iterator[bytes]:
    """Encodes a frame as gRPC messages."""
    octets = _NOTHING if payload is None else np.ascontiguousarray(payload).view(np.uint8)
    head = _encoder.encode((peer, message, len(octets)))
    yield _LENGTH.pack(len(head)) + head + octets[:CHUNK].tobytes()
    for start in range(CHUNK, len(octets), CHUNK):
        yield octets[start : start + CHUNK].tobytes()


def assemble(
    parts: Iterable[bytes], limit: Callable[[messages.AnyMessage], int] = lambda _: 1 << 62
) -> Iterator[ParamsFrame]:
    """Assembles the frames of one stream from its gRPC messages.

    Args: limit: returns the largest payload that a message may have, in bytes. Raises: FrameError.
    """
    left = iter(parts)
    for first in left:
        peer, message, payload, data = _begin(first, limit)
        for start in range(0, len(payload) or 1, CHUNK):
            if start:
                following = next(left, None)
                if following is None:
                    return
                data = following
            if len(data) != min(CHUNK, len(payload) - start):
                raise FrameError(f"{len(data)} bytes of payload, expected {len(payload) - start}")
            payload[start : start + len(data)] = np.frombuffer(data, np.uint8)
        yield ParamsFrame(peer, message, payload)


def _begin(data: bytes, limit: Callable[[messages.AnyMessage], int]) -> tuple[int, messages.AnyMessage, Octets, bytes]:
    """Takes the head of a frame. Returns: peer, message, room for the payload, and the bytes after the head."""
    if len(data) < _LENGTH.size:
        raise FrameError("a frame of less than 4 bytes")
    length = _LENGTH.unpack_from(data)[0]
    if length > min(MOST_HEAD_BYTES, len(data) - _LENGTH.size):
        raise FrameError(f"a head of {length} bytes in a frame that begins with {len(data)}")
    end = _LENGTH.size + length
    try:
        peer, message, size = _decoder.decode(memoryview(data)[_LENGTH.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"not a message: {error}") from None
    name = type(message).__name__
    if not 0 <= size <= limit(message):
        raise FrameError(f"{size} bytes of payload with a message {name}, expected at most {limit(message)}")
    if isinstance(message, JoinTraining | Push | GoAhead) and size % 4:
        raise FrameError(f"{size} bytes of payload with a message {name}: not a whole number of float32")
    return peer, message, np.empty(size, np.uint8), data[end:]
