"""A path whose MTU is lowered while a job runs: the kernel refuses longer packets, and whoever sends them reports it."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.needs import VETH

from sa_atp.net.shared_memory.open_channel import VARIABLE
from sa_atp.net.sockets import namespace

TIMEOUT_S = 200.0
SCRIPT = """
import subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import sa_atp
from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group
from sa_atp.protocol.job.errors import NarrowPathError

def ip(*words):
    subprocess.run(["ip", "link", "set", "lo", *words], check=True)

def rank(number):
    with sa_atp.connect(server, job="job", rank=number, world_size=2, operation_timeout_s=120) as comm:
        array = np.ones(100_000, np.float32)
        comm.all_reduce(array)
        if number == 0:
            ip("mtu", "1000")
        try:
            for _ in range(1000):
                comm.all_reduce(array)
        except NarrowPathError as error:
            return str(error)

ip("up", "mtu", "1500")
with tempfile.TemporaryDirectory() as folder, Group(together=True) as group:
    server = "udp://{}:{}".format(*LocalCluster(group, Path(folder), lanes=256, slots=1024).ready())
    with ThreadPoolExecutor(2) as pool:
        for said in pool.map(rank, (0, 1)):
            print(said)
"""


@VETH
def test_a_way_that_has_become_too_narrow_is_named_on_every_rank() -> None:
    command = namespace.inside("env", f"{VARIABLE}=0", sys.executable, "-c", SCRIPT)  # packets that have a length
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    one, other = done.stdout.splitlines()
    assert one == other
    assert "cannot send packets of 1072 bytes to 127.0.0.1:" in one
    assert one.endswith(": the way carries 1000 now; has an MTU been lowered?")


AT_THE_SWITCH = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[2])
from net.test_switch_loop import running

def mtu(size):
    subprocess.run(["ip", "link", "set", "lo", "up", "mtu", size], check=True)

mtu("1500")
with running(compiled=sys.argv[1] == "compiled") as switch:
    switch.install()
    with switch.device.pipeline.lock:  # contributions have arrived, and the sums have not left
        for rank in range(4):
            switch.contribute(rank, range(3))
        mtu("200")
    found = []
    while not found:
        time.sleep(0.01)
        with switch.device.pipeline.lock:
            found = switch.loop.drops()
    print(*(each.warning() for each in found), sep="\\n")
"""


@VETH
@pytest.mark.parametrize("how", ["compiled", "plain"])
def test_a_switch_says_that_its_packets_are_too_long(how: str) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    command = namespace.inside("env", f"{VARIABLE}=0", sys.executable, "-c", AT_THE_SWITCH, how, tests)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    (said,) = done.stdout.splitlines()
    assert "dropping packets that are longer than the MTU of their way: has an MTU been lowered?" in said
