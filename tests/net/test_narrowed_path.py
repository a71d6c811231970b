"""A path whose MTU is lowered while a job runs: the kernel refuses longer packets, and every rank reports it."""

import subprocess
import sys

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
