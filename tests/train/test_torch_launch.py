"""torchrun on two hosts: a rank is killed in the middle of a step, both nodes restart, and training goes on.

Once they are two nodes on one machine, and once, where Mininet is, hosts of it: their only way to each other leads through
the switch, also for torchrun and Gloo.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.needs import MININET
from rank_pool import HERE, Ranks, free_port
from restarting import STEPS

from sa_atp.cli.parts.torchrun import OWN_STORE, warning
from sa_atp.lab.backends.mininet.layout import HostNode, LinkQuality, NetworkLayout, SwitchNode
from sa_atp.lab.backends.mininet.network import MininetNetwork

SCRIPT = HERE / "restarting.py"
LIMIT_S = 180.0


@dataclass
class Host:
    address: str
    interface: str
    inside: tuple[str, ...] = ()
    """What to put before a command, so that it runs there."""


@contextlib.contextmanager
def two_hosts(where: str, ranks: Ranks, logs: Path) -> Iterator[tuple[str, list[Host]]]:
    """Gives the parameter server's address, and the hosts. Args: where: "loopback" or "mininet"."""
    if where == "loopback":
        yield ranks.server, [Host("127.0.0.1", "lo")] * 2
        return
    with MininetNetwork(layout(), switch="embedded", lanes=256, slots=1024, slots_per_job=1024, logs=logs) as network:
        yield (
            network.start_server(),
            [
                Host(host.ip, f"{host.name}-eth0", tuple(network.node(host.name).inside()))
                for host in network.layout.workers()
            ],
        )


def layout() -> NetworkLayout:
    """Two hosts and a parameter server at a switch; no names that other networks on this machine would have."""
    found = NetworkLayout()
    found.add_switch(SwitchNode(name="hub1"))
    found.add_host(HostNode(name="node0", ip="10.0.0.1", role="worker", rank=0))
    found.add_host(HostNode(name="node1", ip="10.0.0.2", role="worker", rank=1))
    found.add_host(HostNode(name="server", ip="10.0.255.1", role="server"))
    for host in found.hosts:
        found.connect(host, "hub1", LinkQuality())
    return found


@contextlib.contextmanager
def torchrun(host: Host, arguments: list[str], environment: dict[str, str], log: Path) -> "Iterator[Any]":
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*host.inside, sys.executable, "-m", "torch.distributed.run", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": host.interface, **environment},
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            os.killpg(process.pid, signal.SIGKILL)  # the ranks as well
            process.wait()


@pytest.mark.parametrize("where", ["loopback", pytest.param("mininet", marks=MININET)])
def test_two_nodes_go_on_from_the_checkpoint(where: str, ranks: Ranks, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = ranks.run("train", 2, module="restarting", directory=str(whole))
    with contextlib.ExitStack() as stack:
        server, hosts = stack.enter_context(two_hosts(where, ranks, tmp_path))
        environment = {
            "SA_ATP_SERVER": server,
            "SA_ATP_JOB": "two hosts",
            "KILLS": "1:3",
            OWN_STORE: "1",
        }
        meeting = f"{hosts[0].address}:{free_port()}"
        nodes = [
            stack.enter_context(
                torchrun(
                    host,
                    [
                        "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--rdzv-id", "two-hosts",
                        "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--local-addr", host.address,
                        # these hosts share one name, by which torchrun would find out who keeps the store
                        "--rdzv-conf", f"is_host={int(number == 0)}", str(SCRIPT), str(broken),
                    ],
                    environment,
                    tmp_path / f"node{number}.log",
                )
            )
            for number, host in enumerate(hosts)
        ]  # fmt: skip
        for number, node in enumerate(nodes):
            assert node.wait(LIMIT_S) == 0, (tmp_path / f"node{number}.log").read_text()[-4000:]
    assert (broken / "died-1-3").exists()
    found = [json.loads((broken / f"done-{rank}").read_text()) for rank in range(2)]
    assert [f["first"] for f in found] == [3, 3], "steps 0 to 2 were saved before the step that failed"
    assert found[0]["losses"] == pytest.approx(expected[0], rel=1e-6)
    assert found[0]["losses"] == found[1]["losses"]


def test_ranks_are_killed_under_sa_atp_up(ranks: Ranks, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = ranks.run("train", 2, module="restarting", directory=str(whole))
    draw = random.Random(5)
    kills = [(draw.randrange(2), step) for step in sorted(draw.sample(range(STEPS), 2))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KILLS": " ".join(f"{rank}:{step}" for rank, step in kills)}
    environment.pop(OWN_STORE, None)
    done = subprocess.run(
        [
            sys.executable, "-m", "sa_atp", "up", "--", sys.executable, "-m", "torch.distributed.run",
            "--nproc-per-node", "2", "--max-restarts", "2", str(SCRIPT), str(broken),
        ],
        env=environment, capture_output=True, text=True, check=False, timeout=3 * LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert all((broken / f"died-{rank}-{step}").exists() for rank, step in kills)
    found = [json.loads((broken / f"done-{rank}").read_text()) for rank in range(2)]
    assert [each["first"] for each in found] == [kills[-1][1]] * 2
    for each in found:
        assert each["losses"] == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        ("torchrun --max-restarts 2 --master-port 29501 train.py", "--standalone in place of --master-port"),
        ("/bin/torchrun --nnodes=2 --max_restarts=1 train.py", "--rdzv-backend c10d --rdzv-endpoint HOST:PORT"),
        ("python -m torch.distributed.run --nnodes 1:4 --max-restarts 2 train.py", "--rdzv-backend c10d"),
        ("torchrun --max-restarts 2 train.py", None),
        ("torchrun --max-restarts 0 --master-port 29501 train.py", None),
        ("torchrun --standalone --max-restarts 2 --master-port 29501 train.py", None),
        ("torchrun --nnodes 2 --rdzv-backend=c10d --max-restarts 2 train.py", None),
        ("python train.py --max-restarts 2 --nnodes 2", None),
    ],
)
def test_what_a_command_lacks_for_restarts(command: str, lacks: str | None) -> None:
    found = warning(command.split())
    assert found is None if lacks is None else found is not None and lacks in found
