"""Real processes that are killed: the others learn of it from the kernel, long before a timeout."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import sa_atp
from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group
from sa_atp.net.communicator import Communicator
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.protocol.job.errors import OperationTimeoutError, ParameterServerLostError, WorkerLostError
from sa_atp.protocol.server.server_events import ServerSettings

FOR_EVER_S = 600.0  # of silence; a test would not last so long

# A rank with a child that outlives it, as workers of a DataLoader do for some seconds.
RANK = """
import os, sys, time
import sa_atp
comm = sa_atp.connect(sys.argv[1], job="ended", rank=1, world_size=2)
if not os.fork():
    os.read(0, 1)
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    settings = ServerSettings(aggregates=False, dead_after_us=int(FOR_EVER_S * 1e6))
    process = ServerProcess(settings, ("127.0.0.1", 0), random.Random(1).getrandbits)
    process.start()
    yield process
    process.stop()


def connected(address: tuple[str, int], world_size: int, **options: Any) -> Communicator:
    return sa_atp.connect("udp://{}:{}".format(*address), job="ended", rank=0, world_size=world_size, **options)


def sum_for_ever(comm: Communicator) -> NoReturn:
    while True:
        comm.all_reduce(np.ones(10, np.float32))


def test_a_rank_that_is_killed_is_lost(server: ServerProcess) -> None:
    url = "udp://{}:{}".format(*server.address)
    with subprocess.Popen([sys.executable, "-c", RANK, url], stdin=subprocess.PIPE) as rank:
        with connected(server.address, 2) as comm:
            done = comm.all_reduce_async(np.ones(10, np.float32))
            rank.kill()
            error = done.exception(60.0)
        assert isinstance(error, WorkerLostError)
        assert str(error) == "lost rank 1: process ended, or connection closed"
        assert rank.stdin is not None
        rank.stdin.close()


def test_a_parameter_server_that_is_gone_is_named(server: ServerProcess) -> None:
    with connected(server.address, 1, server_timeout_s=FOR_EVER_S) as comm:
        server.stop()
        with pytest.raises(ParameterServerLostError, match=r"the parameter server at 127\.0\.0\.1:\d+ is gone"):
            sum_for_ever(comm)


def test_a_switch_that_is_gone_is_named(tmp_path: Path) -> None:
    with Group() as group:
        cluster = LocalCluster(group, tmp_path, lanes=64, slots=256)
        comm = connected(cluster.ready(), 1, server_timeout_s=1.0, operation_timeout_s=FOR_EVER_S)
        comm.all_reduce(np.ones(10, np.float32))
        os.kill(cluster.switch._process.pid, signal.SIGKILL)
        with pytest.raises(OperationTimeoutError) as failed:
            sum_for_ever(comm)
        where = "{}:{}".format(*cluster.switch_address)
        assert f"because the switch at {where} is gone: its process has ended" in str(failed.value)
        comm.close()
