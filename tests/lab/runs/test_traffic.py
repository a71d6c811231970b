"""Background traffic: a stream flows before a run goes on, although a datagram that opens it may be lost."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sa_atp.lab.backends.mininet import traffic
from sa_atp.lab.runs.processes import Group, Process, ProcessError

pytestmark = pytest.mark.needs("iperf3")


class Loopback:
    """A network whose only host is this machine, and where the first clients wait for answers in vain."""

    def __init__(self, group: Group, folder: Path, lost: int) -> None:
        self.group, self.folder, self.lost = group, folder, lost
        self.layout = SimpleNamespace(hosts={"t2": SimpleNamespace(ip="127.0.0.1")})
        self.streams = 0

    def start(self, host: str, name: str, arguments: list[str], *, program: list[str], talks: bool) -> Process:
        if "--client" in arguments and self.lost:
            self.lost -= 1
            program, arguments = ["sleep"], ["60"]
        return self.group.start(name, arguments, self.folder / f"{name}.log", program=program, talks=talks)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(traffic, "BACKGROUND_PORTS", free.getsockname()[1] - 1)
    monkeypatch.setattr(traffic, "CONNECT_TIMEOUT_S", 1.0)
    with Group() as group:
        yield group


def test_a_stream_that_was_not_opened_is_begun_anew(group: Group, tmp_path: Path) -> None:
    network: Any = Loopback(group, tmp_path, lost=2)
    server, client = traffic.stream(network, "w1", "t2", udp_mbps=1.0)
    assert client.is_running()
    assert traffic._has_said(server, "connected to", 20.0)


def test_a_stream_that_cannot_be_opened_is_an_error(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MOST_TRIES", 2)
    network: Any = Loopback(group, tmp_path, lost=traffic.MOST_TRIES)
    with pytest.raises(ProcessError, match="iperf3 udp w1 to t2 has opened no stream"):
        traffic.stream(network, "w1", "t2", udp_mbps=1.0)
