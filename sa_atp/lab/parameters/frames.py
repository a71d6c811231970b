"""Messages of sa_atp.lab.parameters on a stream of gRPC: what is small as MessagePack, arrays as they are.

A frame is a message and what goes with it. It travels as one message of gRPC, or where it is longer as several:

- 4 bytes: the length of the head, big-endian
- the head, MessagePack: [peer, message, bytes]. The peer is whom it is for on the way to the server, and who it is from on
  the way back; bytes says how long the rest is
- the rest: float32[values] of Join, Push and GoAhead; samples of Transfer. The first CHUNK bytes of it are in the same
  message of gRPC, the next ones in the next

So who takes a frame knows how long it will be before it comes, and no message of gRPC is longer than its default limit.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.lab.parameters.rules import messages
from sa_atp.lab.parameters.rules.messages import GoAhead, Join, Push

SERVICE = "sa_atp.Parameters"
JOB, KEY, RANK = "sa-atp-job", "sa-atp-key", "sa-atp-rank"  # keys of a call's metadata
ADMITTED = "sa-atp-admitted"  # key of the metadata with which the server accepts a stream
CHUNK = 1 << 20
MOST_HEAD_BYTES = 2 << 20  # an update of a hundred thousand tasks

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[int, messages.Any, int]] = msgspec.msgpack.Decoder(
    tuple[int, messages.Any, int]
)
_NOTHING = np.empty(0, np.uint8)


class Frame(NamedTuple):
    peer: int
    message: messages.Any
    payload: Octets

    @property
    def values(self) -> Values | None:
        """What goes with a message about parameters; None: nothing does."""
        has_values = isinstance(self.message, Join | Push | GoAhead) and len(self.payload) > 0
        return self.payload.view(np.float32) if has_values else None


def pack(peer: int, message: messages.Any, payload: Values | Octets | None = None) -> Iterator[bytes]:
    """The messages of gRPC that a frame is."""
    octets = _NOTHING if payload is None else np.ascontiguousarray(payload).view(np.uint8)
    head = _encoder.encode((peer, message, len(octets)))
    yield _LENGTH.pack(len(head)) + head + octets[:CHUNK].tobytes()
    for start in range(CHUNK, len(octets), CHUNK):
        yield octets[start : start + CHUNK].tobytes()


class Assembler:
    """Puts the frames of one stream together again."""

    def __init__(self, limit: Callable[[messages.Any], int] = lambda _: 1 << 62) -> None:
        """Args: limit: how many bytes may go with a message."""
        self.limit = limit
        self._head: tuple[int, messages.Any] | None = None
        self._payload: Octets = _NOTHING
        self._have = 0

    def take(self, data: bytes) -> Frame | None:
        """Takes a message of gRPC. Returns: the frame that it completes. Raises: ValueError: it is no part of a frame."""
        if self._head is None:
            data = self._begin(data)
        assert self._head is not None
        if len(data) != min(CHUNK, len(self._payload) - self._have):
            raise ValueError(f"{len(data)} bytes, where {len(self._payload) - self._have} are to come")
        self._payload[self._have : self._have + len(data)] = np.frombuffer(data, np.uint8)
        self._have += len(data)
        if self._have < len(self._payload):
            return None
        frame = Frame(*self._head, self._payload)
        self._head, self._payload = None, _NOTHING
        return frame

    def _begin(self, data: bytes) -> bytes:
        """Takes the head of a frame. Returns: what follows it. Raises: ValueError."""
        if len(data) < _LENGTH.size:
            raise ValueError("a frame of less than 4 bytes")
        length = _LENGTH.unpack_from(data)[0]
        if length > min(MOST_HEAD_BYTES, len(data) - _LENGTH.size):
            raise ValueError(f"a head of {length} bytes in a frame that begins with {len(data)}")
        end = _LENGTH.size + length
        try:
            peer, message, size = _decoder.decode(memoryview(data)[_LENGTH.size : end])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"no message: {error}") from None
        name = type(message).__name__
        if not 0 <= size <= self.limit(message):
            raise ValueError(f"{size} bytes with a message {name}, where at most {self.limit(message)} are expected")
        if isinstance(message, Join | Push | GoAhead) and size % 4:
            raise ValueError(f"{size} bytes with a message {name}: no whole number of float32")
        self._head, self._payload, self._have = (peer, message), np.empty(size, np.uint8), 0
        return data[end:]
