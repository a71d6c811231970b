"""Compares the packets that a test expects with those that left the ports.

As in p4c's runner, each port is checked by itself: its packets must be the expected ones, in order, and no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sa_atp.basics.words import plural
from sa_atp.switches.embedded.stf.grammar import Expect

ROW_BYTES = 16
CONTEXT_ROWS = 3
MOST_ROWS = 8  # of a packet; longer ones are shown around the difference


@dataclass(frozen=True, slots=True)
class Received:
    """A packet that left the switch. line: that of the packet which caused it; 0 if the target does not know."""

    data: bytes
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StfFailure:
    """A failure of a test.

    line: the statement that failed, or the packet that caused an unexpected one.
    message: one line; picture: the packets side by side, "" if there are none.
    byte: the first that differs; port, byte, expected, received: None if they do not apply.
    """

    line: int
    message: str
    picture: str = ""
    port: int | None = None
    byte: int | None = None
    expected: str | None = None
    received: str | None = None


def check_ports(
    expected: Sequence[Expect], received: Mapping[int, Sequence[Received]], ignored: frozenset[int] = frozenset()
) -> list[StfFailure]:
    """The first difference at each port, and missing and unexpected packets.

    Args: ignored: ports to leave out.
    """
    found: list[StfFailure] = []
    for port in sorted({e.port for e in expected} | received.keys() - ignored):
        wanted = [e for e in expected if e.port == port]
        got = received.get(port, ())
        for place, (one, other) in enumerate(zip(wanted, got, strict=False), 1):
            byte = first_difference(one, other.data)
            if byte is not None:
                found.append(_differs(one, other, place, byte))
                break
        if len(got) < len(wanted):
            found.append(_missing(wanted[len(got)], len(got), len(wanted)))
        for extra in got[len(wanted) :]:
            found.append(_unexpected(port, extra))
    return found


def first_difference(expected: Expect, data: bytes) -> int | None:
    """The first byte that is not as expected; the packet's length if it is too short; None if it is right."""
    if expected.digits is None:
        return None
    digits = data.hex()
    for i, digit in enumerate(expected.digits):
        if i >= len(digits) or digit not in ("*", digits[i]):
            return i // 2
    if expected.exact and len(digits) > len(expected.digits):
        return len(expected.digits) // 2
    return None


def _differs(expected: Expect, received: Received, place: int, byte: int) -> StfFailure:
    digits = expected.digits or ""
    length = (len(digits) + 1) // 2
    size = plural(len(received.data), "byte")
    if byte >= len(received.data):
        how = f"is too short: {size}, expected {'' if expected.exact else 'at least '}{length}"
    elif byte >= length:
        how = f"is too long: {size}, expected {length}"
    else:
        how = f"differs at byte {byte}"
    cause = f", caused by line {received.line}" if received.line else ""
    return StfFailure(
        line=expected.line,
        message=f"port {expected.port}: packet {place} {how}{cause}",
        picture=side_by_side(digits, received.data.hex(), byte),
        port=expected.port,
        byte=byte,
        expected=digits,
        received=received.data.hex(),
    )


def _missing(expected: Expect, got: int, wanted: int) -> StfFailure:
    return StfFailure(
        line=expected.line,
        message=f"port {expected.port}: {plural(got, 'packet')} came out, expected {wanted}; this one is missing",
        picture=side_by_side(expected.digits, None, 0) if expected.digits else "",
        port=expected.port,
        expected=expected.digits,
    )


def _unexpected(port: int, received: Received) -> StfFailure:
    return StfFailure(
        line=received.line,
        message=f"port {port}: a packet came out that the test does not expect",
        picture=side_by_side(None, received.data.hex(), 0),
        port=port,
        received=received.data.hex(),
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def side_by_side(expected: str | None, received: str | None, byte: int) -> str:
    """Two packets as hex digits, 16 bytes in a row, with a marker under the first byte that differs.

    Args: expected, received: hex digits (and *); None if there is no such packet.
    """
    longest = max(len(expected or ""), len(received or ""))
    rows = (longest + 2 * ROW_BYTES - 1) // (2 * ROW_BYTES)
    at = byte // ROW_BYTES
    first, last = 0, rows
    if rows > MOST_ROWS:
        first, last = max(0, at - CONTEXT_ROWS), min(rows, at + CONTEXT_ROWS + 1)
    both = expected is not None and received is not None
    lines = [f"  {'byte':>6}  {'expected':<{_WIDTH}}  received" if both else f"  {'byte':>6}"]
    lines[0] += "" if both else f"  {'expected' if expected is not None else 'received'}"
    if first:
        lines.append(f"  {'...':>6}")
    for row in range(first, last):
        part = slice(2 * ROW_BYTES * row, 2 * ROW_BYTES * (row + 1))
        columns = [_spaced(text[part]) for text in (expected, received) if text is not None]
        lines.append(f"  {row * ROW_BYTES:>6}  " + "  ".join(f"{c:<{_WIDTH}}" for c in columns).rstrip())
        if both and row == at:
            marker = " " * _column(byte % ROW_BYTES) + "^^"
            lines.append(f"  {'':>6}  {marker:<{_WIDTH}}  {marker}".rstrip())
    if last < rows:
        lines.append(f"  {'...':>6}")
    return "\n".join(lines)


def _spaced(digits: str) -> str:
    """Hex digits in groups of four bytes."""
    return " ".join(digits[i : i + 8] for i in range(0, len(digits), 8))


def _column(byte: int) -> int:
    return 2 * byte + byte // 4


_WIDTH = _column(ROW_BYTES - 1) + 2
