"""Parts that need no server: controller headers, match keys, schemas of compiled programs."""

import random
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.inputs import read_text
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.p4runtime_server import keys, packets, program_schema
from sa_atp.switches.p4runtime import codec, schema
from sa_atp.switches.p4runtime.entities import Optional, Range, TableEntry, Ternary
from sa_atp.switches.p4runtime.errors import Refusal
from sa_atp.switches.p4runtime.messages import p4info_pb2
from sa_atp.switches.p4runtime.schema import FieldInfo

from .conftest import P4

ROUTER = schema.from_p4info(text_format.Parse((P4 / "router.p4info.txtpb").read_text(), p4info_pb2.P4Info()))


@given(st.lists(st.integers(1, 33), min_size=1, max_size=6), st.randoms(use_true_random=False), st.binary(max_size=9))
def test_controller_headers_survive(widths: list[int], values: random.Random, payload: bytes) -> None:
    header = tuple(FieldInfo(id=i + 1, name=f"f{i}", bits=bits) for i, bits in enumerate(widths))
    given_values = {f.id: values.getrandbits(f.bits) for f in header}
    packet = packets.join(header, given_values, payload)
    assert len(packet) == packets.header_bytes(header) + len(payload)
    assert packets.split(header, packet) == (given_values, payload)


def test_controller_headers_that_do_not_fit() -> None:
    header = (FieldInfo(id=1, name="port", bits=9),)
    assert packets.join((), {}, b"x") == b"x"
    assert packets.join(header, {}, b"x") == b"\0\0x"
    with pytest.raises(Refusal, match="no metadata with id 2"):
        packets.join(header, {2: 1}, b"")
    with pytest.raises(Refusal, match="port = 512 does not fit in 9 bits"):
        packets.join(header, {1: 512}, b"")
    with pytest.raises(Refusal, match="1 bytes do not hold a header of 2"):
        packets.split(header, b"x")


@given(
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 255),
    st.integers(0, 255),
    st.none() | st.integers(0, 511),
    st.integers(1, keys.MOST_PRIORITY),
)
def test_entries_survive_as_keys_and_as_messages(
    value: int, mask: int, one: int, other: int, port: int | None, priority: int
) -> None:
    match: dict[str, Ternary | Range | Optional] = {}
    if mask:
        match["src"] = Ternary(value & mask, mask)
    if (one, other) not in ((0, 255), (255, 0)):
        match["protocol"] = Range(min(one, other), max(one, other))
    if port is not None:
        match["port"] = Optional(port)
    entry = TableEntry(table="filter", match=match, action="set_class", params={"class": one}, priority=priority)
    table = ROUTER.table("filter")
    assert keys.match_of(table, keys.key(table, entry)) == entry.match
    assert codec.decode(codec.encode(entry, ROUTER), ROUTER) == entry


@pytest.mark.parametrize(
    "files", [*((P4, p.stem) for p in sorted(P4.glob("*.p4"))), *((b, "sa_atp") for b in artefacts.builds().values())]
)
def test_both_sources_of_a_schema_agree(files: tuple[Path, str]) -> None:
    folder, name = files
    (path,) = folder.glob(f"{name}.p4info.txtpb*")  # those of the project are compressed
    p4info = text_format.Parse(read_text(path), p4info_pb2.P4Info())
    described, made = schema.from_p4info(p4info), program_schema.from_program(load(folder / f"{name}.json"))
    assert program_schema.differences(described, made) == []
    assert {(t.name, t.alias) for t in described.tables} == {(t.name, t.alias) for t in made.tables}
    assert [(r.alias, r.size, r.bits) for r in described.registers] == [
        (r.alias, r.size, r.bits) for r in made.registers
    ]


def test_differences_between_a_p4info_and_a_program() -> None:
    text = (P4 / "router.p4info.txtpb").read_text()
    for change, difference in (
        (("bitwidth: 48", "bitwidth: 47"), "action RouterIngress.forward has other parameters in the P4Info"),
        (("match_type: LPM", "match_type: EXACT"), "table RouterIngress.route has the key"),
        (("size: 512", "size: 511"), "counter RouterIngress.arrived has 511 cells in the P4Info and 512"),
        (('name: "RouterIngress.balance"', 'name: "lost"'), "register lost is in the P4Info but not in the compiled"),
        (
            ('name: "RouterIngress.flood"', 'name: "lost"'),
            "table RouterIngress.route: the compiled program has no action",
        ),
        (("type_info {", 'digests { preamble { name: "d" } }\ntype_info {'), "digest d of the P4Info is not supported"),
    ):
        assert change[0] in text
        described = schema.from_p4info(text_format.Parse(text.replace(*change, 1), p4info_pb2.P4Info()))
        found = program_schema.differences(described, program_schema.from_program(load(P4 / "router.json")))
        assert len(found) == 1
        assert found[0].startswith(difference)
    with pytest.raises(Refusal, match="no action has id 1"):
        schema.from_p4info(text_format.Parse("tables { action_refs { id: 1 } }", p4info_pb2.P4Info()))
