"""A parameter server that listens on all addresses of its host: which of them switches, ranks and tools know it by."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.committed import ROOT
from helpers.ranks import WAIT_S, on_ranks

from sa_atp.lab.backends.cluster import READY_TIMEOUT_S
from sa_atp.lab.runs.processes import Group
from sa_atp.net.communicator import Communicator
from sa_atp.net.parameter_server.server import ServerProcess
from sa_atp.net.sockets import namespace
from sa_atp.net.sockets.addresses import is_here, source_of, sources_of
from sa_atp.net.watching import looking, metrics
from sa_atp.protocol.job.membership import Joining, JoinRequest
from sa_atp.protocol.packets.datagrams import Burst
from sa_atp.protocol.server.server_events import Admit, ServerSettings
from sa_atp.switches.control import jobs
from sa_atp.switches.control.client import P4RuntimeClient

VALUES = 5000
# Two ranks that reach the server of this namespace by different addresses.
TWO_WAYS = """
ip link set lo up
ip address add 10.0.0.9/32 dev lo
python - "$1" <<'END'
import threading, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import sa_atp
from sa_atp.lab.backends.cluster import READY_TIMEOUT_S
from sa_atp.lab.runs.processes import Group
with Group() as group:
    switch = group.start("switch", ["sa_atp", "switch", "--lanes", "64", "--udp", "1=127.0.0.1:0", "--grpc", "127.0.0.1:0"],
                         Path(sys.argv[1], "switch.log"))
    grpc = switch.answer(READY_TIMEOUT_S)["grpc"]
    ps = group.start("ps", ["sa_atp", "ps", "--grpc", grpc], Path(sys.argv[1], "ps.log"))
    assert ps.answer(READY_TIMEOUT_S)["address"] == ["0.0.0.0", 21313]
    def join(rank, host):
        try:
            sa_atp.connect(f"udp://{host}:21313", job="two ways", rank=rank, world_size=2, timeout_s=3.0).close()
            return "joined"
        except sa_atp.TransportError as problem:
            return str(problem)
    with ThreadPoolExecutor(2) as pool:
        print(*pool.map(join, (0, 1), ("127.0.0.1", "10.0.0.9")), sep="\\n")
END
"""


def test_switches_know_it_by_the_address_at_which_ranks_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SA_ATP_DOORS", str(tmp_path / "doors"))
    with Group() as group:
        at = ["--lanes", "64", "--udp", "1=127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        answer = group.start("switch", ["sa_atp", "switch", *at], tmp_path / "switch.log").answer(READY_TIMEOUT_S)
        grpc, (host, port) = str(answer["grpc"]), answer["udp"]["1"]
        options = ["--listen", "0.0.0.0:0", "--grpc", grpc, "--switch-address", f"{host}:{port}"]
        server = group.start("ps", ["sa_atp", "ps", *options], tmp_path / "ps.log").answer(READY_TIMEOUT_S)
        port = int(server["address"][1])

        def work(comm: Communicator) -> Any:
            found = np.ones(VALUES, np.float32)
            comm.all_reduce(found)
            if comm.membership.rank == 0:
                with P4RuntimeClient(grpc, read_only=True) as client:
                    (known,) = jobs.read_jobs(client)
                    look = looking.look(server=("127.0.0.1", port))
            comm.all_reduce(found.copy())  # the other one stays until rank 0 has looked
            return found, (known.spec, look) if comm.membership.rank == 0 else None

        (first, seen), (second, _) = on_ranks(f"udp://127.0.0.1:{port}", work, "job", 2)
    assert np.array_equal(first, np.full(VALUES, 2, np.float32))
    assert np.array_equal(second, first)
    spec, view = seen
    for each in (spec.parameter_server, spec.uplink):
        assert (each.ip, each.udp_port, each.mac) == ("127.0.0.1", port, "02:00:7f:00:00:01")
    assert (
        f"sa-atp: job 1: switches know the parameter server as 127.0.0.1:{port}\n" in (tmp_path / "ps.log").read_text()
    )

    (cluster,) = view.clusters  # one, with the ranks' own reports
    assert (cluster.address, cluster.server.reached) == (f"0.0.0.0:{port}", [f"127.0.0.1:{port}"])
    assert [each.rank for each in cluster.connections] == [0, 1]
    assert all(cluster.rank(each) is not None for each in cluster.connections)
    steps = next(metric for metric in metrics.METRICS if metric.name == "sa_atp_rank_steps")
    assert sorted(labels for labels, _ in steps.samples(view)) == [
        (f"0.0.0.0:{port}", "job", str(rank)) for rank in (0, 1)
    ]


@pytest.mark.needs("namespaces", "ip")
def test_ranks_that_reach_it_at_two_addresses_are_told_to_choose_one(tmp_path: Path) -> None:
    done = subprocess.run(
        namespace.inside("bash", "-euc", TWO_WAYS.replace("python -", f"{sys.executable} -"), "", str(tmp_path)),
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=4 * WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for said in done.stdout.splitlines():
        assert "the switch cannot take the job: the parameter server listens on 0.0.0.0, and reaches the ranks" in said
        assert "from 10.0.0.9 and 127.0.0.1: start it with --listen and the address that switches shall send to" in said
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(("other", "is_spared"), [("127.0.0.1", True), ("10.0.0.1", False)])
def test_copies_are_spared_where_all_ranks_are_on_the_servers_host(other: str, is_spared: bool) -> None:
    process = ServerProcess(ServerSettings(), ("127.0.0.1", 0), random.Random(1).getrandbits)
    for rank, ip in enumerate(("127.0.0.1", other)):
        asked = JoinRequest(job="job", rank=rank, world_size=2)
        joining = Joining(asked, process.address, incarnation=1, now_us=0, timeout_us=1)
        process.server.receive([Burst((ip, 1000 + rank), burst.data) for burst in joining.transmit(0)], 0)
    admission = process.server.next_event()
    assert isinstance(admission, Admit)
    process.server.on_admitted(admission, 0)
    assert process._all_are_here() is is_spared
    process.stop()
    process.run()  # closes its socket


def test_sources() -> None:
    bound = ("10.0.0.9", 5)
    assert source_of(bound, ("10.0.0.1", 1)) == bound
    assert source_of(("0.0.0.0", 5), ("127.0.0.1", 1)) == ("127.0.0.1", 5)
    assert source_of(("0.0.0.0", 5), ("255.255.255.255", 1)) is None  # to a broadcast address nothing is sent
    peers = [("127.0.0.1", 1), ("127.0.0.1", 2), ("255.255.255.255", 1)]
    assert sources_of(("0.0.0.0", 5), peers) == [("127.0.0.1", 5)]
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")
