"""The SA-ATP header as NumPy sees it, so that a batch of packets is read and written at once. (protocol section 2)

The first 20 bytes are the same in every build: HEADER. In builds with more than 64 contributions the other words of the
bitmap follow it, in all packets but control messages; functions that read them take the number of contributions.
"""

from typing import Any

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, Bitmaps, ByteRows, Headers, Lanes
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, FIELDS, HEADER_BYTES, VERSION, WITH_LANES, Flag, Kind

# version and kind share the first byte; the two halves of the bitmap's first word are read as one number
HEADER = np.dtype(
    [
        ("first", "u1"),
        ("flags", "u1"),
        ("slot", ">u2"),
        ("job", "u1"),
        ("epoch", "u1"),
        ("exponent", "i1"),
        ("tag", "u1"),
        ("seq", ">u4"),
        ("bits", ">u8"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES

_EXPECTED = (
    ("version", 4), ("kind", 4), ("flags", 8), ("slot", 16), ("job", 8), ("epoch", 8), ("exponent", 8), ("tag", 8),
    ("seq", 32), ("bits_hi", 32), ("bits_lo", 32),
)  # fmt: skip
assert tuple((name, bits) for name, bits, _ in FIELDS) == _EXPECTED, "wire.toml changed: adapt HEADER"

LANE = np.dtype(">i4")
WORD = np.dtype(">u8")  # of a bitmap: word w has the contributions 64 * w to 64 * w + 63
WORD_BITS = 64
_BITMAP_AT = HEADER_BYTES - WORD.itemsize


def first_byte(kind: Kind) -> int:
    return VERSION << 4 | kind


def header_bytes(contributions: int = CONTRIBUTION_BITS) -> int:
    """Bytes of the header of a packet that is no control message. Args: contributions: bits of the build's bitmap."""
    return _BITMAP_AT + contributions // 8


def size_of(kind: Kind, lanes: int, contributions: int = CONTRIBUTION_BITS) -> int:
    """Bytes of a packet of this kind, from the header on; for control packets, without their body."""
    return header_bytes(contributions) + (4 * lanes if kind in WITH_LANES else 0)


def headers(packets: ByteRows) -> Headers:
    """The headers of packets of 20 bytes or more: a view with the fields of HEADER."""
    return packets[:, :HEADER_BYTES].view(HEADER)[:, 0]


def bitmaps(packets: ByteRows, contributions: int = CONTRIBUTION_BITS) -> Bitmaps:
    """The bitmaps of packets that are no control messages, uint64[n, words], big-endian: a view."""
    return packets[:, _BITMAP_AT : header_bytes(contributions)].view(WORD)


def words_of(bits: int, contributions: int = CONTRIBUTION_BITS) -> Bitmaps:
    """A bitmap as words, uint64[words]."""
    return np.frombuffer(bits.to_bytes(contributions // 8, "little"), "<u8").astype(np.uint64)


def number_of(words: Bitmaps) -> int:
    """A bitmap as a number. Args: words: uint64[words], of any byte order."""
    return int.from_bytes(words.astype("<u8").tobytes(), "little")


def lanes_of(packets: ByteRows, contributions: int = CONTRIBUTION_BITS) -> Lanes:
    """The lanes of packets with lanes, big-endian: a view."""
    return packets[:, header_bytes(contributions) :].view(LANE)


def pack(
    kind: Kind,
    *,
    lanes: AnyIntegers | None = None,
    body: bytes = b"",
    contributions: int = CONTRIBUTION_BITS,
    bits: int = 0,
    **fields: Any,
) -> bytes:
    """One packet, for tools and tests; fields as in HEADER, flags as Flag. The transport writes batches itself."""
    header = np.zeros(1, HEADER)
    header["first"] = first_byte(kind)
    for name, value in fields.items():
        header[name] = int(value) if isinstance(value, Flag) else value
    bitmap = words_of(bits, CONTRIBUTION_BITS if kind is Kind.CONTROL else contributions).astype(WORD)
    payload = body if lanes is None else np.asarray(lanes).astype(LANE).tobytes()
    return header.tobytes()[:_BITMAP_AT] + bitmap.tobytes() + payload
