"""A script for torchrun: trains with the hook, and saves everything after every step. Ranks kill
themselves in the middle of backward passes, as KILLS says: "1:3 0:5" is rank 1 in step 3, and rank 0 in step 5, each once.

Arguments: folder for checkpoints, logs and proofs.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook

STEPS = 6


def deadly_hook(context: tuple[SaAtpState, list[bool]], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Dies after the first bucket of the fatal step has left, so that the sums of the step are partly there."""
    state, armed = context
    future = sa_atp_hook(state, bucket)
    if armed[0]:
        time.sleep(0.1)  # the connection's thread sends
        os.kill(os.getpid(), signal.SIGKILL)
    return future


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size(), sys.argv[1])
    dist.destroy_process_group()


def train(rank: int, world_size: int, directory: str) -> list[float]:
    """Returns: the mean loss of each step, from the first, whoever computed it."""
    folder = Path(directory)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), bucket_cap_mb=0.001)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    path = folder / "checkpoint"
    first = 0
    losses: list[float] = []
    if path.exists():
        saved: dict[str, Any] = torch.load(path, weights_only=False)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state, first, losses = saved["state"], saved["step"] + 1, saved["losses"]
    else:
        state = SaAtpState.from_env()
    armed = [False]
    model.register_comm_hook((state, armed), deadly_hook)
    kills = os.environ.get("KILLS", "").split()
    for step in range(first, STEPS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(4, 64, generator=generator)
        optimiser.zero_grad()
        loss = model(x).square().mean()
        dead = folder / f"died-{rank}-{step}"
        if f"{rank}:{step}" in kills and not dead.exists():
            dead.touch()
            armed[0] = True
        try:
            loss.backward()
        except RuntimeError as error:
            (folder / f"error-{rank}").write_text(str(error))
            raise
        optimiser.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(float(mean) / world_size)
        if rank == 0:
            partial = folder / "partial"
            torch.save(
                {
                    "model": model.state_dict(), "optimiser": optimiser.state_dict(), "state": state, "step": step,
                    "losses": losses,
                },
                partial,
            )  # fmt: skip
            partial.rename(path)
        dist.barrier()
    epoch = state.communicator.membership.epoch
    (folder / f"done-{rank}").write_text(json.dumps({"losses": losses, "first": first, "epoch": epoch}))
    state.close()
    return losses


if __name__ == "__main__":
    main()
