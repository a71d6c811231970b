"""The processes that tests of collectives share; sockets that are closed however a test ends."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from helpers.ranks import running_server

from sa_atp.net.sockets.udp import UdpSocket


@pytest.fixture(scope="module", params=[True, False], ids=["shared memory", "UDP"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a parameter server, whose switch shares memory with ranks or does not."""
    with running_server(tmp_path_factory.mktemp("logs"), shares=request.param) as address:
        yield address


@pytest.fixture
def open_socket() -> Iterator[Callable[[], UdpSocket]]:
    """Opens a UDP socket on loopback. One that a failed test left open would be blamed on a later test."""
    with contextlib.ExitStack() as opened:

        def made() -> UdpSocket:
            socket = UdpSocket(("127.0.0.1", 0))
            opened.callback(socket.close)
            return socket

        yield made
