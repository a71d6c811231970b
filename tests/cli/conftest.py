"""Fixtures of the tests of commands: a parameter server with a job, and the command as a process."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sa_atp.net.communicator import Communicator
from sa_atp.net.connecting import connect
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.protocol.server.server_events import ServerSettings

RUN_TIMEOUT_S = 120.0  # the first switch compiles its program
Join = Callable[..., list[Communicator]]


def sa_atp(
    *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Runs `sa-atp` as a user does."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-m", "sa_atp", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        env={**os.environ, **(environment or {})},
        **options,
    )
    return done


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A parameter server without a switch, in this process."""
    process = ServerProcess(ServerSettings(aggregates=False), ("127.0.0.1", 0), random.Random(1).getrandbits)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def url(server: ServerProcess) -> str:
    return "udp://{}:{}".format(*server.address)


@pytest.fixture
def join(url: str) -> Iterator[Join]:
    """Joins ranks of a job at the same time; they leave when the test is over."""
    joined: list[Communicator] = []

    def join(ranks: Sequence[int], *, job: str = "job", **options: Any) -> list[Communicator]:
        with ThreadPoolExecutor(len(ranks)) as pool:
            found = list(pool.map(lambda rank: connect(url, job=job, rank=rank, **options), ranks))
        joined.extend(found)
        return found

    yield join
    for communicator in joined:
        communicator.close()
