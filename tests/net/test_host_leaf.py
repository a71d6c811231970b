"""A leaf on a host: its ranks send one sum up, also after it has been killed; and what a user gets wrong.

The hosts of a Mininet network have links whose bytes can be counted; on loopback, the switch above counts contributions.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import MININET

import sa_atp
from sa_atp.basics.errors import UserError
from sa_atp.lab.backends.cluster import LOOPBACK, READY_TIMEOUT_S, LocalCluster
from sa_atp.lab.backends.mininet.layout import HostNode, LinkQuality, NetworkLayout, SwitchNode
from sa_atp.lab.backends.mininet.network import MininetNetwork
from sa_atp.lab.runs.processes import Group, Process
from sa_atp.net import job_status
from sa_atp.net.communicator import Communicator
from sa_atp.net.host_leaf import for_rank
from sa_atp.net.host_leaf.meeting import Meeting, Ports
from sa_atp.net.sockets.addresses import parse_address
from sa_atp.switches.control import jobs
from sa_atp.switches.control.client import P4RuntimeClient
from sa_atp.switches.control.events import Event

VALUES, LANES = 100_000, 256
FRAGMENTS = -(-VALUES // LANES)
WAIT_S = 60.0
SUMMED = (Event.CLAIMED, Event.ADDED, Event.COMPLETED)


class Above:
    """A switch and a parameter server on loopback."""

    def __init__(self, group: Group, folder: Path) -> None:
        self.group, self.folder, self.log = group, folder, folder / "ps.log"
        self.cluster = LocalCluster(group, folder, lanes=LANES, slots=1024)
        self.address = self.cluster.ready()
        self.server = "udp://{}:{}".format(*self.address)

    def leaf(self) -> Process:
        leaf = self.group.start("leaf", ["sa_atp", "leaf", "--up", self.server], self.folder / "leaf.log")
        assert leaf.answer(READY_TIMEOUT_S)["ready"]
        return leaf

    def contributions(self, job: int) -> int:
        """Packets with contributions that the switch has added up, all of which were new to it."""
        with P4RuntimeClient(self.cluster.grpc, read_only=True) as client:
            found = jobs.counters(client, job)
        return sum(found[event].packets or 0 for event in SUMMED)


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Above]:
    with Group() as group:
        yield Above(group, tmp_path_factory.mktemp("logs"))


@contextlib.contextmanager
def joined(server: str, ranks: int, monkeypatch: pytest.MonkeyPatch, alone: int = 0) -> Iterator[list[Communicator]]:
    """Communicators of a job. Args: alone: how many of the last ranks use no leaf."""
    found: list[Communicator] = []
    problems: list[BaseException] = []

    def join(rank: int) -> None:
        try:
            found.append(sa_atp.connect(server, job="job", rank=rank, world_size=ranks, timeout_s=WAIT_S))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in reversed(range(ranks))]
    with monkeypatch.context() as patch:
        patch.setenv(for_rank.VARIABLE, "none")
        for thread in threads[:alone]:
            thread.start()
        if alone:
            until(lambda: sum(len(job.members) for job in job_status.ask_for_jobs(parse_address(server))) == alone)
    for thread in threads[alone:]:
        thread.start()
    try:
        for thread in threads:
            thread.join(2 * WAIT_S)
        assert not problems, problems
        found.sort(key=lambda comm: comm.membership.rank)
        yield found
    finally:
        ends = [threading.Thread(target=comm.close) for comm in found]
        for thread in ends:
            thread.start()
        for thread in ends:
            thread.join(WAIT_S)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def all_gather(ranks: list[Communicator]) -> None:
    """Parts pass the leaf, and come down by it."""
    futures = [comm.all_gather_async(np.full(VALUES, rank, np.int32)) for rank, comm in enumerate(ranks)]
    for each in futures:
        assert (each.result(WAIT_S) == np.arange(len(ranks))[:, None]).all()


def all_reduce(ranks: list[Communicator]) -> None:
    arrays = [np.full(VALUES, rank + 1.0, np.float32) for rank in range(len(ranks))]
    sums = [comm.all_reduce_async(array, key="tensor") for comm, array in zip(ranks, arrays, strict=True)]
    for each in sums:
        each.result(WAIT_S)
    for array in arrays:
        assert (array == sum(range(1, len(ranks) + 1))).all()


def has_channel(comm: Communicator) -> bool:
    return comm._driver.socket.channel is not None


def test_ranks_of_a_host_send_one_sum_up_also_after_their_leaf_was_killed(
    above: Above, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = above.leaf()
    with joined(above.server, 3, monkeypatch, alone=1) as ranks:
        assert [comm.membership.by_leaf for comm in ranks] == [True, True, False]
        assert [comm.membership.leaf_ranks for comm in ranks] == [0b11, 0b11, 0]
        job = ranks[0].membership.job
        all_reduce(ranks)
        all_gather(ranks)
        before = above.contributions(job)
        for _ in range(3):
            all_reduce(ranks)
        added = above.contributions(job) - before
        # 2 for each fragment, unless a loss made the leaf hand some over in parts; without the leaf it is 3
        assert 2 * 3 * FRAGMENTS <= added < 2.5 * 3 * FRAGMENTS
        os.kill(leaf._process.pid, signal.SIGKILL)
        all_reduce(ranks)
        until(lambda: all(map(has_channel, ranks)))
        until(lambda: above.log.read_text().count("had restarted") == 1)
        before = above.contributions(job)
        for _ in range(3):
            all_reduce(ranks)
        assert above.contributions(job) - before < 2.5 * 3 * FRAGMENTS
    for process in for_rank._started:  # what ranks have started in place of the one that was killed
        process.terminate()
        assert process.wait(WAIT_S) == 0
    for_rank._started.clear()


def test_a_job_goes_on_without_a_leaf_that_cannot_take_it(
    above: Above, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(for_rank.VARIABLE, "leaf")
    nowhere = Ports((LOOPBACK, 9), (LOOPBACK, 9), 9)
    meeting = Meeting(above.address, nowhere)
    try:
        with joined(above.server, 2, monkeypatch) as ranks:
            assert not any(comm.membership.by_leaf for comm in ranks)
            all_reduce(ranks)
    finally:
        meeting.close()
    assert capsys.readouterr().err.count("job 'job' does not use the leaf of this host") == 2
    assert f"the leaf at {LOOPBACK}:9 is not used, its ranks send to the switch above" in above.log.read_text()


def test_a_leaf_without_a_parameter_server_or_beside_another_says_so(above: Above) -> None:
    above.leaf()

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "sa_atp", "leaf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == ""
        return done.returncode, done.stderr

    assert run("--up", above.server) == (
        2, f"sa-atp: a leaf below {above.server} runs on this host already: its ranks find that one\n",
    )  # fmt: skip
    status, said = run("--up", f"{LOOPBACK}:9")
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith(f"sa-atp: no parameter server answers at {LOOPBACK}:9")


def test_wrong_words_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(for_rank.VARIABLE, "spine")
    with pytest.raises(UserError, match="SA_ATP_LOCAL=spine: expected leaf or none"):
        for_rank.leaf_for((LOOPBACK, 9))
    monkeypatch.setenv(for_rank.VARIABLE, "leaf")
    monkeypatch.setenv("SA_ATP_SHM", "0")
    with pytest.raises(UserError, match="SA_ATP_LOCAL=leaf with SA_ATP_SHM=0"):
        for_rank.leaf_for((LOOPBACK, 9))


# --- bytes of links ---------------------------------------------------------------------------------------------------

RANK = f"""
import sys, numpy, sa_atp
rank = int(sys.argv[2])
with sa_atp.connect(sys.argv[1], job="bytes", rank=rank, world_size=4, timeout_s=120) as comm:
    for step in range(4):
        tensor = numpy.full({VALUES}, rank + 1.0, numpy.float32)
        comm.all_reduce(tensor, key="tensor")
        assert (tensor == 10).all()
        if step == 0:
            print(int(comm.membership.by_leaf), flush=True)
            sys.stdin.readline()
    print("done", flush=True)
    sys.stdin.readline()
"""


def layout() -> NetworkLayout:
    """Two hosts and a parameter server at a switch; no names that other networks on this machine would have."""
    found = NetworkLayout()
    found.add_switch(SwitchNode(name="trunk1"))
    found.add_host(HostNode(name="box0", ip="10.0.0.1", role="worker", rank=0))
    found.add_host(HostNode(name="box1", ip="10.0.0.2", role="worker", rank=1))
    found.add_host(HostNode(name="psbox", ip="10.0.255.1", role="server"))
    for host in found.hosts:
        found.connect(host, "trunk1", LinkQuality())
    return found


def link_bytes(inside: list[str], interface: str) -> np.ndarray:
    """Bytes that an interface has sent and received."""
    said = subprocess.run([*inside, "ip", "-s", "-j", "link", "show", interface], capture_output=True, check=True)
    counted = json.loads(said.stdout)[0]["stats64"]
    return np.array([counted["tx"]["bytes"], counted["rx"]["bytes"]])


@pytest.mark.parametrize(("here", "everywhere", "share"), [("2", "4", True), ("2", "2", False), ("1", "4", False)])
def test_a_host_with_all_ranks_or_one_has_no_use_for_a_leaf(
    here: str, everywhere: str, share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    monkeypatch.setenv("WORLD_SIZE", everywhere)
    assert for_rank._ranks_share_hosts() is share


@pytest.mark.parametrize(("local", "tensors"), [("", 1.0), ("none", 2.0)], ids=["leaf", "none"])
@MININET
def test_mininet_bytes_on_the_links_of_hosts_with_two_ranks(local: str, tensors: float, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(
            MininetNetwork(layout(), switch="embedded", lanes=LANES, slots=1024, slots_per_job=1024, logs=tmp_path)
        )
        server = network.start_server()
        names = [host.name for host in network.layout.workers()]
        hosts = [list(network.node(name).inside()) for name in names]
        environment = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", for_rank.VARIABLE: local}
        group = stack.enter_context(Group())
        ranks = [
            group.start(
                f"rank {rank}", [RANK, server, str(rank)], tmp_path / f"rank{rank}.log", environment,
                program=(sys.executable, "-c"), inside=hosts[rank // 2],
            )
            for rank in range(4)
        ]  # fmt: skip
        links = [(host, f"{name}-eth0") for host, name in zip(hosts, names, strict=True)]
        assert [rank.line(READY_TIMEOUT_S) for rank in ranks] == ["0" if local else "1"] * 4
        before = [link_bytes(*link) for link in links]
        for rank in ranks:
            rank.say("go on")
        assert [rank.line(READY_TIMEOUT_S) for rank in ranks] == ["done"] * 4
        for link, earlier in zip(links, before, strict=True):
            up, down = (link_bytes(*link) - earlier) / (3 * 4 * VALUES)
            assert tensors <= up < tensors + 0.5, (up, down)  # headers are 8 % of the values
            assert tensors <= down < tensors + 0.5, (up, down)
        for rank in ranks:
            rank.say("end")
