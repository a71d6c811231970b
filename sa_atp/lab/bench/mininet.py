"""The cluster of `sa-atp bench allreduce --backend mininet`: a star of workers with links of a given rate."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sa_atp.lab.backends.mininet import topologies
from sa_atp.lab.backends.mininet.network import READY_TIMEOUT_S, MininetNetwork
from sa_atp.lab.bench.cluster import AllReduceRequest, Cluster

SLOTS = 1024
STORE_PORT = 29_500


@contextmanager
def cluster(request: AllReduceRequest, folder: Path) -> Iterator[Cluster]:
    """Runs the cluster. Args: folder: for logs. Raises: MissingPartError, UserError, SaAtpError."""
    star = topologies.star(request.workers, request.link_mbps, request.mtu)
    with MininetNetwork(
        star, switch=request.switch, lanes=request.lanes, slots=SLOTS, slots_per_job=SLOTS, logs=folder
    ) as network:
        places = star.workers()
        workers = [network.start(p.name, f"worker {p.rank}", ["sa_atp.lab.bench.all_reduce_task"]) for p in places]
        server = network.start_server()
        for worker in workers:
            worker.answer(READY_TIMEOUT_S)
        assert network.server is not None
        yield Cluster(
            workers,
            server,
            [*network.switches, network.server],
            (places[0].ip, STORE_PORT),
            [f"{place.name}-eth0" for place in places],
        )
