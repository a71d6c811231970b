"""STF text: parsing each statement, and messages about wrong lines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.switches.embedded.stf.grammar import (
    ActionCall,
    Add,
    CheckCounter,
    Direct,
    Expect,
    NoPacket,
    Packet,
    RemoveAll,
    SetDefault,
    Statement,
    StfError,
    StfValue,
    Wait,
    parse,
    read,
)


def one(line: str) -> Statement:
    (found,) = parse(line).statements
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("packet 0 0102 ABcd", Packet(line=1, port=0, data=b"\x01\x02\xab\xcd")),
        ("PACKET 12 ff # the last port", Packet(line=1, port=12, data=b"\xff")),
        ("packet 3", Packet(line=1, port=3, data=b"")),
        ("expect 5", Expect(line=1, port=5, digits=None, exact=False)),
        ("expect 5 $", Expect(line=1, port=5, digits="", exact=True)),
        ("expect 2 0*FF ** $", Expect(line=1, port=2, digits="0*ff**", exact=True)),
        ("expect 2 00ff$", Expect(line=1, port=2, digits="00ff", exact=True)),
        ("expect 2 00f", Expect(line=1, port=2, digits="00f", exact=False)),
        ("no_packet", NoPacket(line=1)),
        ("wait", Wait(line=1)),
        ("remove all", RemoveAll(line=1)),
        (
            "add tab1 dst:0xa1 act(port:2, vlan:0b11) = A",
            Add(
                line=1, table="tab1", priority=None, match=(("dst", StfValue("0xa1")),),
                call=ActionCall("act", (("port", StfValue("2")), ("vlan", StfValue("0b11")))), label="A",
            ),
        ),
        (
            'add "ingress.t" 503 extra$0.h:0x25** "hdr.f$valid$":1 lpm:0x0a000000/8 r:1->9 m:0x10&&&0xf0 "x.act"()',
            Add(
                line=1, table="ingress.t", priority=503,
                match=(
                    ("extra[0].h", StfValue("0x25**")), ("hdr.f$valid$", StfValue("1")),
                    ("lpm", StfValue("0x0a000000", "prefix", "8")), ("r", StfValue("1", "range", "9")),
                    ("m", StfValue("0x10", "mask", "240")),
                ),
                call=ActionCall("x.act", ()), label=None,
            ),
        ),
        ("setdefault t drop()", SetDefault(line=1, table="t", call=ActionCall("drop", ()))),
        (
            "check_counter c(3)",
            CheckCounter(line=1, counter="c", index=3, unit="packets", comparison="==", number=0),
        ),
        (
            "check_counter a.c($A) bytes >= 0x10",
            CheckCounter(line=1, counter="a.c", index="A", unit="bytes", comparison=">=", number=16),
        ),
        ("mc_node_create 400 6 7", Direct(line=1, command="mc_node_create", arguments=("400", "6", "7"))),
        ("register_write r 1 0x7", Direct(line=1, command="register_write", arguments=("r", "1", "0x7"))),
        ("meter_set_rates m 0 0.5:9 1:2", Direct(line=1, command="meter_set_rates", arguments=("m", "0", "0.5:9", "1:2"))),
    ],
)  # fmt: skip
def test_statements(line: str, expected: Statement) -> None:
    assert one(line) == expected


def test_comments_and_empty_lines_count_as_lines() -> None:
    found = parse('# first\n\n  wait # third\npacket 1 00\nadd t k:1 "a#b"()\n')
    assert [s.line for s in found.statements] == [3, 4, 5]
    assert found.ports == {1}
    assert isinstance(found.statements[2], Add)
    assert found.statements[2].call.action == "a#b"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paket 1 00", "paket: expected one of add,"),
        ("packet 1 0", "two for each byte"),
        ("packet 1 0*", "hex digits"),
        ("packet 512 00", "port 512: expected 0 to 511"),
        ("packet", "port missing"),
        ("expect x 00", "port x"),
        ("expect 1 00 $ 00", "$ only at the end"),
        ("expect 1 000$", "half a byte"),
        ("add t k:1", "expected an action at the end of the line"),
        ("add t k:zz act()", "zz: expected a value"),
        ("add t k:0b102 act()", "0b102: expected a value"),
        ("add t k: act()", "act: expected a value"),
        ("add t act(a:1 b:2)", "expected ',' instead of 'b'"),
        ("add t act(", "expected a parameter at the end of the line"),
        ("add t act() x", "nothing expected instead of 'x'"),
        ("add t k:1/0x act()", "expected a number"),
        ("add t ? act()", "'? act()': not understood"),
        ("remove some", "remove all"),
        ("check_counter c(1) packets", "nothing: expected one of =="),
        ("check_counter c(1) ounces == 1", "ounces: expected packets or bytes"),
        ("mc_node_create 1", "1 argument, expected 2 to 512"),
        ("mc_mgrp_create one", "one: expected a number"),
        ("wait 5", "nothing expected instead of '5'"),
    ],
)
def test_errors_name_file_and_line(line: str, message: str) -> None:
    with pytest.raises(StfError) as error:
        parse(f"wait\n{line}\n", "some.stf")
    assert str(error.value).startswith("some.stf:2: ")
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StfError, match=r"none\.stf: No such file"):
        read(tmp_path / "none.stf")
    (tmp_path / "binary.stf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StfError, match="not text"):
        read(tmp_path / "binary.stf")


@given(st.text(max_size=60))
def test_any_text_is_statements_or_an_error_of_one_line(text: str) -> None:
    message = ""
    try:
        parse(text)
    except StfError as error:
        message = str(error)
    assert message == "" or (message.startswith("test:") and "\n" not in message)


@given(st.integers(0, 511), st.binary(max_size=80), st.integers(0, 3))
def test_packets_are_what_was_written(port: int, data: bytes, spacing: int) -> None:
    spaced = (
        " ".join(data.hex()[i : i + 2 * spacing] for i in range(0, 2 * len(data), 2 * spacing))
        if spacing
        else data.hex()
    )
    assert one(f"packet {port} {spaced}") == Packet(line=1, port=port, data=data)
    assert one(f"expect {port} {spaced} $") == Expect(line=1, port=port, digits=data.hex(), exact=True)
