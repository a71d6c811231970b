"""A worker process of the all-reduce benchmark: the same sums over this transport or a peer's."""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.lab import policies
from sa_atp.lab.backends import gloo, worker_process
from sa_atp.lab.backends.peer_sockets import PeerConnection, job_of
from sa_atp.lab.bench import stations
from sa_atp.net.connecting import connect
from sa_atp.net.garbage_collection import freeze_loaded_objects
from sa_atp.net.loop.compiled import connection_kernels

WARM_UP = 3  # sums before the measurement: connections, windows, scales, memory
BLOCK = 1 << 20  # values made or compared at a time: temporary arrays must not count as memory of a sum

Reduce = Callable[[Values], None]
Barrier = Callable[[], None]


def contribution(rank: int, values: int) -> Iterator[Values]:
    """A rank's contribution, float32, in blocks: multiples of 1/256, so that sums are exact."""
    rng = np.random.default_rng([7, rank])
    for first in range(0, values, BLOCK):
        yield (rng.integers(-1000, 1001, min(BLOCK, values - first)) / 256).astype(np.float32)


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Sums an array `iterations` times.

    Returns: seconds of each sum; CPU seconds of this process for all of them, in total and in the kernel; number of wrong
        sums; megabytes of memory: before any array exists, of the benchmark's arrays (tensor, source, expected sum), and
        the peak; with `stations` in the task, the times by station.
    Raises: SaAtpError.
    """
    rank, world_size, values = int(task["rank"]), int(task["world_size"]), int(task["values"])
    if task["transport"] == "gloo":
        gloo.load()
    elif task["transport"] == "sa-atp":
        connection_kernels()
    freeze_loaded_objects()
    before_mb = _peak_mb()
    mine, wanted = np.empty(values, np.float32), np.empty(values, np.float32)
    all_contributions = [contribution(each, values) for each in range(world_size)]
    for first in range(0, values, BLOCK):
        blocks = [next(blocks) for blocks in all_contributions]
        mine[first : first + BLOCK] = blocks[rank]
        wanted[first : first + BLOCK] = np.sum(blocks, axis=0, dtype=np.float64)
    measure = {"gloo": _over_gloo, "sa-atp": _over_sa_atp}.get(task["transport"], _over_peer)
    found = measure(task, lambda reduce, barrier: _measure(int(task["iterations"]), mine, wanted, reduce, barrier))
    memory = {"before_mb": before_mb, "arrays_mb": 3 * mine.nbytes / 1e6, "peak_mb": _peak_mb()}
    return {**found, "memory": memory}


def _peak_mb() -> float:
    """Peak resident memory of this process, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _equal(one: Values, other: Values) -> bool:
    """Compares in blocks: temporary arrays must not count as memory of a sum."""
    blocks = range(0, one.size, BLOCK)
    return all(np.array_equal(one[first : first + BLOCK], other[first : first + BLOCK]) for first in blocks)


def _measure(iterations: int, mine: Values, wanted: Values, reduce: Reduce, barrier: Barrier) -> dict[str, Any]:
    out = np.empty_like(mine)
    seconds, cpu_s, kernel_s, wrong = [], 0.0, 0.0, 0
    for n in range(WARM_UP + iterations):
        out[:] = mine
        barrier()
        start, start_cpu, start_kernel = time.perf_counter(), time.process_time(), os.times().system
        reduce(out)
        end, end_cpu, end_kernel = time.perf_counter(), time.process_time(), os.times().system
        if n >= WARM_UP:
            seconds.append(end - start)
            cpu_s += end_cpu - start_cpu
            kernel_s += end_kernel - start_kernel
        wrong += not _equal(out, wanted)
    barrier()
    return {"seconds": seconds, "cpu_s": cpu_s, "kernel_s": kernel_s, "wrong": wrong}


def _over_sa_atp(task: dict[str, Any], measure: Callable[[Reduce, Barrier], dict[str, Any]]) -> dict[str, Any]:
    one = np.zeros(1, np.float32)
    with connect(task["server"], job=task["job"], rank=task["rank"], world_size=task["world_size"]) as comm:
        watched = stations.watch(comm) if task.get("stations") else None
        found: list[stations.StationTimes] = []

        def reduce(array: Values) -> None:
            if watched is not None:
                watched.reset()
            comm.all_reduce(array, key="bench")
            if watched is not None:
                found.append(watched.found())

        result = measure(reduce, lambda: comm.all_reduce(one))
        result |= {"stats": comm.stats().as_dict(), "shares_memory": comm.shares_memory}
        return {**result, "stations": stations.total(found[WARM_UP:])}


def _over_gloo(task: dict[str, Any], measure: Callable[[Reduce, Barrier], dict[str, Any]]) -> dict[str, Any]:
    import torch

    host, port = task["store"]
    with gloo.group((host, port), task["rank"], task["world_size"], task.get("interface")) as dist:
        return measure(lambda array: dist.all_reduce(torch.from_numpy(array)), dist.barrier)


def _over_peer(task: dict[str, Any], measure: Callable[[Reduce, Barrier], dict[str, Any]]) -> dict[str, Any]:
    connection = PeerConnection(policies.peers()[task["transport"]], task["rank"], job_of(task["peer_job"]))
    one = np.zeros(1, np.float32)

    def reduce(array: Values) -> None:
        array[:] = connection.all_reduce(array)

    try:
        found = measure(reduce, lambda: reduce(one))
        return {**found, "stats": {"retransmitted": connection.transport.retransmitted}}
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(worker_process.serve({"all_reduce": run}))
