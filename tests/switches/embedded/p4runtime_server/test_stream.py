"""The stream channel: arbitration, and packets to and from the controller."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import NotPrimary, Unreachable
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server import server as server_module
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer
from sa_atp.switches.p4runtime.calls import Stub
from sa_atp.switches.p4runtime.entities import MulticastGroup
from sa_atp.switches.p4runtime.messages import p4runtime_pb2

P4 = Path(__file__).resolve().parents[3] / "p4"
DEVICE_ID = 1
FRAME = bytes.fromhex("020000000002 020000000001 88b5") + b"payload"
OK, NOT_FOUND, ALREADY_EXISTS = 0, 5, 6


class BareClient:
    """A stream channel whose messages the test writes and reads one by one."""

    def __init__(self, server: P4RuntimeServer) -> None:
        self.channel = grpc.insecure_channel(server.address)
        self.stub = Stub(self.channel)
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.responses = self.stub.StreamChannel(iter(self.requests.get, None), timeout=20)

    def announce(self, election_id: int, *, device_id: int = DEVICE_ID, role: str = "") -> None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = device_id
        request.arbitration.election_id.low = election_id
        if role:
            request.arbitration.role.name = role
        self.requests.put(request)

    def told(self) -> tuple[int, int]:
        """(status code, election id of the primary) of the next notification."""
        message = next(self.responses)
        assert message.WhichOneof("update") == "arbitration"
        assert message.arbitration.device_id == DEVICE_ID
        return message.arbitration.status.code, message.arbitration.election_id.low

    def refused(self) -> tuple[str, str]:
        """How the server ended the stream."""
        with pytest.raises(grpc.RpcError) as caught:
            next(self.responses)
        return caught.value.code().name, caught.value.details()

    def may_write(self, election_id: int) -> str:
        request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID)
        request.election_id.low = election_id
        try:
            self.stub.Write(request, timeout=5)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "yes"

    def leave(self) -> None:
        self.requests.put(None)
        assert list(self.responses) == []

    def close(self) -> None:
        self.requests.put(None)
        self.responses.cancel()
        self.channel.close()


@pytest.fixture
def device() -> Device:
    made = Device(clock=lambda: 0, device_id=DEVICE_ID, compiled=False, cpu_port=255)
    return made


@pytest.fixture
def server(device: Device) -> Iterator[P4RuntimeServer]:
    with P4RuntimeServer(device, "127.0.0.1:0") as running:
        yield running


@pytest.fixture
def connect(server: P4RuntimeServer) -> Iterator[Any]:
    made: list[BareClient] = []

    def one() -> BareClient:
        made.append(BareClient(server))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def client(server: P4RuntimeServer) -> Iterator[P4RuntimeClient]:
    """The primary client of a switch that runs punt.p4."""
    with P4RuntimeClient(server.address, DEVICE_ID) as connected:
        connected.push_pipeline((P4 / "punt.p4info.txtpb").read_text(), (P4 / "punt.json").read_bytes())
        yield connected


# --- arbitration ------------------------------------------------------------------------------------------------------


def test_the_largest_election_id_is_primary_and_all_hear_of_changes(connect: Any) -> None:
    one, two, three = connect(), connect(), connect()
    one.announce(5)
    assert one.told() == (OK, 5)
    two.announce(3)
    assert two.told() == (ALREADY_EXISTS, 5)  # nothing changed for the first one
    three.announce(9)
    assert [c.told() for c in (one, two, three)] == [(ALREADY_EXISTS, 9), (ALREADY_EXISTS, 9), (OK, 9)]
    assert "not primary: election id 5, the primary's is 9" in one.may_write(5)
    assert one.may_write(9).startswith("FAILED_PRECONDITION: no forwarding pipeline")  # past the arbitration

    one.announce(12)
    assert [c.told() for c in (one, two, three)] == [(OK, 12), (ALREADY_EXISTS, 12), (ALREADY_EXISTS, 12)]
    two.announce(4)  # a change that changes nothing for the others
    assert two.told() == (ALREADY_EXISTS, 12)
    one.leave()
    assert [c.told() for c in (two, three)] == [(ALREADY_EXISTS, 9), (OK, 9)]
    three.leave()
    assert two.told() == (OK, 4)


def test_a_client_without_an_election_id_is_never_primary(connect: Any) -> None:
    reader, writer = connect(), connect()
    reader.announce(0)
    assert reader.told() == (NOT_FOUND, 0)
    assert reader.may_write(0).startswith("PERMISSION_DENIED: there is no primary")
    writer.announce(1)
    assert [c.told() for c in (writer, reader)] == [(OK, 1), (ALREADY_EXISTS, 1)]
    writer.leave()
    assert reader.told() == (NOT_FOUND, 0)


def test_errors_that_end_a_stream(connect: Any) -> None:
    first = connect()
    first.announce(5)
    assert first.told() == (OK, 5)
    for announce, code, reason in (
        ({"election_id": 5}, "INVALID_ARGUMENT", "election id 5 belongs to another client"),
        ({"election_id": 6, "device_id": 7}, "NOT_FOUND", "there is no device 7; this is device 1"),
        ({"election_id": 6, "role": "sdn"}, "UNIMPLEMENTED", "roles are not supported: leave the role out"),
    ):
        other = connect()
        other.announce(**announce)
        assert other.refused() == (code, reason)
    assert first.may_write(5).startswith("FAILED_PRECONDITION")  # the first one is still primary


def test_there_is_a_limit_of_clients(connect: Any) -> None:
    for election_id in range(1, 17):
        client = connect()
        client.announce(election_id)
        assert client.told() == (OK, election_id)
    client = connect()
    client.announce(17)
    assert client.refused()[0] == "RESOURCE_EXHAUSTED"


def test_messages_of_other_kinds_are_answered_with_an_error(connect: Any) -> None:
    client = connect()
    request = p4runtime_pb2.StreamMessageRequest()
    request.digest_ack.digest_id = 1
    client.requests.put(request)
    assert next(client.responses).error.message == "stream messages of the kind digest_ack are not supported"


def hears_of_another(client: P4RuntimeClient) -> bool:
    """Waits for a notification on a stream, which may come before or after the answer to a write."""
    for _ in range(1000):
        if not client.is_primary:
            return True
        time.sleep(0.01)
    return False


def test_two_of_the_projects_clients(server: P4RuntimeServer, client: P4RuntimeClient) -> None:
    assert client.is_primary
    with P4RuntimeClient(server.address, DEVICE_ID, election_id=1 << 100) as second:
        second.insert(MulticastGroup(group=1))
        with pytest.raises(NotPrimary, match=f"the primary's is {1 << 100}"):
            client.insert(MulticastGroup(group=2))
        assert hears_of_another(client)
        with pytest.raises(NotPrimary, match="election id 1 is not primary after 0 s"):
            client.wait_until_primary(0)
        with P4RuntimeClient(server.address, DEVICE_ID, read_only=True) as reader:
            assert reader.read(MulticastGroup()) == [MulticastGroup(group=1)]
            with pytest.raises(NotPrimary):
                reader.insert(MulticastGroup(group=3))
            with pytest.raises(NotPrimary, match="read-only"):
                reader.packet_in(0.01)
    client.wait_until_primary()
    client.insert(MulticastGroup(group=2))


# --- packets ----------------------------------------------------------------------------------------------------------


def receive(device: Device, frame: bytes, port: int) -> None:
    data = np.frombuffer(frame, np.uint8)[np.newaxis].copy()
    assert len(device.process(data, np.array([len(frame)]), np.array([port]), 0)) == 0


def test_packets_out_leave_by_the_port_that_their_metadata_names(client: P4RuntimeClient, device: Device) -> None:
    emitted: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    device.emit = lambda out: emitted.put((int(out.ports[0]), out.packet(0)))
    client.packet_out(FRAME, egress_port=300)
    assert emitted.get(timeout=5) == (300, FRAME)
    client.packet_out(FRAME, egress_port=2, padding=127)
    assert emitted.get(timeout=5) == (2, FRAME)


def test_a_packet_out_that_cannot_be_is_answered_with_an_error(
    client: P4RuntimeClient, connect: Any, device: Device
) -> None:
    client.packet_out(FRAME, egress_port=512)
    assert client.stream_error() == "metadata 2: 0x200 does not fit in 9 bits"

    backup = connect()
    request = p4runtime_pb2.StreamMessageRequest()
    request.packet.payload = FRAME
    backup.requests.put(request)
    response = next(backup.responses)
    assert (response.error.canonical_code, response.error.message) == (7, "packet-out: not primary")
    assert response.error.packet_out.packet_out.payload == FRAME

    device.cpu_port = None
    client.packet_out(FRAME, egress_port=5)
    assert client.stream_error() == "packet-out: the switch has no CPU port"


def test_packets_in_without_a_primary_are_lost(client: P4RuntimeClient, device: Device) -> None:
    client.close()
    receive(device, FRAME, 1)
    with client:
        receive(device, FRAME, 2)
        assert client.packet_in().metadata["ingress_port"] == 2


def test_a_client_that_does_not_keep_up_loses_packets(server: P4RuntimeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "QUEUED_MESSAGES", 2)
    cancelled: list[bool] = []
    channel = server_module._Channel(server, lambda: cancelled.append(True))
    message = p4runtime_pb2.StreamMessageResponse()
    message.packet.payload = FRAME
    notice = p4runtime_pb2.StreamMessageResponse()
    notice.arbitration.device_id = DEVICE_ID
    for _ in range(5):
        channel.send(message)
    assert server.packet_ins_dropped == 3
    assert cancelled == []
    channel.send(notice)  # who does not even take this is not there
    assert cancelled == [True]
    channel.close()
    assert [m.WhichOneof("update") for m in channel.messages()] == ["packet", "packet"]


def test_a_server_that_stops_ends_the_streams(device: Device) -> None:
    server = P4RuntimeServer(device, "127.0.0.1:0").start()
    with P4RuntimeClient(server.address, DEVICE_ID, timeout_s=2) as client:
        client.push_pipeline((P4 / "punt.p4info.txtpb").read_text(), (P4 / "punt.json").read_bytes())
        server.stop()
        with pytest.raises(Unreachable, match="packet-in: the server is gone"):
            client.packet_in()
        assert not client.is_primary
        with pytest.raises(Unreachable):
            client.insert(MulticastGroup(group=1))
