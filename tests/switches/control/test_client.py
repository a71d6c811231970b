"""The client with both targets: the same calls have the same outcomes, except where this file says otherwise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.switches.control.client import P4RuntimeClient, parse_p4info
from sa_atp.switches.control.errors import (
    ControlError,
    NoPipeline,
    NotPrimary,
    NotSupported,
    Unreachable,
    UpdateRefusedError,
    WrongDevice,
)
from sa_atp.switches.p4runtime.calls import add_servicer
from sa_atp.switches.p4runtime.entities import (
    CounterData,
    CounterEntry,
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
from sa_atp.switches.p4runtime.messages import p4runtime_pb2
from sa_atp.switches.p4runtime.rpc import grpc

from .conftest import START_S, Switch, free_port

Files = dict[str, tuple[str, bytes]]
ROUTE = TableEntry(
    table="route",
    match={"dst": Lpm(0x0A000100, 24)},
    action="forward",
    params={"next_hop": 9, "port": 9},
    metadata=b"x",
)
FILTER = TableEntry(
    table="filter",
    match={"src": Ternary(0x0A000000, 0xFF000000), "protocol": Range(17, 19), "port": Optional(4)},
    action="drop",
    priority=10,
)


@pytest.fixture
def client(switch: Switch, program_files: Files) -> Iterator[P4RuntimeClient]:
    """The primary client of a switch to which router.p4 has just been pushed."""
    with P4RuntimeClient(switch.address, switch.device_id, timeout_s=START_S) as connected:
        connected.push_pipeline(*program_files["router"], cookie=1 << 63)
        yield connected


def test_the_pipeline_comes_back(client: P4RuntimeClient, program_files: Files) -> None:
    config = client.get_pipeline()
    assert config.device_config == program_files["router"][1]
    assert config.p4info == parse_p4info(program_files["router"][0])
    assert config.cookie == 1 << 63
    assert client.api_version() == "1.3.0"


def test_entries_come_back(client: P4RuntimeClient) -> None:
    everything = TableEntry(table="filter", action="set_class", params={"class": 0}, priority=1)
    default_route = TableEntry(table="route", action="flood", params={"group": 7})
    client.insert(ROUTE, FILTER, everything, default_route)
    assert sorted(map(repr, client.read(TableEntry(table="route"), TableEntry(table="filter")))) == sorted(
        map(repr, [ROUTE, FILTER, everything, default_route])
    )
    changed = TableEntry(table="route", match=ROUTE.match, action="drop")
    client.modify(changed)
    assert client.read(changed) == [changed]
    client.delete(changed)
    assert client.read(TableEntry(table="route")) == [default_route]
    assert client.read(TableEntry(table="route", match={"dst": Lpm(0, 1)})) == []


def test_const_entries_come_back_with_the_same_priorities(client: P4RuntimeClient) -> None:
    found = client.read(TableEntry(table="classes"))
    assert [(e.match["class"], e.priority) for e in found if isinstance(e, TableEntry)] == [
        (Ternary(70, 0xFF), (1 << 31) - 2),
        (Ternary(64, 0xF0), (1 << 31) - 3),
    ]


def test_default_actions(client: P4RuntimeClient) -> None:
    query = TableEntry(table="route", is_default=True)
    wanted = TableEntry(table="route", is_default=True, action="forward", params={"next_hop": 1, "port": 2})
    assert client.read(query) == [TableEntry(table="route", is_default=True, action="drop")]
    client.modify(wanted)
    assert client.read(query) == [wanted]
    client.modify(query)
    assert client.read(query) == [TableEntry(table="route", is_default=True, action="drop")]


@pytest.mark.parametrize(
    ("kind", "entity", "code", "reason", "of_bmv2"),
    [
        (1, ROUTE, "ALREADY_EXISTS", "exists already", ""),
        (2, TableEntry(table="route", match={"dst": Lpm(0, 1)}, action="drop"), "NOT_FOUND", "does not exist", ""),
        (3, TableEntry(table="route", match={"dst": Lpm(0, 1)}), "NOT_FOUND", "does not exist", ""),
        (
            1,
            TableEntry(table="nowhere"),
            "INVALID_ARGUMENT",
            "there is no table nowhere; the program has classes, ",
            None,
        ),
        (1, TableEntry(table="route"), "INVALID_ARGUMENT", "the action is missing", ""),
        (
            1,
            TableEntry(table="route", action="leap"),
            "INVALID_ARGUMENT",
            "no action leap; table route has NoAction, ",
            None,
        ),
        (1, TableEntry(table="route", action="flood"), "INVALID_ARGUMENT", "takes group, not no parameters", ""),
        (
            1,
            TableEntry(table="route", action="flood", params={"group": 1 << 16}),
            "OUT_OF_RANGE",
            "16 bits",
            "INVALID_ARGUMENT",
        ),
        (1, TableEntry(table="route", action="drop", priority=3), "INVALID_ARGUMENT", "no priorities", ""),
        (1, TableEntry(table="route", action="NoAction"), "PERMISSION_DENIED", "only be the action of a default", ""),
        (1, TableEntry(table="route", match={"dst": Lpm(0, 33)}, action="drop"), "INVALID_ARGUMENT", "0 to 32", None),
        (
            1,
            TableEntry(table="route", match={"dst": Lpm(1, 8)}, action="drop"),
            "INVALID_ARGUMENT",
            "does not cover",
            "",
        ),
        (
            1,
            TableEntry(table="route", match={"dst": Exact(1)}, action="drop"),
            "INVALID_ARGUMENT",
            "matches by lpm",
            None,
        ),
        (
            1,
            TableEntry(table="route", match={"src": Exact(1)}, action="drop"),
            "INVALID_ARGUMENT",
            "no match field",
            None,
        ),
        (1, TableEntry(table="copies", action="NoAction"), "INVALID_ARGUMENT", "copy is missing", ""),
        (1, TableEntry(table="filter", action="drop"), "INVALID_ARGUMENT", "needs one from 1", ""),
        (
            1,
            TableEntry(table="filter", match={"protocol": Range(5, 4)}, action="drop", priority=1),
            "INVALID_ARGUMENT",
            "the range 5..4 is empty",
            None,
        ),
        (
            1,
            TableEntry(table="filter", match={"src": Ternary(3, 2)}, action="drop", priority=1),
            "INVALID_ARGUMENT",
            "does not cover",
            None,
        ),
        (
            1,
            TableEntry(table="copies", match={"copy": Exact(1)}, action="NoAction", counts=CounterData()),
            "INVALID_ARGUMENT",
            "no direct counter",
            None,
        ),
        (
            1,
            TableEntry(table="known_ports", match={"port": Exact(1)}, action="NoAction"),
            "PERMISSION_DENIED",
            "part",
            "UNKNOWN",
        ),
        (
            3,
            TableEntry(table="known_ports", match={"port": Exact(7)}),
            "PERMISSION_DENIED",
            "part of the program",
            None,
        ),
        (1, TableEntry(table="route", is_default=True, action="drop"), "INVALID_ARGUMENT", "use MODIFY", ""),
        (3, TableEntry(table="route", is_default=True), "INVALID_ARGUMENT", "use MODIFY", ""),
        (
            2,
            TableEntry(table="route", is_default=True, action="set_class", params={"class": 1}),
            "PERMISSION_DENIED",
            "only be the action of an entry",
            "",
        ),
        (2, TableEntry(table="filter", is_default=True, action="NoAction"), "PERMISSION_DENIED", "action is part", ""),
        (
            2,
            TableEntry(table="route", is_default=True, action="drop", priority=1),
            "INVALID_ARGUMENT",
            "no priority",
            None,
        ),
        (1, MulticastGroup(group=0), "OUT_OF_RANGE", "1 to 65535", None),
        (2, MulticastGroup(group=8), "NOT_FOUND", "does not exist", ""),
        (3, MulticastGroup(group=8), "NOT_FOUND", "does not exist", ""),
        (1, MulticastGroup(group=8, replicas=frozenset({Replica(511, 0)})), "INVALID_ARGUMENT", "out of range", None),
        (1, CounterEntry(counter="arrived", index=1), "INVALID_ARGUMENT", "only MODIFY", ""),
        (2, CounterEntry(counter="arrived", index=512), "OUT_OF_RANGE", "expected 0 to 511", "UNKNOWN"),
        (2, CounterEntry(), "INVALID_ARGUMENT", "must name one counter", None),
        (2, DirectCounterEntry(entry=TableEntry(table="copies")), "INVALID_ARGUMENT", "no direct counter", None),
        (
            2,
            DirectCounterEntry(entry=TableEntry(table="route", is_default=True)),
            "UNIMPLEMENTED",
            "does not count",
            None,
        ),
        (2, RegisterEntry(register="balance", index=16, value=1), "OUT_OF_RANGE", "expected 0 to 15", None),
        (2, RegisterEntry(register="balance", index=1, value=40000), "OUT_OF_RANGE", "16 bits", None),
        (2, RegisterEntry(register="last_source", index=1, value=1 << 48), "OUT_OF_RANGE", "48 bits", None),
        (3, RegisterEntry(register="balance", index=1), "INVALID_ARGUMENT", "only MODIFY", None),
        (1, MulticastGroup(group=70000), "OUT_OF_RANGE", "1 to 65535", ""),
    ],
    ids=lambda value: str(value) if not isinstance(value, int | str | None) else None,
)
def test_refusals_and_their_reasons(
    client: P4RuntimeClient, switch: Switch, kind: int, entity: Any, code: str, reason: str, of_bmv2: str | None
) -> None:
    """Args: of_bmv2: BMv2's code, "" for the same one; None: what BMv2 says of this is not known."""
    if switch.kind == "bmv2" and of_bmv2 is None:
        return
    client.insert(ROUTE)
    before = client.read(TableEntry(), MulticastGroup())
    with pytest.raises(ControlError) as caught:
        client.write([Update(UpdateKind(kind), entity)])
    said = str(caught.value)
    assert said.startswith(f"switch 3 at {switch.address}: {UpdateKind(kind).name} ")
    assert f": {(switch.kind == 'bmv2' and of_bmv2) or code}: " in said
    assert switch.kind == "bmv2" or reason in said
    assert "\n" not in said
    assert client.read(TableEntry(), MulticastGroup()) == before


def test_a_batch_goes_on_after_a_refusal(client: P4RuntimeClient) -> None:
    others = [TableEntry(table="route", match={"dst": Lpm(i << 24, 8)}, action="drop") for i in range(1, 4)]
    with pytest.raises(UpdateRefusedError, match="2 of 6 updates refused") as caught:
        client.insert(TableEntry(table="nowhere", action="drop"), others[0], ROUTE, ROUTE, *others[1:])
    assert [(r.index, r.code) for r in caught.value.refused] == [(0, "INVALID_ARGUMENT"), (3, "ALREADY_EXISTS")]
    assert len(client.read(TableEntry(table="route"))) == 4


def test_long_writes_are_cut_in_batches(client: P4RuntimeClient) -> None:
    copies = [TableEntry(table="copies", match={"copy": Exact(i)}, action="NoAction") for i in range(1001)]
    with pytest.raises(UpdateRefusedError) as caught:
        client.insert(*copies, copies[0])
    assert [(r.index, r.code) for r in caught.value.refused] == [(1001, "ALREADY_EXISTS")]
    assert len(client.read(TableEntry(table="copies"))) == 1001


def test_multicast_groups(client: P4RuntimeClient) -> None:
    one = MulticastGroup(group=1, replicas=frozenset({Replica(1, 1), Replica(2, 1), Replica(2, 1000)}))
    client.insert(one, MulticastGroup(group=2))
    assert client.read(MulticastGroup(group=1)) == [one]
    assert len(client.read(MulticastGroup())) == 2
    changed = MulticastGroup(group=1, replicas=frozenset({Replica(2, 1)}))
    client.modify(changed)
    client.delete(MulticastGroup(group=2))
    assert client.read(MulticastGroup()) == [changed]
    assert client.read(MulticastGroup(group=2), TableEntry(table="route"), MulticastGroup(group=1)) == [changed]


def test_counters(client: P4RuntimeClient) -> None:
    client.insert(ROUTE)
    client.modify(CounterEntry(counter="arrived", index=4, counts=CounterData(10, 20)))
    assert client.read(CounterEntry(counter="arrived", index=4), CounterEntry(counter="by_class", index=1)) == [
        CounterEntry(counter="arrived", index=4, counts=CounterData(10, 20)),
        CounterEntry(counter="by_class", index=1, counts=CounterData(0, None)),
    ]
    assert len(client.read(CounterEntry(counter="by_class"))) == 256
    key = TableEntry(table="route", match=ROUTE.match)
    client.modify(DirectCounterEntry(entry=key, counts=CounterData(5, 6)))
    assert client.read(DirectCounterEntry(entry=TableEntry(table="route"))) == [
        DirectCounterEntry(entry=key, counts=CounterData(5, 6))
    ]
    (entry,) = client.read(TableEntry(table="route", counts=CounterData()))
    assert isinstance(entry, TableEntry)
    assert entry.counts == CounterData(5, 6)


def test_registers_are_a_capability(client: P4RuntimeClient, switch: Switch) -> None:
    cell = RegisterEntry(register="balance", index=1, value=-3)
    assert client.has_registers() == (switch.kind == "embedded")
    if client.has_registers():
        client.modify(cell)
        assert client.read(RegisterEntry(register="balance", index=1)) == [cell]
        return
    with pytest.raises(NotSupported, match="Register reads are not supported"):
        client.read(RegisterEntry(register="balance"))
    with pytest.raises(NotSupported, match=r"MODIFY balance\[1\]: UNIMPLEMENTED"):
        client.modify(cell)


def test_a_larger_election_id_takes_over_until_it_leaves(client: P4RuntimeClient, switch: Switch) -> None:
    with pytest.raises(NotPrimary, match=r"arbitration: .*lection id .*this client.s election id is 1"):
        P4RuntimeClient(switch.address, switch.device_id).open()
    with P4RuntimeClient(switch.address, switch.device_id, election_id=5) as second:
        second.insert(ROUTE)
        with pytest.raises(NotPrimary, match="writing"):
            client.insert(FILTER)
        with pytest.raises(NotPrimary, match="election id 3 is not primary, the primary's is 5"):
            P4RuntimeClient(switch.address, switch.device_id, election_id=3).open()
    client.wait_until_primary()
    client.insert(FILTER)


def test_packets_to_and_from_the_program(switch: Switch, program_files: Files) -> None:
    """A packet-out to the CPU port comes back as a packet-in, whose header is the packet's first bytes."""
    with P4RuntimeClient(switch.address, switch.device_id, timeout_s=START_S) as client:
        client.push_pipeline(*program_files["punt"])
        client.packet_out(bytes.fromhex("9600 88b5") + bytes(range(20)), egress_port=255)
        packet = client.packet_in()
        assert packet.payload == bytes(range(20))
        assert packet.metadata == {"ingress_port": 300, "padding": 0, "ether_type": 0x88B5}
        with pytest.raises(UserError, match="there is no metadata port; packet-out has egress_port, padding"):
            client.packet_out(b"", port=1)
        with pytest.raises(Unreachable, match="no packet-in in 0 s"):
            client.packet_in(0)


class Brief:
    """A server whose stream makes its client primary, brings a packet, and ends, without an error."""

    def __init__(self, p4info: str) -> None:
        self._p4info = p4info

    def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        response.config.p4info.CopyFrom(parse_p4info(self._p4info))
        return response

    def StreamChannel(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        next(requests)
        primary, packet = p4runtime_pb2.StreamMessageResponse(), p4runtime_pb2.StreamMessageResponse()
        primary.arbitration.election_id.low = 1
        packet.packet.metadata.add(metadata_id=99, value=b"1")
        yield from (primary, packet)


def test_a_server_that_ends_the_stream(program_files: Files) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    add_servicer(Brief(program_files["punt"][0]), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with P4RuntimeClient(f"127.0.0.1:{port}", timeout_s=START_S) as client:
        with pytest.raises(
            ControlError, match=r"packet-in: metadata 99 is not in the P4Info, which has 1 \(ingress_port\), 2"
        ):
            client.packet_in()
        for _ in range(2):
            with pytest.raises(Unreachable, match="packet-in: the server ended the stream"):
                client.packet_in()
        with pytest.raises(Unreachable, match="stream error: the server ended the stream"):
            client.stream_error()
        assert not client.is_primary
    server.stop(0)


def test_another_device_id(switch: Switch, program_files: Files) -> None:
    with (
        pytest.raises(WrongDevice, match="switch 9 at "),
        P4RuntimeClient(switch.address, 9, timeout_s=START_S) as client,
    ):
        client.push_pipeline(*program_files["router"])


def test_no_pipeline_yet(switch: Switch) -> None:
    """BMv2 accepts any device id, and has no pipeline for it; the embedded target accepts only its own."""
    expected = NoPipeline if switch.kind == "bmv2" else WrongDevice
    with P4RuntimeClient(switch.address, 10, read_only=True, timeout_s=START_S) as client:
        for call in (client.get_pipeline, lambda: client.schema, lambda: client.read(TableEntry())):
            with pytest.raises(expected):
                call()


# --- without a switch -------------------------------------------------------------------------------------------------


def test_no_server_answers() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=rf"no P4Runtime server answers at {address} \(waited 0.2 s\)"):
        P4RuntimeClient(address, timeout_s=0.2).open()


def test_mistakes_of_the_caller() -> None:
    with pytest.raises(UserError, match=r"election id 0: expected 1 to 2\*\*128 - 1"):
        P4RuntimeClient("127.0.0.1:1", election_id=0)
    with pytest.raises(ControlError, match="not connected"):
        P4RuntimeClient("127.0.0.1:1").read(TableEntry())
    with pytest.raises(UserError, match="not a P4Info in text form: 1:"):
        parse_p4info("tables { what }")
