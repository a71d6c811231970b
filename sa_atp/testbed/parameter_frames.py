"""Messages of sa_atp.parameters on a stream of gRPC: what is small as MessagePack, arrays as they are.

- 4 bytes: the length of what follows, big-endian
- MessagePack: [peer, message]. The peer is whom it is for on the way to the server, and who it is from on the way back
- the rest: float32[values] of Join, Push and GoAhead; samples of Transfer
"""

import struct
from typing import NamedTuple

import msgspec
import numpy as np

from sa_atp.arrays import Octets, Values
from sa_atp.parameters import messages
from sa_atp.parameters.messages import GoAhead, Join, Push

SERVICE = "sa_atp.Parameters"
JOB, RANK = "sa-atp-job", "sa-atp-rank"  # keys of a stream's metadata
# parameters are as large as they are; the default is 4 MB
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[int, messages.Any]] = msgspec.msgpack.Decoder(tuple[int, messages.Any])


class Frame(NamedTuple):
    peer: int
    message: messages.Any
    values: Values | None


def pack(peer: int, message: messages.Any, payload: Values | Octets | None = None) -> bytes:
    head = _encoder.encode((peer, message))
    return _LENGTH.pack(len(head)) + head + (b"" if payload is None else payload.tobytes())


def unpack(data: bytes) -> Frame:
    """Raises: ValueError: it is no frame."""
    if len(data) < _LENGTH.size:
        raise ValueError("a frame of less than 4 bytes")
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    try:
        peer, message = _decoder.decode(data[_LENGTH.size : end])
    except msgspec.MsgspecError as error:
        raise ValueError(f"no message: {error}") from None
    has_values = isinstance(message, Join | Push | GoAhead) and len(data) > end
    if has_values and (len(data) - end) % 4:
        raise ValueError("values that are no whole number of float32")
    # a copy, aligned, and one that may be changed
    return Frame(
        peer, message, np.frombuffer(data, np.uint8, offset=end).copy().view(np.float32) if has_values else None
    )


def readdressed(data: bytes, peer: int) -> bytes:
    """The same frame with another peer, for handing it on."""
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    _, message = _decoder.decode(data[_LENGTH.size : end])
    head = _encoder.encode((peer, message))
    return _LENGTH.pack(len(head)) + head + data[end:]
