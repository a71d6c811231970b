"""Two hosts, each a torchrun node in a network namespace of its own; switch and parameter server on a third."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "restarting.py"
NETWORK = "10.93.7"
LIMIT_S = 180.0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """The first one is the switch's, with a bridge to which the others are attached. Host n has the address NETWORK.n."""
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        switch, *hosts = names
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "address", "add", f"{NETWORK}.254/24", "dev", "br0")
        ip("-n", switch, "link", "set", "br0", "up")
        for number, host in enumerate(hosts, start=1):
            port = f"port{number}"
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
            ip("-n", host, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
        yield
    finally:
        for name in made:
            ip("netns", "delete", name)


@contextlib.contextmanager
def started(namespace: str, arguments: list[str], log: Path, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-m", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is missing: apt-get install iproute2"
    name = f"sa-atp-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"no network namespaces here: {tried.stderr.strip()}"
    ip("netns", "delete", name)
    return None


def test_two_nodes_train(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    switch, *hosts = names = [f"sa-atp-{os.getpid()}-{n}" for n in ("s", "1", "2")]
    with contextlib.ExitStack() as stack:
        stack.enter_context(namespaces(*names))
        up = stack.enter_context(
            started(switch, ["sa_atp", "up", "--listen", f"{NETWORK}.254:0", "--json"], tmp_path / "up.log")
        )
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, (tmp_path / "up.log").read_text()
        environment = json.loads(line)["environment"]
        nodes = [
            stack.enter_context(
                started(
                    host,
                    [
                        "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "two-hosts",
                        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{NETWORK}.1:29400",
                        # hosts of one machine share its name, by which torchrun would find out who keeps the store
                        "--rdzv-conf", f"is_host={int(number == 1)}", "--local-addr", f"{NETWORK}.{number}",
                        str(SCRIPT), str(tmp_path),
                    ],
                    tmp_path / f"node{number}.log",
                    GLOO_SOCKET_IFNAME="eth0",
                    **environment,
                )
            )
            for number, host in enumerate(hosts, start=1)
        ]  # fmt: skip
        for number, node in enumerate(nodes, start=1):
            node.communicate(timeout=LIMIT_S)
            assert node.returncode == 0, (tmp_path / f"node{number}.log").read_text()[-4000:]
    answers = [json.loads((tmp_path / f"done-{rank}").read_text()) for rank in range(2)]
    assert answers[0]["losses"] == answers[1]["losses"]
    assert answers[0]["losses"][-1] < answers[0]["losses"][0]
