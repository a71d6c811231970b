"""Writing and reading entries: results, refusals, and encodings."""

from typing import Any

import grpc
import pytest

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import NotSupported, UpdateRefusedError
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
    DirectCounterEntry,
    Exact,
    Lpm,
    MulticastGroup,
    Range,
    RegisterEntry,
    Replica,
    TableEntry,
    Ternary,
    Update,
    UpdateKind,
)
from sa_atp.switches.p4runtime.messages import any_pb2, p4runtime_pb2, status_pb2

from .conftest import DEVICE_ID, FILTER, ROUTE, program


def refusal(client: P4RuntimeClient, kind: UpdateKind, entity: Any) -> tuple[str, str]:
    """(code, reason) of an update that must fail."""
    with pytest.raises((UpdateRefusedError, NotSupported)) as caught:
        client.write([Update(kind, entity)])
    if isinstance(caught.value, UpdateRefusedError):
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
        (1, TableEntry(table="route", action="leap"), "INVALID_ARGUMENT", "no action leap; table route has NoAction, "),
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
            TableEntry(table="copies", match={"copy": Exact(1)}, action="NoAction", counts=CounterData()),
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
def test_refusals_and_their_reasons(client: P4RuntimeClient, kind: int, entity: Any, code: str, reason: str) -> None:
    client.insert(ROUTE)
    before = client.read(TableEntry(), MulticastGroup())
    found, said = refusal(client, UpdateKind(kind), entity)
    assert (found, reason in said) == (code, True), said
    assert client.read(TableEntry(), MulticastGroup()) == before


def test_a_full_table_says_so(client: P4RuntimeClient) -> None:
    entries = [TableEntry(table="filter", action="drop", priority=p) for p in range(1, 6)]
    with pytest.raises(UpdateRefusedError) as caught:
        client.insert(*entries)
    assert [(r.index, r.code) for r in caught.value.refused] == [(4, "RESOURCE_EXHAUSTED")]
    client.delete(entries[0])
    client.insert(entries[4])


def test_one_refused_update_does_not_stop_the_others(client: P4RuntimeClient) -> None:
    unknown = TableEntry(table="nowhere", action="drop")  # does not even leave the client
    others = [TableEntry(table="route", match={"dst": Lpm(i << 24, 8)}, action="drop") for i in range(1, 4)]
    with pytest.raises(UpdateRefusedError, match="2 of 6 updates refused; the first: INSERT nowhere") as caught:
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
def test_unimplemented_entities_are_named(client: P4RuntimeClient, stub: Any, entity: str, reason: str) -> None:
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
