"""One worker of the all-reduce benchmark, as a process: the same sums, over this transport or over a peer's."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sa_atp.arrays import Values
from sa_atp.net.communicator import connect
from sa_atp.testbed import gloo, worker

WARM_UP = 2  # sums before the measurement: connections, windows, scales

Reduce = Callable[[Values], None]
Barrier = Callable[[], None]


def contribution(rank: int, values: int) -> Values:
    """What a rank contributes: float32[values], multiples of 1/256, so that every sum of them is exact."""
    integers = np.random.default_rng([7, rank]).integers(-1000, 1001, values)
    return (integers / 256).astype(np.float32)


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Sums an array `iterations` times.

    Returns: seconds of each sum, CPU seconds of this process for all of them, those of the kernel among them, and how many
    sums were wrong.
    Raises: SaAtpError.
    """
    rank, world_size, values = int(task["rank"]), int(task["world_size"]), int(task["values"])
    mine = contribution(rank, values)
    expected = mine.astype(np.float64)
    for other in range(world_size):
        if other != rank:
            expected += contribution(other, values)
    wanted = expected.astype(np.float32)
    measure = _over_gloo if task["transport"] == "gloo" else _over_sa_atp
    return measure(task, lambda reduce, barrier: _measure(int(task["iterations"]), mine, wanted, reduce, barrier))


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
        wrong += not np.array_equal(out, wanted)
    barrier()
    return {"seconds": seconds, "cpu_s": cpu_s, "kernel_s": kernel_s, "wrong": wrong}


def _over_sa_atp(task: dict[str, Any], measure: Callable[[Reduce, Barrier], dict[str, Any]]) -> dict[str, Any]:
    one = np.zeros(1, np.float32)
    with connect(task["server"], job=task["job"], rank=task["rank"], world_size=task["world_size"]) as comm:
        result = measure(lambda array: comm.all_reduce(array, key="bench"), lambda: comm.all_reduce(one))
        return {**result, "stats": comm.stats().as_dict()}


def _over_gloo(task: dict[str, Any], measure: Callable[[Reduce, Barrier], dict[str, Any]]) -> dict[str, Any]:
    import torch

    host, port = task["store"]
    with gloo.group((host, port), task["rank"], task["world_size"], task.get("interface")) as dist:
        return measure(lambda array: dist.all_reduce(torch.from_numpy(array)), dist.barrier)


if __name__ == "__main__":
    sys.exit(worker.serve({"all_reduce": run}))
