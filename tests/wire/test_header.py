"""The header byte for byte, against packets that were written by hand."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.spec import FIELDS, HEADER_BYTES, LANE_BUILDS, VERSION, WITH_LANES, Flag, Kind
from sa_atp.wire.control import decode_reply, decode_request, encode
from sa_atp.wire.header import HEADER, describe, first_byte, headers, lanes_of, pack, size_of

PACKETS = tomllib.loads((Path(__file__).parent / "packets.toml").read_text())["packet"]
LANES = 64


def flags_of(names: list[str]) -> Flag:
    found = Flag(0)
    for name in names:
        found |= Flag[name.upper()]
    return found


def bytes_of(golden: dict[str, Any]) -> bytes:
    written = bytes.fromhex(golden["hex"])
    if Kind[golden["kind"].upper()] not in WITH_LANES:
        return written
    return written + bytes(size_of(Kind.DATA, LANES) - len(written))


@pytest.fixture(params=PACKETS, ids=[p["name"] for p in PACKETS])
def golden(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


FIELD_NAMES = ("slot", "job", "epoch", "exponent", "tag", "seq", "bits")


def test_packing_gives_the_bytes_written_by_hand(golden: dict[str, Any]) -> None:
    kind = Kind[golden["kind"].upper()]
    lanes = None
    if kind in WITH_LANES:
        lanes = np.zeros(LANES, np.int32)
        lanes[: len(golden["lanes"])] = golden["lanes"]
    packed = pack(
        kind,
        lanes=lanes,
        body=golden.get("body", "").encode(),
        flags=flags_of(golden["flags"]),
        **{name: golden[name] for name in FIELD_NAMES},
    )
    assert packed.hex(" ", 4) == bytes_of(golden).hex(" ", 4)


def test_the_bytes_written_by_hand_are_read_back(golden: dict[str, Any]) -> None:
    packet = bytes_of(golden)
    read = describe(packet)
    assert read.pop("kind") is Kind[golden["kind"].upper()]
    assert read.pop("flags") == flags_of(golden["flags"])
    assert read == {name: golden[name] for name in FIELD_NAMES}


def test_a_batch_is_read_as_one_array(golden: dict[str, Any]) -> None:
    packet = bytes_of(golden)
    batch = np.frombuffer(packet * 3, np.uint8).reshape(3, -1)
    head = headers(batch)
    assert head["first"].tolist() == [first_byte(Kind[golden["kind"].upper()])] * 3
    for name in FIELD_NAMES:
        assert head[name].tolist() == [golden[name]] * 3
    if "lanes" in golden:
        lanes = lanes_of(batch)
        assert lanes.shape == (3, LANES)
        assert lanes[2, : len(golden["lanes"])].tolist() == golden["lanes"]
        assert not lanes[2, len(golden["lanes"]) :].any()


def test_control_packets_are_what_the_codec_makes(golden: dict[str, Any]) -> None:
    if golden["kind"] != "control":
        return
    is_reply = "from_ps" in golden["flags"]
    message = (decode_reply if is_reply else decode_request)(bytes_of(golden))
    again = encode(message, request=golden["seq"], job=golden["job"], epoch=golden["epoch"], reply=is_reply)
    assert again == bytes_of(golden)


def test_every_kind_and_every_flag_is_among_the_packets() -> None:
    assert {p["kind"] for p in PACKETS} == {kind.name.lower() for kind in Kind}
    assert {flag for p in PACKETS for flag in p["flags"]} == {flag.name.lower() for flag in Flag if flag.name}


def test_the_view_has_the_fields_of_the_specification() -> None:
    """Offsets in bits, from the order and widths in wire.toml: version and kind share a byte, the bitmap has two halves."""
    offset = 0
    for name, bits, _ in FIELDS:
        column = {"version": "first", "kind": "first", "bits_hi": "bits", "bits_lo": "bits"}.get(name, name)
        assert HEADER.names is not None
        start = HEADER.fields[column][1] * 8  # type: ignore[index]
        end = start + HEADER[column].itemsize * 8
        assert start <= offset
        assert offset + bits <= end
        offset += bits
    assert offset == 8 * HEADER_BYTES == 8 * HEADER.itemsize


@given(
    st.sampled_from(Kind), st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 255), st.integers(0, 255),
    st.integers(-128, 127), st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_round_trip(
    kind: Kind, flags: int, slot: int, job: int, epoch: int, exponent: int, tag: int, seq: int, bits: int
) -> None:
    fields: dict[str, Any] = {
        "slot": slot, "job": job, "epoch": epoch, "exponent": exponent, "tag": tag, "seq": seq, "bits": bits,
    }  # fmt: skip
    read = describe(pack(kind, flags=Flag(flags), **fields))
    assert read == {"kind": kind, "flags": Flag(flags), **fields}


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_whatever_is_described_is_packed_to_the_same_bytes(packet: bytes) -> None:
    try:
        read = describe(packet)
    except ValueError:
        assert packet[0] >> 4 != VERSION or packet[0] & 15 > max(Kind)
        return
    assert pack(read.pop("kind"), **read) == packet


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (b"", "0 bytes are too few"),
        (b"\x11" * 19, "19 bytes are too few"),
        (b"\x21" + bytes(19), "version 2 instead of 1"),
        (b"\x01" + bytes(19), "version 0 instead of 1"),
        (b"\x15" + bytes(19), "unknown kind 5"),
        (b"\x1f" + bytes(19), "unknown kind 15"),
    ],
)
def test_what_is_not_a_packet_is_said_to_be_none(packet: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        describe(packet)


@pytest.mark.parametrize("lanes", LANE_BUILDS)
def test_sizes(lanes: int) -> None:
    assert size_of(Kind.DATA, lanes) == size_of(Kind.RESULT, lanes) == HEADER_BYTES + 4 * lanes
    assert size_of(Kind.PROBE, lanes) == size_of(Kind.PROBE_REPLY, lanes) == HEADER_BYTES
    mtu = 1500 if lanes <= 256 else 9000  # of Ethernet, without and with jumbo frames
    assert 20 + 8 + size_of(Kind.DATA, lanes) <= mtu
