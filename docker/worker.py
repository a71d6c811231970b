"""A worker of docker-compose.yml: sums arrays with the other ranks through the switch, and checks every value.

A stand-in for a training program, and a test of a deployment. Where to join comes from the environment, as `sa-atp up`
prints it: SA_ATP_SERVER, SA_ATP_JOB, SA_ATP_WORLD_SIZE and SA_ATP_RANK. SUMS and VALUES say how much to do.
"""

import os
import sys
import time

import numpy as np

import sa_atp


def array_of(rank: int, turn: int, values: int) -> np.ndarray:
    """What a rank contributes; whole numbers, so that sums of float32 are exact."""
    return np.random.default_rng([rank, turn]).integers(-1000, 1001, values).astype(np.float32)


def main() -> int:
    rank, world_size = int(os.environ["SA_ATP_RANK"]), int(os.environ["SA_ATP_WORLD_SIZE"])
    sums, values = int(os.environ.get("SUMS", "50")), int(os.environ.get("VALUES", "250000"))
    server, job = os.environ["SA_ATP_SERVER"], os.environ.get("SA_ATP_JOB", "default")
    wrong = 0
    with sa_atp.connect(server, job=job, rank=rank, world_size=world_size, timeout_s=120) as comm:
        started = time.monotonic()
        for turn in range(sums):
            array = array_of(rank, turn, values)
            comm.all_reduce(array, key="worker")
            expected = sum(array_of(other, turn, values) for other in range(world_size))
            wrong += not np.array_equal(array, expected)
        seconds = time.monotonic() - started
    print(f"rank {rank}: {sums} sums of {values} values with {world_size} ranks in {seconds:.1f} s, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
