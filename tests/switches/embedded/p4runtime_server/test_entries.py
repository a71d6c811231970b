"""Writing and reading entries: results, refusals, and encodings."""

from typing import Any

import grpc
import pytest

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import UpdateRefusedError
from sa_atp.switches.p4runtime.entities import (
    Exact,
    Lpm,
    MulticastGroup,
    Range,
    Replica,
    TableEntry,
)
from sa_atp.switches.p4runtime.messages import any_pb2, p4runtime_pb2, status_pb2

from .conftest import DEVICE_ID, FILTER, ROUTE, program


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


def test_const_tables_and_default_actions_can_be_read(client: P4RuntimeClient) -> None:
    ports = client.read(TableEntry(table="known_ports"))
    assert [e.params for e in ports if isinstance(e, TableEntry)] == [{"class": 70}, {"class": 80}]
    assert len(client.read(TableEntry(is_default=True))) == 5


def test_a_full_table_says_so(client: P4RuntimeClient) -> None:
    entries = [TableEntry(table="filter", action="drop", priority=p) for p in range(1, 6)]
    with pytest.raises(UpdateRefusedError) as caught:
        client.insert(*entries)
    assert [(r.index, r.code) for r in caught.value.refused] == [(4, "RESOURCE_EXHAUSTED")]
    client.delete(entries[0])
    client.insert(entries[4])


# --- byte strings and bare messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code"),
    [(b"\x09", 0), (b"\x00\x09", 0), (b"\x00\x00\x00\x00\x09", 0), (b"\x02\x00", 11), (b"", 3)],
)
def test_numbers_may_be_padded_but_must_fit(client: P4RuntimeClient, stub: Any, value: bytes, code: int) -> None:
    def fill(entity: Any) -> None:
        table = client.schema.table("by_type")
        entry = entity.table_entry
        entry.table_id = table.id
        entry.match.add(field_id=1).exact.value = b"\x88\xb5"
        entry.action.action.action_id = client.schema.table_action(table, "send").action.id
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
        entry.action.action.action_id = client.schema.table_action(table, "drop").action.id

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
