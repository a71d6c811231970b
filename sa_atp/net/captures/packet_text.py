"""Packets as text: names of kinds and flags, and how SA-ATP is recognised. `dissect` and `dissect_layers` share it."""

import numpy as np

from sa_atp.basics.arrays import AnyIntegers, Lengths, Mask, Numbers
from sa_atp.protocol.packets.header import first_byte, header_bytes, size_of
from sa_atp.protocol.packets.question_numbers import QUESTION_FLAGS, question_number
from sa_atp.protocol.packets.spec import (
    CONTRIBUTION_BITS,
    HEADER_BYTES,
    LANE_BUILDS,
    WIDE_BUILDS,
    WITH_LANES,
    Flag,
    Kind,
)

MAX_BODY = 160  # characters of a control message that are shown

# by the first byte of a packet
KIND_TEXTS = {first_byte(kind): f"{kind.name:<{max(len(each.name) for each in Kind)}}" for kind in Kind}
CONTROL = first_byte(Kind.CONTROL)
IS_KNOWN = np.isin(np.arange(256), list(KIND_TEXTS))
HAS_LANES = np.isin(np.arange(256), [first_byte(kind) for kind in WITH_LANES])
_RESULT = first_byte(Kind.RESULT)  # it may have no lanes all the same (protocol section 5.9)
# by the byte of flags
FLAG_TEXTS = [",".join(f.name or "" for f in sorted(Flag, reverse=True) if byte & f) or "-" for byte in range(256)]
_BUILDS = (*((lanes, CONTRIBUTION_BITS) for lanes in LANE_BUILDS), *WIDE_BUILDS)
_LANE_SIZES = [size_of(Kind.DATA, *build) for build in _BUILDS]
_BARE_SIZES = [header_bytes(bits) for bits in sorted({bits for _, bits in _BUILDS})]


def looks_like_sa_atp(first: AnyIntegers, sizes: Lengths, behind: AnyIntegers) -> Mask:
    """Whether datagrams look like SA-ATP, on any port: a parameter server may use another one, and switches answer in its
    name.

    Args: first: their first bytes; sizes: of the datagrams; behind: the bytes that follow the headers.
    """
    is_bare = np.isin(sizes, _BARE_SIZES)
    expected = np.where(HAS_LANES[first], np.isin(sizes, _LANE_SIZES) | (is_bare & (first == _RESULT)), is_bare)
    is_control = first == CONTROL
    found: Mask = np.where(is_control, (sizes > HEADER_BYTES) & (behind == ord("{")), expected) & IS_KNOWN[first]
    return found


def contributions_of(first: AnyIntegers, sizes: Lengths) -> Numbers:
    """The number of bits in the bitmaps of SA-ATP packets, which follows from their sizes.

    Args: first: their first bytes; sizes: of the whole datagrams. Returns: 64 where no build has packets of that size.
    """
    found = np.full(len(sizes), CONTRIBUTION_BITS, np.int64)
    for lanes, bits in WIDE_BUILDS:
        size = np.where(HAS_LANES[first], size_of(Kind.DATA, lanes, bits), header_bytes(bits))
        is_bare_result = (first == _RESULT) & (sizes == header_bytes(bits))
        found[((sizes == size) | is_bare_result) & (first != CONTROL)] = bits
    return found


def flags_text(kind: int, flags: int) -> str:
    """Flags by name; a probe and its answer have a question number in four of the bits."""
    if kind not in (Kind.PROBE, Kind.PROBE_REPLY):
        return f"flags={FLAG_TEXTS[flags]}"
    return f"question={question_number(flags)} flags={FLAG_TEXTS[flags & ~QUESTION_FLAGS]}"


def control_text(body: bytes) -> str:
    """A control message on one line, whatever is in it."""
    text = body.decode("utf-8", "replace").rstrip(" ")  # the padding of requests (protocol section 9.1)
    text = text if len(text) <= MAX_BODY else text[:MAX_BODY] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
