"""Scenarios of PyTorch's own tests of DDP communication hooks, through sa_atp_hook; see test_torch_ddp_scenarios.py."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.distributed.optim.functional_sgd import _FunctionalSGD
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sa_atp.ddp import SaAtpState, sa_atp_hook


def _hooked(model: nn.Module, state: SaAtpState, **arguments: Any) -> Any:
    found = DistributedDataParallel(model, **arguments)
    found.register_comm_hook(state, sa_atp_hook)
    return found


def _difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference between the gradients of two models."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p.grad - q.grad).abs().max()) for p, q in pairs if p.grad is not None and q.grad is not None)


def parity(rank: int, world_size: int, *, iterations: int) -> float:
    """Rank-dependent input, the same gradient in every iteration: equal to the mean, and to DDP's own reduction."""
    with SaAtpState.from_env() as state:
        model = nn.Linear(1, 5, bias=False)
        hooked, plain = _hooked(copy.deepcopy(model), state), DistributedDataParallel(model)
        worst = 0.0
        expected = sum(range(world_size)) / world_size
        for _ in range(iterations):
            for net in (hooked, plain):
                net.zero_grad()
                net(torch.full((1, 1), float(rank))).sum().backward()
            worst = max(worst, _difference(hooked, plain), abs(float(hooked.module.weight.grad[0, 0]) - expected))
        return worst


def no_sync(rank: int, world_size: int, *, then: bool) -> float:
    """Accumulates locally in every other iteration; compared with a single process that sees all batches."""

    def scaled_hook(state: SaAtpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # a user's hook around ours: what is chained to the future must see its value, and may replace it
        return sa_atp_hook(state, bucket).then(lambda f: f.value() * 2).then(lambda f: f.value() / 2)

    with SaAtpState.from_env() as state:
        torch.manual_seed(31)
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
        alone = copy.deepcopy(model)
        spread = DistributedDataParallel(model)
        spread.register_comm_hook(state, scaled_hook if then else sa_atp_hook)
        worst = 0.0
        for iteration in range(6):
            torch.manual_seed(1337 + iteration)
            x, y = torch.randn(world_size * 3, 10), torch.randn(world_size * 3, 3)
            own = slice(rank * 3, rank * 3 + 3)
            nn.functional.mse_loss(alone(x), y).backward()
            if iteration % 2 == 0:
                with spread.no_sync():
                    nn.functional.mse_loss(spread(x[own]), y[own]).backward()
                continue
            nn.functional.mse_loss(spread(x[own]), y[own]).backward()
            worst = max(worst, _difference(alone, spread))
            with torch.no_grad():
                for net in (alone, spread):
                    for parameter in net.parameters():
                        assert parameter.grad is not None
                        parameter.sub_(0.1 * parameter.grad)
                        parameter.grad = None
        return worst


def uneven_inputs(rank: int, world_size: int) -> dict[str, Any]:
    """Ranks run out of data at different times, inside `join`. Returns: what the last gradient is divided by, weights."""
    with SaAtpState.from_env() as state:
        model = _hooked(nn.Linear(1, 1, bias=False), state, bucket_cap_mb=1)
        with torch.no_grad():
            model.module.weight.fill_(1.0)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.125)
        seen = 0
        with model.join():
            for _ in range(3 + 2 * rank):
                optimiser.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimiser.step()
                seen += 1
        return {"steps": seen, "weight": float(model.module.weight), "shadowed": seen < 3 + 2 * (world_size - 1)}


def checkpointed(rank: int, world_size: int, *, folder: str) -> dict[str, Any]:
    """Saves model, hook and state after some steps, goes on with what was loaded, and compares with never stopping."""
    path = Path(folder) / f"checkpoint-{rank}"
    generator = torch.Generator().manual_seed(rank)
    data = [torch.randn(4, 8, generator=generator) for _ in range(6)]

    def train(model: Any, optimiser: torch.optim.Optimizer, batches: list[torch.Tensor]) -> None:
        for x in batches:
            optimiser.zero_grad()
            model(x).square().mean().backward()
            optimiser.step()

    torch.manual_seed(0)
    state = SaAtpState.from_env()
    model = _hooked(nn.Linear(8, 8), state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimiser, data[:3])
    saved = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "hook": sa_atp_hook, "state": state}
    torch.save(saved, path)
    train(model, optimiser, data[3:])
    state.close()

    loaded = torch.load(path, weights_only=False)
    again = DistributedDataParallel(nn.Linear(8, 8))
    again.register_comm_hook(loaded["state"], loaded["hook"])
    again.load_state_dict(loaded["model"])
    other = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(loaded["optimiser"])
    train(again, other, data[3:])
    loaded["state"].close()
    return {
        "hook": loaded["hook"].__qualname__,
        "difference": max(
            float((a - b).abs().max().detach()) for a, b in zip(model.parameters(), again.parameters(), strict=True)
        ),
    }


def logging_name(rank: int, world_size: int) -> str:
    with SaAtpState.from_env() as state:
        model = _hooked(nn.Linear(1, 1), state)
        name: str = model._get_ddp_logging_data()["comm_hook"]
        return name


def fused_optimiser(rank: int, world_size: int) -> float:
    """The optimiser runs in the backward pass, bucket by bucket, after the hook."""
    with SaAtpState.from_env() as state:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
        fused, plain = (DistributedDataParallel(copy.deepcopy(model)) for _ in range(2))
        functional = _FunctionalSGD([], 1e-2, momentum=0.9, weight_decay=0.01, _allow_empty_param_list=True)
        fused.register_comm_hook(state, _hook_then_optimizer(sa_atp_hook, _OptimizerHookState(functional)))
        optimiser = torch.optim.SGD(plain.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.01)
        for step in range(6):
            x = torch.randn(4, 10, generator=torch.Generator().manual_seed(10 * step + rank))
            for net in (fused, plain):
                net.zero_grad()
                net(x).square().sum().backward()
            optimiser.step()
        pairs = list(zip(fused.parameters(), plain.parameters(), model.parameters(), strict=True))
        assert all(float((a - start).abs().max()) > 1e-3 for a, _, start in pairs), "the optimiser did nothing"
        return max(float((a - b).abs().max().detach()) for a, b, _ in pairs)


class _ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)

    def forward(self, x: torch.Tensor, deep: bool) -> torch.Tensor:
        x = self.first(x)
        return torch.relu(self.second(x)) if deep else torch.relu(x)


def control_flow(rank: int, world_size: int) -> dict[str, Any]:
    """Only rank 1 uses the second layer, then nobody does."""
    with SaAtpState.from_env() as state:
        torch.manual_seed(0)
        model = _ControlFlow()
        plain = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
        hooked = _hooked(model, state, find_unused_parameters=True)
        worst = 0.0
        for _ in range(4):
            for net in (plain, hooked):
                net.zero_grad()
                net(torch.full((2, 10), 1.0 + rank), rank == 1).sum().backward()
            worst = max(worst, _difference(plain, hooked))
        hooked.zero_grad(set_to_none=True)
        hooked(torch.ones(2, 10), False).sum().backward()
        return {"difference": worst, "left_alone": hooked.module.second.weight.grad is None}


class _Shared(nn.Module):
    """Two layers with one weight, behind activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False)
        found: torch.Tensor = self.second(torch.tanh(x))
        return found


def shared_weights(rank: int, world_size: int) -> float:
    with SaAtpState.from_env() as state:
        torch.manual_seed(0)
        model = _Shared()
        plain = DistributedDataParallel(copy.deepcopy(model), static_graph=True)
        hooked = _hooked(model, state, static_graph=True)
        worst = 0.0
        for step in range(4):
            x = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + rank), requires_grad=False)
            for net in (plain, hooked):
                net.zero_grad()
                net(x).square().sum().backward()
            worst = max(worst, _difference(plain, hooked) / 100)
        return worst
