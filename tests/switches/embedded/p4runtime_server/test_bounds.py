"""Bounds on the threads and memory that clients can use, silent ones and those that send too much."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from sa_atp.protocol.packets.spec import LANE_BUILDS
from sa_atp.switches import artefacts
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.errors import ControlError
from sa_atp.switches.embedded.p4runtime_server.server import MOST_CALLS, MOST_MESSAGE_BYTES, P4RuntimeServer
from sa_atp.switches.p4runtime.calls import Stub
from sa_atp.switches.p4runtime.entities import MulticastGroup
from sa_atp.switches.p4runtime.messages import p4runtime_pb2

from .conftest import DEVICE_ID, program

MANY = 2 * MOST_CALLS


class Silent:
    """A client that opens RPCs, and then is silent."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = Stub(self.channel)
        self.calls: list[Any] = []
        self._end = threading.Event()

    def nothing(self) -> Iterator[Any]:
        """An iterator of requests that has none, as long as this client is open."""
        self._end.wait()
        yield from ()

    def stream_channel(self) -> Any:
        return self.stub.StreamChannel(self.nothing())

    def half_a_write(self) -> Any:
        """Opens an RPC, and does not send its request."""
        return self.channel.stream_unary(
            "/p4.v1.P4Runtime/Write",
            request_serializer=p4runtime_pb2.WriteRequest.SerializeToString,
            response_deserializer=p4runtime_pb2.WriteResponse.FromString,
        ).future(self.nothing())

    def read(self) -> Any:
        """Opens a read with more answers than a connection buffers, and does not take them."""
        request = p4runtime_pb2.ReadRequest(device_id=DEVICE_ID)
        for _ in range(40):
            request.entities.add().counter_entry.SetInParent()
        return self.stub.Read(request)

    def close(self) -> None:
        self._end.set()
        for call in self.calls:
            call.cancel()
        self.channel.close()


@pytest.fixture
def silent(server: P4RuntimeServer) -> Iterator[Silent]:
    made = Silent(server.address)
    yield made
    made.close()


@pytest.mark.parametrize("how", ["stream_channel", "half_a_write"])
def test_silent_clients_keep_nobody_out(
    server: P4RuntimeServer, client: P4RuntimeClient, silent: Silent, how: str
) -> None:
    """Neither present nor new clients are blocked: the oldest silent RPCs are ended, with an error."""
    silent.calls = [getattr(silent, how)() for _ in range(MANY)]
    with P4RuntimeClient(server.address, DEVICE_ID, election_id=2, timeout_s=20) as other:
        other.insert(MulticastGroup(group=1))
        assert client.read(MulticastGroup()) == [MulticastGroup(group=1)]
    client.wait_until_primary()
    client.insert(MulticastGroup(group=2))
    if how == "stream_channel":
        ended = [call for call in silent.calls if call.done()]
        assert len(ended) >= MANY - MOST_CALLS
        assert {call.code() for call in ended} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {call.details() for call in ended} == {
            "ended for other clients: this stream channel has announced no election id"
        }


def test_an_rpc_whose_answers_are_not_read_is_ended_for_a_new_one(
    server: P4RuntimeServer, client: P4RuntimeClient, silent: Silent
) -> None:
    """With room for four RPCs, one of which is the present client's stream."""
    server.calls.most = 4
    silent.calls = [silent.read() for _ in range(8)]
    deadline = time.monotonic() + 60
    for group in range(1, 4):
        while True:
            try:
                client.insert(MulticastGroup(group=group))
                break
            except ControlError:  # none of them waits for its client yet: they are being answered
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def test_messages_that_no_program_needs_are_refused(server: P4RuntimeServer, client: P4RuntimeClient) -> None:
    """gRPC itself refuses them, without reading them, also from the primary client."""
    largest = artefacts.program(max(LANE_BUILDS))
    assert 2 * (len(largest.device_config()) + len(largest.p4info())) < MOST_MESSAGE_BYTES
    with grpc.insecure_channel(server.address) as channel:
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
        request.config.p4_device_config = bytes(MOST_MESSAGE_BYTES)
        with pytest.raises(grpc.RpcError) as caught:
            Stub(channel).SetForwardingPipelineConfig(request, timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    client.insert(MulticastGroup(group=1))


def test_a_packet_out_is_as_long_as_a_packet_may_be(client: P4RuntimeClient) -> None:
    client.push_pipeline(*program("punt"))
    client.packet_out(bytes(9281), egress_port=5)
    assert client.stream_error() == "packet-out: 9283 bytes; expected at most 9280"
