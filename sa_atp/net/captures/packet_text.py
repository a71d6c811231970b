"""SA-ATP packets as text, and how they are recognised."""

import numpy as np

from sa_atp.basics.words import plural
from sa_atp.protocol.numbers.scaling import SUM_LIMIT
from sa_atp.protocol.packets.header import LANE, bitmaps, first_byte, header_bytes, headers, number_of, size_of
from sa_atp.protocol.packets.question_numbers import QUESTION_FLAGS, question_number
from sa_atp.protocol.packets.spec import (
    BUILDS,
    CONTRIBUTION_BITS,
    HEADER_BYTES,
    WIDE_BUILDS,
    WITH_LANES,
    Flag,
    Kind,
)

MAX_BODY = 160  # characters of a control message that are shown

# by the first byte of a packet
_KINDS = {first_byte(kind): kind for kind in Kind}
_WIDTH = max(len(kind.name) for kind in Kind)
_LANE_SIZES = {size_of(Kind.DATA, *build) for build in BUILDS}
_BARE_SIZES = {header_bytes(bits) for _, bits in BUILDS}


def looks_like_sa_atp(payload: bytes) -> bool:
    """Whether a datagram looks like SA-ATP, on any port: a parameter server may use another one, and switches answer in
    its name.
    """
    kind = _KINDS.get(payload[0]) if len(payload) >= HEADER_BYTES else None
    if kind is None:
        return False
    if kind is Kind.CONTROL:
        return payload[HEADER_BYTES:].startswith(b"{")
    if kind in WITH_LANES and len(payload) in _LANE_SIZES:
        return True
    # a result may have no lanes all the same (protocol section 5.9)
    return len(payload) in _BARE_SIZES and (kind is Kind.RESULT or kind not in WITH_LANES)


def contributions_of(kind: Kind, size: int) -> int:
    """The number of bits in the bitmap of an SA-ATP packet, which follows from its size.

    Args: size: of the whole datagram. Returns: 64 where no build has packets of that size.
    """
    for lanes, bits in WIDE_BUILDS:
        is_bare_result = kind is Kind.RESULT and size == header_bytes(bits)
        if kind is not Kind.CONTROL and (size == size_of(kind, lanes, bits) or is_bare_result):
            return bits
    return CONTRIBUTION_BITS


def packet_text(payload: bytes, size: int) -> tuple[str, int | None]:
    """A datagram as text, and its job; None if it is not SA-ATP. Args: payload: what was captured of it; size: of all."""
    if len(payload) < HEADER_BYTES:
        return f"not SA-ATP: {plural(len(payload), 'byte is', 'bytes are')} too few for a header", None
    rows = np.frombuffer(payload, np.uint8)[None]
    byte, flags, slot, job, epoch, exponent, tag, seq, bits = headers(rows)[0].item()
    if (kind := _KINDS.get(byte)) is None:
        return f"not SA-ATP: version {byte >> 4}, kind {byte & 15}", None
    text = f"{kind.name:<{_WIDTH}} job={job} epoch={epoch}"
    if kind is Kind.CONTROL:
        body = _control_text(payload[HEADER_BYTES:])
        return f"{text} request={seq} {_flags_text(kind, flags)} {body}", job
    contributions = contributions_of(kind, size)
    header = header_bytes(contributions)
    if len(payload) >= header:
        bits = number_of(bitmaps(rows, contributions)[0])
    text += f" seq={seq} slot={slot} bits={bits:#x} {_flags_text(kind, flags)} exponent={exponent} tag={tag}"
    if kind in WITH_LANES:
        text += _lanes_text(payload[header:])
    if (missing := size - len(payload)) > 0:
        text += f" ({plural(missing, 'more byte was', 'more bytes were')} not captured)"
    return text, job


def _lanes_text(data: bytes) -> str:
    """A summary of the lanes that begin here; empty if there is none."""
    if not (count := len(data) // LANE.itemsize):
        return ""
    lanes = np.frombuffer(data, LANE, count)
    poisoned = np.count_nonzero((lanes <= -SUM_LIMIT) | (lanes >= SUM_LIMIT))
    text = f" lanes={count} min={lanes.min()} max={lanes.max()} zero={np.count_nonzero(lanes == 0)}"
    return f"{text} poisoned={poisoned}" if poisoned else text


def _flags_text(kind: Kind, flags: int) -> str:
    """Flags by name; a probe and its answer have a question number in four of the bits."""
    question = ""
    if kind in (Kind.PROBE, Kind.PROBE_REPLY):
        question, flags = f"question={question_number(flags)} ", flags & ~QUESTION_FLAGS
    names = ",".join(flag.name or "" for flag in sorted(Flag, reverse=True) if flags & flag)
    return f"{question}flags={names or '-'}"


def _control_text(body: bytes) -> str:
    """A control message on one line, whatever is in it."""
    text = body.decode("utf-8", "replace").rstrip(" ")  # the padding of requests (protocol section 9.1)
    text = text if len(text) <= MAX_BODY else text[:MAX_BODY] + "..."
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
