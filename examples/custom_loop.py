"""A training loop of one's own, without PyTorch: softmax regression in NumPy, gradients summed by `sa_atp.connect`.

    sa-atp up --workers 2 -- python examples/custom_loop.py --spawn

Without --spawn, every process is one rank, SA_ATP_RANK of SA_ATP_WORLD_SIZE, on whatever machine it runs.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

import sa_atp


def train(rank: int, world_size: int, steps: int) -> list[float]:
    digits = load_digits()
    samples = digits.data.astype(np.float32) / 16
    targets = np.eye(10, dtype=np.float32)[digits.target]
    rng = np.random.default_rng(rank)
    weights = np.zeros((64, 10), np.float32)
    losses = []
    with sa_atp.connect(
        os.environ["SA_ATP_SERVER"], job=os.environ["SA_ATP_JOB"], rank=rank, world_size=world_size
    ) as comm:
        for _ in range(steps):
            rows = rng.integers(0, len(samples), 64)
            scores = samples[rows] @ weights
            chances = np.exp(scores - scores.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            loss = np.array([-np.log((chances * targets[rows]).sum(1)).mean()], np.float32)
            gradient = samples[rows].T @ (chances - targets[rows]) / len(rows)
            # both sums run concurrently; a key lets a sum's scale be predicted from the last one
            pending = [comm.all_reduce_async(gradient, key="gradient"), comm.all_reduce_async(loss, key="loss")]
            for future in pending:
                future.result()
            weights -= 0.5 * gradient / world_size
            losses.append(float(loss[0]) / world_size)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--spawn", action="store_true", help="start all ranks on this machine")
    parser.add_argument("--json", action="store_true", help="end with rank 0's losses as one JSON object")
    options = parser.parse_args()
    world_size = int(os.environ["SA_ATP_WORLD_SIZE"])
    if options.spawn:
        arguments = [sys.executable, __file__, "--steps", str(options.steps), *["--json"] * options.json]
        ranks = [
            subprocess.Popen(arguments, env={**os.environ, "SA_ATP_RANK": str(rank)}) for rank in range(world_size)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
    rank = int(os.environ["SA_ATP_RANK"])
    losses = train(rank, world_size, options.steps)
    if rank == 0:
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {options.steps} steps", flush=True)
        if options.json:
            print(json.dumps({"losses": losses}), flush=True)


if __name__ == "__main__":
    main()
