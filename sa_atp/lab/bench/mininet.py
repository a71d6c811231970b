"""The clusters of `sa-atp bench allreduce --backend mininet`: stars of workers with links of a given rate."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sa_atp.lab.backends.mininet import topologies
from sa_atp.lab.backends.mininet.network import READY_TIMEOUT_S, MininetNetwork
from sa_atp.lab.backends.mininet.peers import MininetPeer
from sa_atp.lab.bench.cluster import AllReduceRequest, Cluster
from sa_atp.lab.runs.processes import Process

SLOTS = 1024
STORE_PORT = 29_500


@contextmanager
def cluster(request: AllReduceRequest, folder: Path, *, with_peers: bool) -> Iterator[Cluster]:
    """Runs the cluster. Args: folder: for logs; with_peers: whether one for other protocols runs beside it.

    Raises: MissingPartError, UserError, SaAtpError.
    """
    star = topologies.star(request.workers, request.link_mbps, request.mtu)
    places = star.workers()
    store = (places[0].ip, STORE_PORT)

    def network(logs: Path, *, bare: bool) -> MininetNetwork:
        return MininetNetwork(
            star, switch=request.switch, lanes=request.lanes, slots=SLOTS, slots_per_job=SLOTS, logs=logs, bare=bare
        )

    def workers_on(network: MininetNetwork) -> list[Process]:
        return [network.start(p.name, f"worker {p.rank}", ["sa_atp.lab.bench.all_reduce_task"]) for p in places]

    with ExitStack() as networks:
        ours = networks.enter_context(network(folder, bare=False))
        workers = workers_on(ours)
        server = ours.start_server()
        beside = None
        if with_peers:
            bare = networks.enter_context(network(folder / "peers", bare=True))
            beside = Cluster(workers_on(bare), "", bare.switches, store, peers=MininetPeer(bare))
        for worker in [*workers, *(beside.workers if beside else ())]:
            worker.answer(READY_TIMEOUT_S)
        assert ours.server is not None
        interfaces: list[str | None] = [f"{place.name}-eth0" for place in places]
        yield Cluster(workers, server, [*ours.switches, ours.server], store, interfaces, beside=beside)
