"""What ranks do in tests: each function runs on every rank of a process group and returns something that JSON can hold."""

import contextlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.train import abandon
from sa_atp.train.backup import BackupCompute


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
    model = DistributedDataParallel(
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


class Emulated(nn.Module):
    """A model whose every sample takes its time, as on a device that is slow."""

    def __init__(self, model: nn.Module, seconds_per_sample: float) -> None:
        super().__init__()
        self.model = model
        self.seconds_per_sample = seconds_per_sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        abandon.sleep(self.seconds_per_sample * len(x))
        found: torch.Tensor = self.model(x)
        return found


def straggler(
    rank: int,
    world_size: int,
    *,
    help: str,
    micro_batches: int = 1,
    steps: int = 15,
    seconds: float = 0.1,
    slow_rank: int = 3,
    norm: bool = False,
) -> dict[str, Any]:
    """Trains with one slow rank; returns losses and durations of steps, what each rank did, and the weights' sum."""
    torch.manual_seed(3)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64)] if norm else [nn.Linear(16, 64)]
    body = nn.Sequential(*layers, nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 1))
    slowdown = 4.0 if rank == slow_rank else 1.0
    model = DistributedDataParallel(Emulated(body, seconds / 8 * slowdown), bucket_cap_mb=1)

    def batch_of(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, 16)  # seeded by (step, shard)
        return x, torch.tanh(x[:, :1] - x[:, 1:2])

    state = SaAtpState.from_env(help=help, micro_batches=micro_batches)
    backup = BackupCompute(model, nn.functional.mse_loss, batch_of, state=state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    losses, times = [], []
    for step in range(steps):
        start = time.monotonic()
        optimiser.zero_grad()
        loss = backup.forward_backward(step)
        optimiser.step()
        losses.append(float(loss))
        times.append(time.monotonic() - start)
    state.close()
    return {
        "losses": losses,
        "times": times,
        "stats": backup.stats.as_dict(),
        "state": [float(v.double().sum()) for v in model.module.state_dict().values()],
    }
