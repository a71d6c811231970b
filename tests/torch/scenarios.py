"""What ranks do in tests: each function runs on every rank of a process group and returns something that JSON can hold."""

import contextlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sa_atp.ddp import SaAtpState, sa_atp_hook


class Branches(nn.Module):
    """A perceptron with a branch that is only used in every other step; `width` 512 gives 2.2 MB of gradients."""

    def __init__(self, width: int, *, branch: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.branch = nn.Linear(width, width) if branch else None
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, use_branch: bool = False) -> torch.Tensor:
        x = self.body(x)
        if self.branch is not None and use_branch:
            x = torch.tanh(self.branch(x))
        found: torch.Tensor = self.head(x)
        return found


def loss_curve(
    rank: int,
    world_size: int,
    *,
    hook: bool,
    steps: int = 200,
    width: int = 128,
    bucket_mb: float = 25.0,
    accumulate: int = 1,
    unused: bool = False,
    bucket_view: bool = False,
    static: bool = False,
) -> list[float]:
    """Trains a small model with DDP; returns the mean loss of each step."""
    torch.manual_seed(3)
    model = DDP(
        Branches(width, branch=unused),
        bucket_cap_mb=bucket_mb,
        find_unused_parameters=unused,
        gradient_as_bucket_view=bucket_view,
        static_graph=static,
    )
    state = SaAtpState.from_env() if hook else None
    if state is not None:
        model.register_comm_hook(state, sa_atp_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        total = torch.zeros(())
        for part in range(accumulate):
            x = torch.randn(8, 16, generator=generator)
            y = torch.tanh(x[:, :1] - x[:, 1:2])
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                # which ranks use the branch changes from step to step; in some steps none does
                output = model(x, use_branch=(step + rank) % 3 == 0) if unused else model(x)
                loss = nn.functional.mse_loss(output, y) / accumulate
                loss.backward()
            total += loss.detach()
        optimiser.step()
        dist.all_reduce(total)
        losses.append(float(total) / world_size)
    if state is not None:
        state.close()
    return losses
