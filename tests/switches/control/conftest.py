"""Switches for the tests: the embedded target in this process, and BMv2 if it is installed."""

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.needs import BMV2

from sa_atp.basics import needs
from sa_atp.protocol.packets.contributions import ContributionMap
from sa_atp.protocol.server.server_events import Admit
from sa_atp.switches.embedded.device import Device
from sa_atp.switches.embedded.p4runtime_server.server import P4RuntimeServer

P4 = Path(__file__).resolve().parents[2] / "p4"
DEVICE_ID = 3
CPU_PORT = 255
START_S = 15.0  # BMv2 on a busy machine


@dataclass(frozen=True)
class Switch:
    """A running switch. kind: "embedded" or "bmv2"."""

    kind: str
    address: str
    device_id: int = DEVICE_ID


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def admission(number: int, epoch: int = 1, slot_base: int = 0) -> Admit:
    return Admit(
        number=number,
        epoch=epoch,
        addresses={0: ("10.0.0.1", 5000 + number), 1: ("10.0.0.2", 5000 + number)},
        map=ContributionMap(2, 1),
        slot_base=slot_base,
        slot_count=64,
        server=("10.0.0.9", 21313),
    )


@pytest.fixture(scope="module")
def embedded() -> Iterator[Switch]:
    """The embedded target, as a P4Runtime server in this process."""
    device = Device(clock=lambda: 0, device_id=DEVICE_ID, compiled=False, cpu_port=CPU_PORT)
    with P4RuntimeServer(device, "127.0.0.1:0") as server:
        yield Switch("embedded", server.address)


@pytest.fixture(scope="module")
def bmv2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """BMv2 as a process of its own, without interfaces."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(needs.find("simple_switch_grpc")), "--no-p4", "--device-id", str(DEVICE_ID), "--thrift-port", str(free_port()),
        "--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT),
    ]  # fmt: skip
    with (
        (tmp_path_factory.mktemp("bmv2") / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        yield Switch("bmv2", address)
        process.terminate()


@pytest.fixture(params=["embedded", pytest.param("bmv2", marks=BMV2)])
def switch(request: pytest.FixtureRequest) -> Switch:
    """Each target; the tests of a module share one switch, so each replaces the state that another left."""
    found: Switch = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def program_files() -> dict[str, tuple[str, bytes]]:
    """P4Info and device configuration of the test programs, by name."""
    return {
        name: ((P4 / f"{name}.p4info.txtpb").read_text(), (P4 / f"{name}.json").read_bytes())
        for name in ("router", "punt")
    }
