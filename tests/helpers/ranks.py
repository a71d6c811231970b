"""A switch and a parameter server as processes, and functions that run on all ranks of a job at once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sa_atp
from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group
from sa_atp.net.communicator import Communicator

WAIT_S = 60


@contextmanager
def running_server(logs: Path, **settings: Any) -> Iterator[str]:
    """Runs the processes, and gives the parameter server's address. Args: settings: see LocalCluster."""
    with Group() as group:
        host, port = LocalCluster(group, logs, lanes=64, slots=256, **settings).ready()
        yield f"udp://{host}:{port}"


def on_ranks(server: str, work: Callable[[Communicator], Any], job: str, ranks: int, **terms: Any) -> list[Any]:
    """Returns what a function returns on each rank of a new job. Args: terms: see `sa_atp.connect`."""

    def one(rank: int) -> Any:
        with sa_atp.connect(server, job=job, rank=rank, world_size=ranks, **terms) as comm:
            return work(comm)

    with ThreadPoolExecutor(ranks) as pool:
        return [each.result(WAIT_S) for each in [pool.submit(one, rank) for rank in range(ranks)]]
