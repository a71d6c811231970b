"""An embedded target with a P4Runtime server, and its clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer
from sa_atp.switches.p4runtime.calls import Stub
from sa_atp.switches.p4runtime.entities import Lpm, Optional, Range, TableEntry, Ternary

P4 = Path(__file__).resolve().parents[3] / "p4"
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
        yield Stub(channel)
