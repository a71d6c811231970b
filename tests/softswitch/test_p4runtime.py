"""The embedded target's P4Runtime server, driven by the project's client and by bare messages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import any_pb2
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from sa_atp.control.client import P4RuntimeClient
from sa_atp.control.entries import (
    CounterEntry,
    Counts,
    DirectCounterEntry,
    Exact,
    Lpm,
    MulticastGroup,
    Optional,
    Range,
    RegisterEntry,
    Replica,
    TableEntry,
    Ternary,
    Update,
    UpdateKind,
)
from sa_atp.control.errors import ControlError, NoPipeline, NotSupported, RefusedError
from sa_atp.errors import UserError
from sa_atp.softswitch.device import Device
from sa_atp.softswitch.p4runtime.server import P4RuntimeServer

P4 = Path(__file__).resolve().parent.parent / "p4"
DEVICE_ID = 3
ROUTE = TableEntry(
    table="route",
    match={"dst": Lpm(0x0A000100, 24)},
    action="forward",
    params={"next_hop": 0x020000000009, "port": 9},
    metadata=b"mine",
)
FILTER = TableEntry(
    table="filter",
    match={"src": Ternary(0x0A000000, 0xFF000000), "protocol": Range(17, 19), "port": Optional(4)},
    action="drop",
    priority=10,
)


def program(name: str) -> tuple[str, bytes]:
    return (P4 / f"{name}.p4info.txtpb").read_text(), (P4 / f"{name}.json").read_bytes()


@pytest.fixture
def device() -> Device:
    return Device(clock=lambda: 0, device_id=DEVICE_ID, compiled=False, cpu_port=255)


@pytest.fixture
def server(device: Device) -> Iterator[P4RuntimeServer]:
    with P4RuntimeServer(device, "127.0.0.1:0") as running:
        yield running


@pytest.fixture
def bare(server: P4RuntimeServer) -> Iterator[P4RuntimeClient]:
    """A client of a switch without a program."""
    with P4RuntimeClient(server.address, DEVICE_ID) as connected:
        yield connected


@pytest.fixture
def client(bare: P4RuntimeClient) -> P4RuntimeClient:
    """A client of a switch that runs router.p4."""
    bare.push_pipeline(*program("router"), cookie=77)
    return bare


@pytest.fixture
def stub(server: P4RuntimeServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield p4runtime_pb2_grpc.P4RuntimeStub(channel)


def refusal(client: P4RuntimeClient, kind: UpdateKind, entity: Any) -> tuple[str, str]:
    """(code, reason) of an update that must fail."""
    with pytest.raises((RefusedError, NotSupported)) as caught:
        client.write([Update(kind, entity)])
    if isinstance(caught.value, RefusedError):
        return caught.value.refused[0].code, caught.value.refused[0].reason
    return "UNIMPLEMENTED", str(caught.value)


def bare_write(stub: Any, fill: Any, kind: int = p4runtime_pb2.Update.INSERT) -> tuple[int, str]:
    """Writes one update whose entity `fill` fills; returns the canonical code and the reason."""
    request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID)
    request.election_id.low = 1
    update = request.updates.add(type=kind)
    fill(update.entity)
    try:
        stub.Write(request, timeout=5)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNKNOWN:
            return error.code().value[0], error.details()
        status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
        detail = p4runtime_pb2.Error()
        assert isinstance(status.details[0], any_pb2.Any)
        assert status.details[0].Unpack(detail)
        return detail.canonical_code, detail.message
    return 0, ""


# --- pipeline ---------------------------------------------------------------------------------------------------------


def test_it_speaks_the_version_of_bmv2(bare: P4RuntimeClient) -> None:
    assert bare.api_version() == "1.3.0"


def test_without_a_program_there_is_nothing_to_write_or_read(bare: P4RuntimeClient) -> None:
    for call in (bare.get_pipeline, lambda: bare.schema, lambda: bare.read(TableEntry())):
        with pytest.raises(NoPipeline, match="no program has been pushed"):
            call()


def test_a_pipeline_comes_back_as_it_was_pushed(client: P4RuntimeClient, stub: Any) -> None:
    config = client.get_pipeline()
    assert config.device_config == program("router")[1]
    assert [t.preamble.alias for t in config.p4info.tables][:2] == ["route", "filter"]
    assert config.cookie == 77
    request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
    for kind, has_info, has_config in (
        (request.COOKIE_ONLY, False, False),
        (request.P4INFO_AND_COOKIE, True, False),
        (request.DEVICE_CONFIG_AND_COOKIE, False, True),
    ):
        request.response_type = kind
        answer = stub.GetForwardingPipelineConfig(request, timeout=5).config
        assert (bool(answer.p4info.tables), bool(answer.p4_device_config)) == (has_info, has_config)
        assert answer.cookie.cookie == 77


@pytest.mark.parametrize(
    ("p4info", "config", "reason"),
    [
        ("punt", program("router")[1], "table PuntIngress.by_type is in the P4Info but not in the compiled program"),
        ("router", program("punt")[1], "and 7 more"),
        ("router", b"\x00junk", "p4_device_config: pipeline: not BMv2 JSON"),
        ("router", program("router")[1].replace(b'"csum16"', b'"murmur"'), "hash algorithm murmur"),
    ],
)
def test_a_program_that_cannot_run_is_refused(
    client: P4RuntimeClient, device: Device, p4info: str, config: bytes, reason: str
) -> None:
    before = device.pipeline
    with pytest.raises(ControlError, match=r"INVALID_ARGUMENT: .*" + reason):
        client.push_pipeline(program(p4info)[0], config)
    assert device.pipeline is before
    assert client.get_pipeline().cookie == 77


def test_a_push_forgets_entries_and_a_reconciliation_keeps_them(client: P4RuntimeClient, device: Device) -> None:
    group = MulticastGroup(group=4, replicas=frozenset({Replica(1, 1)}))
    client.insert(ROUTE, FILTER, group)
    client.push_pipeline(*program("router"), action="VERIFY")
    assert client.read(TableEntry(table="route")) == [ROUTE]

    before = device.pipeline
    client.push_pipeline(*program("router"), action="RECONCILE_AND_COMMIT")
    assert device.pipeline is not before
    assert client.read(TableEntry(table="route"), TableEntry(table="filter"), MulticastGroup()) == [
        ROUTE,
        FILTER,
        group,
    ]

    with pytest.raises(ControlError, match="2 of the present entries do not fit"):
        client.push_pipeline(*program("punt"), action="RECONCILE_AND_COMMIT")
    assert client.read(TableEntry(table="route")) == [ROUTE]

    client.push_pipeline(*program("router"))
    assert client.read(TableEntry(table="route"), MulticastGroup()) == []


def test_a_saved_pipeline_takes_writes_and_runs_once_committed(client: P4RuntimeClient, device: Device) -> None:
    client.insert(ROUTE)
    running = device.pipeline
    client.push_pipeline(*program("punt"), action="VERIFY_AND_SAVE")
    assert device.pipeline is running
    punt = TableEntry(table="by_type", match={"ether_type": Exact(0x0800)}, action="send", params={"port": 5})
    client.insert(punt)
    client.push_pipeline("", b"", action="COMMIT")
    assert device.pipeline is not running
    assert client.read(TableEntry()) == [punt]
    with pytest.raises(ControlError, match=r"FAILED_PRECONDITION: .*no pipeline was saved"):
        client.push_pipeline("", b"", action="COMMIT")
    with pytest.raises(UserError, match="expected one of VERIFY, "):
        client.push_pipeline("", b"", action="UNSPECIFIED")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_entries_of_every_match_kind_come_back(client: P4RuntimeClient) -> None:
    port = TableEntry(table="copies", match={"copy": Exact(0)}, action="rewrite_source", params={"mac": 0})
    partly = TableEntry(
        table="filter", match={"protocol": Range(0, 3)}, action="set_class", params={"class": 1}, priority=2
    )
    everything = TableEntry(table="filter", action="drop", priority=1)
    default_route = TableEntry(table="route", action="flood", params={"group": 7}, controller_metadata=5)
    entries = [ROUTE, FILTER, port, partly, everything, default_route]
    client.insert(*entries)
    found = client.read(*(TableEntry(table=name) for name in ("route", "filter", "copies")))
    assert sorted(map(str, found)) == sorted(map(str, entries))
    assert all(entry in found for entry in entries)

    changed = TableEntry(table="filter", match=FILTER.match, action="set_class", params={"class": 9}, priority=10)
    client.modify(changed)
    assert client.read(TableEntry(table="filter", match=FILTER.match, priority=10)) == [changed]
    assert client.read(TableEntry(table="filter", action="drop")) == [everything]
    assert client.read(TableEntry(table="filter", priority=2)) == [partly]
    client.delete(changed, everything)
    assert client.read(TableEntry(table="filter")) == [partly]
    assert client.read(TableEntry(table="route", match={"dst": Lpm(0, 1)})) == []


def test_const_tables_can_be_read(client: P4RuntimeClient) -> None:
    ports = client.read(TableEntry(table="known_ports"))
    assert [e.params for e in ports if isinstance(e, TableEntry)] == [{"class": 70}, {"class": 80}]
    first, second = client.read(TableEntry(table="classes"))
    assert isinstance(first, TableEntry)
    assert isinstance(second, TableEntry)
    assert first.match == {"class": Ternary(70, 0xFF), "tos": Ternary(0, 0xFF)}
    assert first.priority > second.priority > 0


def test_default_actions(client: P4RuntimeClient) -> None:
    def default(action: str = "", **params: int) -> TableEntry:
        return TableEntry(table="route", is_default=True, action=action, params=params)

    assert client.read(default()) == [default("drop")]
    client.modify(default("forward", next_hop=1, port=2))
    assert client.read(default()) == [default("forward", next_hop=1, port=2)]
    client.modify(default())  # back to the program's
    assert client.read(default()) == [default("drop")]
    assert len(client.read(TableEntry(is_default=True))) == 5


@pytest.mark.parametrize(
    ("kind", "entity", "code", "reason"),
    [
        (1, ROUTE, "ALREADY_EXISTS", "exists already"),
        (2, TableEntry(table="route", match={"dst": Lpm(0, 1)}, action="drop"), "NOT_FOUND", "does not exist"),
        (3, TableEntry(table="route", match={"dst": Lpm(0, 1)}), "NOT_FOUND", "does not exist"),
        (1, TableEntry(table="nowhere"), "INVALID_ARGUMENT", "there is no table nowhere; the program has classes, "),
        (1, TableEntry(table="route"), "INVALID_ARGUMENT", "the action is missing"),
        (1, TableEntry(table="route", action="leap"), "INVALID_ARGUMENT", "there is no action leap; it has NoAction, "),
        (1, TableEntry(table="route", action="flood"), "INVALID_ARGUMENT", "takes group, not no parameters"),
        (1, TableEntry(table="route", action="flood", params={"group": 1 << 16}), "OUT_OF_RANGE", "16 bits"),
        (1, TableEntry(table="route", action="drop", priority=3), "INVALID_ARGUMENT", "no priorities"),
        (1, TableEntry(table="route", action="NoAction"), "PERMISSION_DENIED", "only be the action of a default"),
        (1, TableEntry(table="route", match={"dst": Lpm(0, 33)}, action="drop"), "INVALID_ARGUMENT", "0 to 32"),
        (1, TableEntry(table="route", match={"dst": Lpm(1, 8)}, action="drop"), "INVALID_ARGUMENT", "does not cover"),
        (1, TableEntry(table="route", match={"dst": Exact(1)}, action="drop"), "INVALID_ARGUMENT", "matches by lpm"),
        (1, TableEntry(table="route", match={"src": Exact(1)}, action="drop"), "INVALID_ARGUMENT", "no match field"),
        (1, TableEntry(table="copies", action="NoAction"), "INVALID_ARGUMENT", "copy is missing"),
        (1, TableEntry(table="filter", action="drop"), "INVALID_ARGUMENT", "needs one from 1"),
        (
            1,
            TableEntry(table="filter", match={"protocol": Range(5, 4)}, action="drop", priority=1),
            "INVALID_ARGUMENT",
            "the range 5..4 is empty",
        ),
        (
            1,
            TableEntry(table="filter", match={"src": Ternary(3, 2)}, action="drop", priority=1),
            "INVALID_ARGUMENT",
            "does not cover",
        ),
        (
            1,
            TableEntry(table="copies", match={"copy": Exact(1)}, action="NoAction", counts=Counts()),
            "INVALID_ARGUMENT",
            "no direct counter",
        ),
        (1, TableEntry(table="known_ports", match={"port": Exact(1)}, action="NoAction"), "PERMISSION_DENIED", "part"),
        (3, TableEntry(table="known_ports", match={"port": Exact(7)}), "PERMISSION_DENIED", "part of the program"),
        (1, TableEntry(table="route", is_default=True, action="drop"), "INVALID_ARGUMENT", "use MODIFY"),
        (3, TableEntry(table="route", is_default=True), "INVALID_ARGUMENT", "use MODIFY"),
        (
            2,
            TableEntry(table="route", is_default=True, action="set_class", params={"class": 1}),
            "PERMISSION_DENIED",
            "only be the action of an entry",
        ),
        (2, TableEntry(table="filter", is_default=True, action="NoAction"), "PERMISSION_DENIED", "action is part"),
        (2, TableEntry(table="route", is_default=True, action="drop", priority=1), "INVALID_ARGUMENT", "no priority"),
        (1, MulticastGroup(group=0), "OUT_OF_RANGE", "1 to 65535"),
        (2, MulticastGroup(group=8), "NOT_FOUND", "does not exist"),
        (3, MulticastGroup(group=8), "NOT_FOUND", "does not exist"),
        (1, MulticastGroup(group=8, replicas=frozenset({Replica(511, 0)})), "INVALID_ARGUMENT", "out of range"),
        (1, CounterEntry(counter="arrived", index=1), "INVALID_ARGUMENT", "only MODIFY"),
        (2, CounterEntry(counter="arrived", index=512), "OUT_OF_RANGE", "expected 0 to 511"),
        (2, CounterEntry(), "INVALID_ARGUMENT", "must name one counter"),
        (2, DirectCounterEntry(entry=TableEntry(table="copies")), "INVALID_ARGUMENT", "no direct counter"),
        (2, DirectCounterEntry(entry=TableEntry(table="route", is_default=True)), "UNIMPLEMENTED", "does not count"),
        (2, RegisterEntry(register="balance", index=16, value=1), "OUT_OF_RANGE", "expected 0 to 15"),
        (2, RegisterEntry(register="balance", index=1, value=40000), "OUT_OF_RANGE", "16 bits"),
        (2, RegisterEntry(register="last_source", index=1, value=1 << 48), "OUT_OF_RANGE", "48 bits"),
        (3, RegisterEntry(register="balance", index=1), "INVALID_ARGUMENT", "only MODIFY"),
    ],
    ids=lambda value: str(value) if not isinstance(value, int | str) else None,
)  # fmt: skip
def test_what_is_refused_and_why(client: P4RuntimeClient, kind: int, entity: Any, code: str, reason: str) -> None:
    client.insert(ROUTE)
    before = client.read(TableEntry(), MulticastGroup())
    found, said = refusal(client, UpdateKind(kind), entity)
    assert (found, reason in said) == (code, True), said
    assert client.read(TableEntry(), MulticastGroup()) == before


def test_a_full_table_says_so(client: P4RuntimeClient) -> None:
    entries = [TableEntry(table="filter", action="drop", priority=p) for p in range(1, 6)]
    with pytest.raises(RefusedError) as caught:
        client.insert(*entries)
    assert [(r.index, r.code) for r in caught.value.refused] == [(4, "RESOURCE_EXHAUSTED")]
    client.delete(entries[0])
    client.insert(entries[4])


def test_one_refused_update_does_not_stop_the_others(client: P4RuntimeClient) -> None:
    unknown = TableEntry(table="nowhere", action="drop")  # does not even leave the client
    others = [TableEntry(table="route", match={"dst": Lpm(i << 24, 8)}, action="drop") for i in range(1, 4)]
    with pytest.raises(RefusedError, match="2 of 6 updates refused; the first: INSERT nowhere") as caught:
        client.insert(unknown, others[0], ROUTE, ROUTE, *others[1:])
    assert [(r.index, r.code) for r in caught.value.refused] == [(0, "INVALID_ARGUMENT"), (3, "ALREADY_EXISTS")]
    assert len(client.read(TableEntry(table="route"))) == 4


def test_writes_and_reads_of_many_entries_go_in_several_messages(client: P4RuntimeClient) -> None:
    copies = [
        TableEntry(table="copies", match={"copy": Exact(i)}, action="rewrite_source", params={"mac": i})
        for i in range(1024)
    ]
    client.insert(*copies)
    found = client.read(TableEntry(table="copies"))
    assert len(found) == 1024
    assert all(entry in found for entry in copies[::97])


# --- byte strings and bare messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code"),
    [(b"\x09", 0), (b"\x00\x09", 0), (b"\x00\x00\x00\x00\x09", 0), (b"\x02\x00", 11), (b"", 3)],
)
def test_numbers_may_be_padded_but_must_fit(client: P4RuntimeClient, stub: Any, value: bytes, code: int) -> None:
    def fill(entity: Any) -> None:
        table = client.schema.table("by_type")
        action = client.schema.action("send")
        entry = entity.table_entry
        entry.table_id = table.id
        entry.match.add(field_id=1).exact.value = b"\x88\xb5"
        entry.action.action.action_id = action.id
        entry.action.action.params.add(param_id=1, value=value)

    client.push_pipeline(*program("punt"))
    assert bare_write(stub, fill)[0] == code
    if code == 0:
        (entry,) = client.read(TableEntry(table="by_type"))
        assert isinstance(entry, TableEntry)
        assert entry.params == {"port": 9}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("lpm", {"value": b"\x00", "prefix_len": 0}, 3),
        ("ternary", {"value": b"\x00", "mask": b"\x00"}, 3),
        ("range", {"low": b"\x00", "high": b"\xff"}, 3),
        ("exact", {"value": b"\x00"}, 3),
    ],
)
def test_a_field_that_matches_everything_must_be_left_out(
    client: P4RuntimeClient, stub: Any, field: str, value: dict[str, Any], code: int
) -> None:
    def fill(entity: Any) -> None:
        entry = entity.table_entry
        table = client.schema.table("route" if field == "lpm" else "filter")
        entry.table_id = table.id
        entry.priority = 0 if field == "lpm" else 1
        match = entry.match.add(field_id=2 if field == "range" else 1)
        for name, number in value.items():
            setattr(getattr(match, field), name, number)
        entry.action.action.action_id = client.schema.action("drop").id

    found, reason = bare_write(stub, fill)
    assert found == code
    assert ("leave the field out" if field != "exact" else "matches by ternary") in reason


@pytest.mark.parametrize(
    ("entity", "reason"),
    [
        ("meter_entry", "meter entries are not supported"),
        ("direct_meter_entry", "direct meter entries are not supported"),
        ("action_profile_member", "action profile member entries are not supported"),
        ("action_profile_group", "action profile group entries are not supported"),
        ("value_set_entry", "value set entries are not supported"),
        ("digest_entry", "digest entries are not supported"),
        ("extern_entry", "extern entries are not supported"),
    ],
)
def test_what_is_not_implemented_says_so_by_name(client: P4RuntimeClient, stub: Any, entity: str, reason: str) -> None:
    assert bare_write(stub, lambda e: getattr(e, entity).SetInParent()) == (12, reason)
    request = p4runtime_pb2.ReadRequest(device_id=DEVICE_ID)
    getattr(request.entities.add(), entity).SetInParent()
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Read(request, timeout=5))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, reason)


def test_more_of_what_is_refused_in_bare_messages(client: P4RuntimeClient, stub: Any) -> None:
    def clone(entity: Any) -> None:
        entity.packet_replication_engine_entry.clone_session_entry.session_id = 1

    def ageing(entity: Any) -> None:
        entity.table_entry.table_id = client.schema.table("route").id
        entity.table_entry.idle_timeout_ns = 1

    def unknown_table(entity: Any) -> None:
        entity.table_entry.table_id = 99

    def twice(entity: Any) -> None:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = 1
        for _ in range(2):
            group.replicas.add(egress_port=1, instance=1)

    assert bare_write(stub, clone) == (12, "clone sessions are not supported")
    assert bare_write(stub, ageing) == (3, "table route does not support idle_timeout_ns")
    assert bare_write(stub, unknown_table)[0] == 3
    assert bare_write(stub, twice) == (3, "multicast group 1: port 1, instance 1 is given twice")
    assert bare_write(stub, lambda entity: None) == (3, "the entity is empty")
    assert bare_write(stub, clone, kind=0)[1] == "update type 0: expected INSERT, MODIFY or DELETE"

    request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID, atomicity=p4runtime_pb2.WriteRequest.DATAPLANE_ATOMIC)
    request.election_id.low = 1
    with pytest.raises(grpc.RpcError, match="only CONTINUE_ON_ERROR"):
        stub.Write(request, timeout=5)


def test_replicas_may_name_their_port_in_bytes(client: P4RuntimeClient, stub: Any) -> None:
    def fill(entity: Any) -> None:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = 6
        group.replicas.add(port=b"\x01\x02", instance=3)

    assert bare_write(stub, fill) == (0, "")
    assert client.read(MulticastGroup()) == [MulticastGroup(group=6, replicas=frozenset({Replica(258, 3)}))]


# --- with packets -----------------------------------------------------------------------------------------------------


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
        CounterEntry(counter="arrived", index=4, counts=Counts(3, 102))
    ]
    assert client.read(CounterEntry(counter="by_class", index=0)) == [
        CounterEntry(counter="by_class", index=0, counts=Counts(3, None))
    ]
    everything = client.read(CounterEntry())
    assert len(everything) == 512 + 256
    with pytest.raises(ControlError, match=r"OUT_OF_RANGE: .*expected 0 to 255"):
        client.read(CounterEntry(counter="by_class", index=256))

    client.modify(CounterEntry(counter="arrived", index=4, counts=Counts(10, 20)))
    run(device, ipv4(0x0B000001))
    assert client.read(CounterEntry(counter="arrived", index=4))[0] == CounterEntry(
        counter="arrived", index=4, counts=Counts(11, 54)
    )
    client.modify(CounterEntry(counter="arrived", counts=Counts(1, 1)))
    assert {str(e.counts) for e in client.read(CounterEntry(counter="arrived")) if isinstance(e, CounterEntry)} == {
        str(Counts(1, 1))
    }


def test_direct_counters_count_the_hits_of_an_entry(client: P4RuntimeClient, device: Device) -> None:
    client.insert(ROUTE, FILTER)
    run(device, ipv4(0x0A000105), ipv4(0x0B000001), port=5)
    key = TableEntry(table="route", match=ROUTE.match)
    assert client.read(DirectCounterEntry(entry=key)) == [DirectCounterEntry(entry=key, counts=Counts(1, 34))]
    everything = client.read(DirectCounterEntry(entry=TableEntry()))
    assert [str(e) for e in everything] == [f"counter of {ROUTE}", f"counter of {FILTER}"]
    (with_counts,) = client.read(TableEntry(table="route", counts=Counts()))
    assert isinstance(with_counts, TableEntry)
    assert with_counts.counts == Counts(1, 34)
    client.modify(DirectCounterEntry(entry=key, counts=Counts(5, 6)))
    assert client.read(DirectCounterEntry(entry=TableEntry(table="route"))) == [
        DirectCounterEntry(entry=key, counts=Counts(5, 6))
    ]
    missing = TableEntry(table="route", match={"dst": Lpm(0, 1)})
    assert client.read(DirectCounterEntry(entry=TableEntry(table="filter")))[0] == DirectCounterEntry(
        entry=TableEntry(table="filter", match=FILTER.match, priority=10), counts=Counts(None, 0)
    )
    with pytest.raises(ControlError, match="does not exist"):
        client.read(DirectCounterEntry(entry=missing))


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


# --- server -----------------------------------------------------------------------------------------------------------


def test_an_address_that_is_taken_is_the_users_mistake(server: P4RuntimeServer, device: Device) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:\d+: expected HOST:PORT"):
        P4RuntimeServer(device, server.address)


def test_another_device_id_is_refused_everywhere(client: P4RuntimeClient, stub: Any) -> None:
    write = p4runtime_pb2.WriteRequest(device_id=9)
    write.election_id.low = 1
    for call in (
        lambda: stub.Write(write, timeout=5),
        lambda: list(stub.Read(p4runtime_pb2.ReadRequest(device_id=9), timeout=5)),
        lambda: stub.GetForwardingPipelineConfig(
            p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=9), timeout=5
        ),
    ):
        with pytest.raises(grpc.RpcError, match="there is no device 9; this is device 3"):
            call()
