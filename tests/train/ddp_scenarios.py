"""Scenarios of PyTorch's own tests of DDP communication hooks, through sa_atp_hook; see test_torch_ddp_scenarios.py."""

import contextlib
import copy
import warnings
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


def no_sync(rank: int, world_size: int) -> float:
    """Accumulates locally in every other iteration; compared with a single process that sees all batches."""

    def scaled_hook(state: SaAtpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # a user's hook around ours: what is chained to the future must see its value, and may replace it
        return sa_atp_hook(state, bucket).then(lambda f: f.value() * 2).then(lambda f: f.value() / 2)

    with SaAtpState.from_env() as state:
        torch.manual_seed(31)
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
        alone = copy.deepcopy(model)
        spread = DistributedDataParallel(model)
        spread.register_comm_hook(state, scaled_hook)
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


class _Mixed(nn.Module):
    """Layers of the types that are named, one behind the other."""

    def __init__(self, types: list[str]) -> None:
        super().__init__()
        self.types = [getattr(torch, name) for name in types]
        self.layers = nn.ModuleList(nn.Linear(40, 40, dtype=kind) for kind in self.types)

    def forward(self, x: torch.Tensor, used: int) -> torch.Tensor:
        """Args: used: number of layers, from the last, that are used."""
        for kind, layer in list(zip(self.types, self.layers, strict=True))[-used:]:
            x = torch.tanh(layer(x.to(kind)) / 8)
        return torch.view_as_real(x).double() if x.is_complex() else x.double()


def left_to_group(rank: int, world_size: int, *, types: list[str], mode: str = "") -> dict[str, Any]:
    """Gradients beside DDP's own reduction, with buckets of 3 kB: in every other step without synchronisation
    ("no_sync"), with ranks that do not use all layers ("unused"), or run out of data ("join").

    Returns: by type, the largest difference of gradients, relative to the largest of the type in a step; the warnings.
    """
    torch.manual_seed(0)
    model = _Mixed(types)
    arguments: dict[str, Any] = {"bucket_cap_mb": 0.003, "find_unused_parameters": mode == "unused"}
    plain = DistributedDataParallel(copy.deepcopy(model), **arguments)
    with SaAtpState.from_env() as state, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hooked = _hooked(model, state, **arguments)
        found, expected = (_gradients(net, rank, types, mode) for net in (hooked, plain))
    worst = {}
    for name in types:
        pairs = [(a[name], b[name]) for a, b in zip(found, expected, strict=True) if float(b[name].abs().max())]
        worst[name] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return {"worst": worst, "warned": [str(each.message) for each in caught]}


def _gradients(net: Any, rank: int, types: list[str], mode: str) -> list[dict[str, torch.Tensor]]:
    """The gradients of each step that is synchronised, by type."""
    found = []
    with net.join() if mode == "join" else contextlib.nullcontext():
        for step in range(4 + 2 * rank if mode == "join" else 6):
            x = torch.randn(4, 40, generator=torch.Generator().manual_seed(10 * step + rank))
            used = 1 + (step + rank) % len(types) if mode == "unused" else len(types)
            is_alone = mode == "no_sync" and step % 2 == 0
            with net.no_sync() if is_alone else contextlib.nullcontext():
                net(x, used).square().sum().backward()
            if not is_alone:
                found.append({name: _gradient(net, getattr(torch, name)) for name in types})
                net.zero_grad()
    return found


def _gradient(net: nn.Module, kind: torch.dtype) -> torch.Tensor:
    """All gradients of a type in one, flat; zero where a parameter has none."""
    each = [p.grad if p.grad is not None else torch.zeros_like(p) for p in net.parameters() if p.dtype is kind]
    return torch.cat([gradient.detach().flatten() for gradient in each])


def sparse(rank: int, world_size: int) -> dict[str, Any]:
    """A sparse gradient of an embedding, beside the one of Gloo."""
    torch.manual_seed(0)
    model = nn.Embedding(10, 4, sparse=True)
    plain = DistributedDataParallel(copy.deepcopy(model))
    with SaAtpState.from_env() as state, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hooked = _hooked(model, state)
        for net in (plain, hooked):
            net(torch.tensor([rank, 5])).sum().backward()
        assert hooked.module.weight.grad.is_sparse
        found, expected = (net.module.weight.grad.to_dense().tolist() for net in (hooked, plain))
    return {"found": found, "expected": expected, "warned": [str(each.message) for each in caught]}
