"""Mininet scripts of a user's own, with the parts of sa_atp.mininet."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.needs import MININET

LIMIT_S = 300.0
# TCP between hosts whose interfaces are Mininet's: they leave segments to their interface to cut
SCRIPT = """
import sys, time
from mininet.net import Mininet
from mininet.topo import Topo
from sa_atp.mininet import EmbeddedSwitch, Interface, PlainHost, parameter_server

RECEIVE = "import socket; s = socket.create_server(('', 5000)); print('listens', flush=True); c = s.accept()[0]\\n" \\
    "while c.recv(1 << 16): pass"
SEND = "import socket, sys; c = socket.create_connection((sys.argv[1], 5000), 30); c.sendall(bytes(200_000)); c.close()"

class Pair(Topo):
    def build(self):
        self.addSwitch("s1", lanes=64, folder=sys.argv[1])
        for name in ("ps", "a", "b"):
            self.addLink(self.addHost(name), "s1")

parts = {"intf": Interface} if sys.argv[2] == "ours" else {}
net = Mininet(Pair(), switch=EmbeddedSwitch, host=PlainHost, controller=None, **parts)
net.start()
try:
    with parameter_server(net, "ps"):
        receiver = net["b"].popen(sys.executable, "-c", RECEIVE)
        receiver.stdout.readline()
        sender = net["a"].popen(sys.executable, "-c", SEND, net["b"].IP())
        if parts:
            assert sender.wait() == receiver.wait() == 0
        for line in sys.stdin:  # until the test has seen enough
            pass
        sender.kill()
        receiver.kill()
finally:
    net.stop()
"""


def start(folder: Path, whose: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), whose],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "SA_ATP_SILENCE_S": "1000"},
    )  # fmt: skip


@MININET
def test_what_a_switch_drops_is_told_once_by_the_script(tmp_path: Path) -> None:
    with start(tmp_path, "mininet's") as script:
        assert script.stderr is not None
        said = next(line for line in script.stderr if "dropping" in line)
        _, rest = script.communicate("", LIMIT_S)
    assert said.startswith(
        "sa-atp switch s1: port 2 (s1-eth2): dropping packets longer than 9280 bytes, or TCP segments"
    )
    assert "`ethtool --offload INTERFACE tso off gso off`" in said
    assert "`intf=Interface` of sa_atp.mininet" in said
    assert "(s1-eth2): dropping" not in rest
    assert script.returncode == 0


@MININET
def test_with_interfaces_of_ours_nothing_is_dropped(tmp_path: Path) -> None:
    with start(tmp_path, "ours") as script:
        _, said = script.communicate("", LIMIT_S)
    assert script.returncode == 0, said
    assert "dropping" not in said
