"""Entries, groups, counters and registers, with packets that use them."""

import numpy as np
import pytest

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import ControlError
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
    DirectCounterEntry,
    Exact,
    Lpm,
    MulticastGroup,
    RegisterEntry,
    Replica,
    TableEntry,
    Ternary,
)

from .conftest import FILTER, ROUTE, program


def ipv4(dst: int, *, tos: int = 0) -> bytes:
    header = bytes([0x45, tos]) + bytes.fromhex("00140000000040110000 0a000001") + dst.to_bytes(4, "big")
    return bytes.fromhex("020000000002 0200000000010800") + header


def run(device: Device, *frames: bytes, port: int = 4) -> list[tuple[int, bytes]]:
    data = np.zeros((len(frames), 100), np.uint8)
    for row, frame in zip(data, frames, strict=True):
        row[: len(frame)] = np.frombuffer(frame, np.uint8)
    out = device.process(data, np.array([len(f) for f in frames]), np.full(len(frames), port), 0)
    return [(int(out.ports[i]), out.packet(i)) for i in range(len(out))]


def test_entries_and_groups_act_on_packets(client: P4RuntimeClient, device: Device) -> None:
    assert run(device, ipv4(0x0A000105)) == []
    flood = TableEntry(table="route", action="flood", params={"group": 7})
    rewrite = TableEntry(table="copies", match={"copy": Exact(2)}, action="rewrite_source", params={"mac": 0xAB})
    client.insert(ROUTE, flood, rewrite)
    client.insert(MulticastGroup(group=7, replicas=frozenset({Replica(1, 1), Replica(2, 2)})))
    ((port, frame),) = run(device, ipv4(0x0A000105))
    assert port == 9
    assert frame[:6] == bytes.fromhex("020000000009")
    copies = dict(run(device, ipv4(0x0B000001)))
    assert [copies[p][6:12].hex() for p in (1, 2)] == ["020000000001", "0000000000ab"]
    client.modify(MulticastGroup(group=7, replicas=frozenset({Replica(3, 1)})))
    assert [p for p, _ in run(device, ipv4(0x0B000001))] == [3]
    client.delete(flood, MulticastGroup(group=7))
    assert run(device, ipv4(0x0B000001)) == []


def test_counters_are_read_and_written(client: P4RuntimeClient, device: Device) -> None:
    client.insert(ROUTE)
    run(device, ipv4(0x0A000105), ipv4(0x0A000106), ipv4(0x0B000001))
    assert client.read(CounterEntry(counter="arrived", index=4)) == [
        CounterEntry(counter="arrived", index=4, counts=CounterData(3, 102))
    ]
    assert client.read(CounterEntry(counter="by_class", index=0)) == [
        CounterEntry(counter="by_class", index=0, counts=CounterData(3, None))
    ]
    everything = client.read(CounterEntry())
    assert len(everything) == 512 + 256
    with pytest.raises(ControlError, match=r"OUT_OF_RANGE: .*expected 0 to 255"):
        client.read(CounterEntry(counter="by_class", index=256))

    client.modify(CounterEntry(counter="arrived", index=4, counts=CounterData(10, 20)))
    run(device, ipv4(0x0B000001))
    assert client.read(CounterEntry(counter="arrived", index=4))[0] == CounterEntry(
        counter="arrived", index=4, counts=CounterData(11, 54)
    )
    client.modify(CounterEntry(counter="arrived", counts=CounterData(1, 1)))
    assert {str(e.counts) for e in client.read(CounterEntry(counter="arrived")) if isinstance(e, CounterEntry)} == {
        str(CounterData(1, 1))
    }


def test_direct_counters_count_the_hits_of_an_entry(client: P4RuntimeClient, device: Device) -> None:
    client.insert(ROUTE, FILTER)
    run(device, ipv4(0x0A000105), ipv4(0x0B000001), port=5)
    key = TableEntry(table="route", match=ROUTE.match)
    assert client.read(DirectCounterEntry(entry=key)) == [DirectCounterEntry(entry=key, counts=CounterData(1, 34))]
    everything = client.read(DirectCounterEntry(entry=TableEntry()))
    assert [str(e) for e in everything] == [f"counter of {ROUTE}", f"counter of {FILTER}"]
    missing = TableEntry(table="route", match={"dst": Lpm(0, 1)})
    assert client.read(DirectCounterEntry(entry=TableEntry(table="filter")))[0] == DirectCounterEntry(
        entry=TableEntry(table="filter", match=FILTER.match, priority=10), counts=CounterData(None, 0)
    )
    with pytest.raises(ControlError, match="does not exist"):
        client.read(DirectCounterEntry(entry=missing))
    with pytest.raises(ControlError, match="table copies has no direct counter"):
        client.read(DirectCounterEntry(entry=TableEntry(table="copies")))


def test_registers_are_read_and_written(client: P4RuntimeClient, device: Device) -> None:
    run(device, ipv4(0x0A000105, tos=3), ipv4(0x0A000105, tos=3))
    assert client.read(RegisterEntry(register="balance", index=3)) == [
        RegisterEntry(register="balance", index=3, value=-2)
    ]
    client.modify(
        RegisterEntry(register="balance", index=3, value=-32768),
        RegisterEntry(register="last_source", value=0xFFFFFFFFFFFF),
    )
    assert client.read(RegisterEntry(register="balance", index=3), RegisterEntry(register="last_source", index=9)) == [
        RegisterEntry(register="balance", index=3, value=-32768),
        RegisterEntry(register="last_source", index=9, value=0xFFFFFFFFFFFF),
    ]
    run(device, ipv4(0x0A000105, tos=3))  # the program goes on from what was written, and wraps as P4 says
    assert client.read(RegisterEntry(register="balance"))[3] == RegisterEntry(register="balance", index=3, value=32767)
    assert len(client.read(RegisterEntry())) == 32


def test_constant_entries_are_told_without_the_bits_that_do_not_count(bare: P4RuntimeClient) -> None:
    """The specification requires these bits to be zero in answers, too. (section 9.1.1)"""
    bare.push_pipeline(*program("entries"))
    found = [e for e in bare.read(TableEntry(table="masks")) if isinstance(e, TableEntry)]
    assert [(e.match, e.params) for e in sorted(found, key=lambda e: -e.priority)] == [
        ({"hdr.query.wide": Ternary(0x0034, 0x00FF)}, {"number": 1}),
        ({"hdr.query.wide": Ternary(0x1200, 0xFF00)}, {"number": 2}),
        ({"hdr.query.wide": Ternary(0x5678, 0xFFFF)}, {"number": 3}),
        ({}, {"number": 4}),
    ]
    prefixes = [e.match for e in bare.read(TableEntry(table="prefixes")) if isinstance(e, TableEntry)]
    assert {"hdr.query.wide": Lpm(0x12F0, 12)} in prefixes


def test_hits_of_a_constant_entry_without_a_priority_can_be_read(bare: P4RuntimeClient, device: Device) -> None:
    bare.push_pipeline(*program("entries"))
    run(device, bytes.fromhex("0a090000ff"), bytes.fromhex("0a090000ff"), bytes.fromhex("0a080000ff"))
    key = TableEntry(table="numbers", match={"hdr.query.small": Exact(9)})
    assert bare.read(DirectCounterEntry(entry=key)) == [DirectCounterEntry(entry=key, counts=CounterData(2, None))]
