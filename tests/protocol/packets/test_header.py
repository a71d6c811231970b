"""The header byte for byte, against packets that were written by hand."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.protocol.packets.control import decode_reply, decode_request, encode
from sa_atp.protocol.packets.header import (
    HEADER,
    bitmaps,
    first_byte,
    header_bytes,
    headers,
    lanes_of,
    number_of,
    pack,
    size_of,
    words_of,
)
from sa_atp.protocol.packets.spec import FIELDS, HEADER_BYTES, LANE_BUILDS, WITH_LANES, Flag, Kind

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


def test_the_bytes_written_by_hand_are_read_back_as_one_array(golden: dict[str, Any]) -> None:
    packet = bytes_of(golden)
    batch = np.frombuffer(packet * 3, np.uint8).reshape(3, -1)
    head = headers(batch)
    assert head["first"].tolist() == [first_byte(Kind[golden["kind"].upper()])] * 3
    assert head["flags"].tolist() == [flags_of(golden["flags"])] * 3
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
    """Offsets in bits, from the order and widths in wire.toml: version and kind share a byte, the bitmap has two
    halves.
    """
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


@pytest.mark.parametrize("lanes", LANE_BUILDS)
def test_sizes(lanes: int) -> None:
    assert size_of(Kind.DATA, lanes) == size_of(Kind.RESULT, lanes) == HEADER_BYTES + 4 * lanes
    assert size_of(Kind.PROBE, lanes) == size_of(Kind.PROBE_REPLY, lanes) == HEADER_BYTES
    mtu = 1500 if lanes <= 256 else 9000  # of Ethernet, without and with jumbo frames
    assert 20 + 8 + size_of(Kind.DATA, lanes) <= mtu


WIDE = st.integers(0, 2**512 - 1)


@given(WIDE)
def test_a_wide_bitmap_is_words_of_64_bits_the_first_where_others_have_it(bits: int) -> None:
    packet = pack(Kind.PROBE, seq=9, bits=bits, contributions=512)
    assert len(packet) == header_bytes(512) == size_of(Kind.PROBE, 256, 512) == 76
    words = [bits >> 64 * word & (1 << 64) - 1 for word in range(8)]
    assert packet[12:] == b"".join(word.to_bytes(8, "big") for word in words)
    row = np.frombuffer(packet, np.uint8).reshape(1, -1)
    assert int(headers(row)["bits"][0]) == words[0]
    assert number_of(bitmaps(row, 512)[0]) == bits


@given(st.lists(WIDE, min_size=1, max_size=4), st.integers(0, 2**31 - 1))
def test_bitmaps_and_lanes_of_a_batch(bits: list[int], lane: int) -> None:
    packets = np.zeros((len(bits), size_of(Kind.DATA, 256, 512)), np.uint8)
    assert packets.shape[1] == 76 + 4 * 256
    for row, each in enumerate(bits):
        bitmaps(packets, 512)[row] = words_of(each, 512)
    lanes_of(packets, 512)[:] = lane
    assert [number_of(words) for words in bitmaps(packets, 512)] == bits
    assert (packets[:, 76:].copy().view(">i4") == lane).all()
    assert not packets[:, :12].any()


def test_control_messages_have_one_word_in_every_build() -> None:
    assert pack(Kind.CONTROL, seq=7, body=b"{}", contributions=512) == pack(Kind.CONTROL, seq=7, body=b"{}")
