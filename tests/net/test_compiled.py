"""Compilation: none happens after a connection has joined its job."""

import json
import subprocess
import sys
from pathlib import Path

from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group

RANKS = 2
# in a process of its own, where nothing has been loaded yet
PROGRAM = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from numba.core import event
from sa_atp.net.loop import compiled
from sa_atp.net.connecting import connect

class Heard(event.Listener):
    names = []
    def on_start(self, event):
        self.names.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass

kept = (compiled._worker_kernels, compiled._socket_kernels, compiled._steady_kernels, compiled._steady_loop)
compiled.connection_kernels()
before = [each.cache_info().misses for each in kept]
event.register("numba:compile", Heard())

def rank(number, ranks):
    with connect(sys.argv[1], job="compiled", rank=number, world_size=ranks) as comm:
        turns = []
        run = comm._driver.steady._run
        comm._driver.steady._run = lambda *args: turns.append(run(*args))
        array = np.ones(1 << 20, np.float32)
        for _ in range(3):
            comm.all_reduce(array, key="large")
            array[:] = 1
        return len(turns)

ranks = int(sys.argv[2])
with ThreadPoolExecutor(ranks) as pool:
    turns = list(pool.map(rank, range(ranks), [ranks] * ranks))
after = [each.cache_info().misses for each in kept]
print(json.dumps({"before": before, "after": after, "compiled": Heard.names, "turns": turns}))
"""


def test_a_connection_compiles_and_loads_nothing_once_its_kernels_are_there(tmp_path: Path) -> None:
    with Group() as group:
        host, port = LocalCluster(group, tmp_path, lanes=64, slots=1024).ready()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"udp://{host}:{port}", str(RANKS)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(turns > 0 for turns in found["turns"])  # the compiled loop has run
    assert found["before"] == found["after"] == [1, 1, 1, 1]
    assert found["compiled"] == []
