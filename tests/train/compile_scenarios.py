"""The ranks' programs in tests of compiled programs. The compilers that are used need no C++ compiler on the machine."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook


def ddp(rank: int, world_size: int, *, compiler: str, hook: bool = False, autograd: bool = False) -> list[float]:
    """A few steps of a compiled model, with buckets that are built anew after the first.

    Args: compiler: "" for none; autograd: the backward pass is compiled as well.
    Returns: the loss of each step.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 8))
    model: Any = DistributedDataParallel(layers, bucket_cap_mb=1.5)
    state = SaAtpState.from_env() if hook else None
    if state is not None:
        model.register_comm_hook(state, sa_atp_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with torch._dynamo.config.patch(compiled_autograd=autograd):
        step = torch.compile(model, backend=compiler) if compiler else model
        for number in range(4):
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * number + rank))
            optimiser.zero_grad()
            loss = step(x).square().mean()
            loss.backward()
            optimiser.step()
            mean = loss.detach().double()
            dist.all_reduce(mean)
            losses.append(float(mean) / world_size)
    if state is not None:
        state.close()
    return losses


def collectives(rank: int, world_size: int, *, compiler: str) -> list[float]:
    """Sums within one compiled function, and one in place."""
    torch._dynamo.reset()
    group: Any = dist.group.WORLD

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = functional.all_reduce(2 * x, "sum", group)
        largest = functional.all_reduce(x[:4], "max", group)
        return doubled, largest, functional.reduce_scatter_tensor(x, "sum", 0, group)

    def in_place(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    x = torch.arange(1000.0) + rank
    found = [*torch.compile(work, backend=compiler, fullgraph=True)(x.clone())]
    found.append(torch.compile(in_place, backend=compiler)(x.clone()))
    return [float(each.sum()) for each in found]
