"""Pushing, saving, committing and reading pipelines; the server itself."""

from typing import Any

import grpc
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import ControlError, NoPipeline
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer
from sa_atp.switches.p4runtime.entities import Exact, MulticastGroup, Replica, TableEntry
from sa_atp.switches.p4runtime.messages import p4runtime_pb2

from .conftest import DEVICE_ID, FILTER, ROUTE, program


def test_without_a_program_there_is_nothing_to_write_or_read(bare: P4RuntimeClient) -> None:
    for call in (bare.get_pipeline, lambda: bare.schema, lambda: bare.read(TableEntry())):
        with pytest.raises(NoPipeline, match="no program has been pushed"):
            call()


def test_the_parts_of_a_pipeline_come_back_that_were_asked_for(client: P4RuntimeClient, stub: Any) -> None:
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
    default = TableEntry(table="route", action="flood", params={"group": 4}, is_default=True, metadata=b"mine, too")
    client.insert(ROUTE, FILTER, group)
    client.modify(default)
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
    assert client.read(TableEntry(table="route", is_default=True)) == [default]

    with pytest.raises(ControlError, match="3 of the present entries do not fit"):
        client.push_pipeline(*program("punt"), action="RECONCILE_AND_COMMIT")
    assert client.read(TableEntry(table="route")) == [ROUTE]

    client.push_pipeline(*program("router"))
    assert client.read(TableEntry(table="route"), MulticastGroup()) == []
    own = TableEntry(table="route", action="drop", is_default=True)
    assert client.read(TableEntry(table="route", is_default=True)) == [own]


def test_a_reconciliation_keeps_a_default_action_without_metadata(client: P4RuntimeClient) -> None:
    default = TableEntry(table="route", action="flood", params={"group": 4}, is_default=True)
    client.modify(default)
    client.push_pipeline(*program("router"), action="RECONCILE_AND_COMMIT")
    assert client.read(TableEntry(table="route", is_default=True)) == [default]


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


def test_a_program_may_be_installed_without_a_client(server: P4RuntimeServer, bare: P4RuntimeClient) -> None:
    server.push(*program("router"))
    bare.insert(ROUTE)
    assert bare.read(TableEntry(table="route")) == [ROUTE]
    with pytest.raises(UserError, match="not a P4Info in text form: 1:"):
        server.push("tables {", b"")
    with pytest.raises(UserError, match="by_type is in the P4Info but not"):
        server.push(program("punt")[0], program("router")[1])


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
