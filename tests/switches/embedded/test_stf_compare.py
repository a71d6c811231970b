"""Comparing expected and received packets: the first difference, and its picture."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.switches.embedded.stf.compare import Received, check_ports, first_difference, side_by_side
from sa_atp.switches.embedded.stf.grammar import Expect, parse


def expect(line: str) -> Expect:
    (found,) = parse(line).statements
    assert isinstance(found, Expect)
    return found


@pytest.mark.parametrize(
    ("line", "received", "byte"),
    [
        ("expect 1", "00", None),
        ("expect 1 $", "", None),
        ("expect 1 $", "00", 0),
        ("expect 1 0102", "0102", None),
        ("expect 1 0102", "010203", None),
        ("expect 1 0102$", "010203", 2),
        ("expect 1 0102", "01", 1),
        ("expect 1 0102", "0103", 1),
        ("expect 1 01*2", "0132", None),
        ("expect 1 01*2", "0133", 1),
        ("expect 1 ****$", "0133", None),
        ("expect 1 ****", "01", 1),
        ("expect 1 010", "0103", None),
    ],
)
def test_first_difference(line: str, received: str, byte: int | None) -> None:
    assert first_difference(expect(line), bytes.fromhex(received)) == byte


@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_first_changed_byte_is_found_and_marked(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    for i in range(at, len(data)):
        changed[i] ^= draw.draw(st.integers(1 if i == at else 0, 255))
    asked = Expect(line=1, port=0, digits=data.hex(), exact=True)
    assert first_difference(asked, bytes(changed)) == at

    # the digits above each of the two markers are those of that byte
    lines = side_by_side(data.hex(), changed.hex(), at).splitlines()
    marked = next(i for i, line in enumerate(lines) if "^^" in line)
    left, right = lines[marked].index("^^"), lines[marked].rindex("^^")
    assert left < right
    assert lines[marked - 1][left : left + 2] == f"{data[at]:02x}"
    assert lines[marked - 1][right : right + 2] == f"{changed[at]:02x}"
    assert lines[0].index("expected") < lines[0].index("received")


def received(*packets: str) -> Sequence[Received]:
    return [Received(bytes.fromhex(packet), 10 + i) for i, packet in enumerate(packets)]


def test_each_port_is_a_sequence_of_its_own() -> None:
    asked = [expect("expect 1 01$"), expect("expect 2 02$"), expect("expect 1 03$")]
    assert check_ports(asked, {1: received("01", "03"), 2: received("02")}) == []
    (failure,) = check_ports(asked, {1: received("03", "01"), 2: received("02")})
    assert failure.message == "port 1: packet 1 differs at byte 0, caused by line 10"
    assert (failure.port, failure.byte, failure.expected, failure.received) == (1, 0, "01", "03")


def test_missing_and_unexpected_packets() -> None:
    asked = [expect("expect 1 01$"), expect("expect 1 02$")]
    missing = check_ports(asked, {1: received("01")})
    assert [f.message for f in missing] == ["port 1: 1 packet came out, expected 2; this one is missing"]
    assert missing[0].expected == "02"
    assert "02" in missing[0].picture
    extra = check_ports(asked, {1: received("01", "02", "03"), 4: received("04")})
    assert [(f.line, f.port, f.received) for f in extra] == [(12, 1, "03"), (10, 4, "04")]
    assert check_ports([], {4: received("04")}, ignored=frozenset({4})) == []


@pytest.mark.parametrize(
    ("line", "packet", "message"),
    [
        ("expect 1 010203$", "01", "is too short: 1 byte, expected 3"),
        ("expect 1 010203", "01", "is too short: 1 byte, expected at least 3"),
        ("expect 1 01$", "0102", "is too long: 2 bytes, expected 1"),
    ],
)
def test_lengths_are_told(line: str, packet: str, message: str) -> None:
    (failure,) = check_ports([expect(line)], {1: received(packet)})
    assert message in failure.message


def test_long_packets_are_shown_around_the_difference() -> None:
    picture = side_by_side("00" * 1000, "00" * 500 + "01" + "00" * 499, 500)
    lines = picture.splitlines()
    assert len(lines) <= 12
    assert lines[1].strip() == lines[-1].strip() == "..."
    assert any(line.strip().startswith("496") for line in lines)
