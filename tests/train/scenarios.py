"""What ranks do in the tests of the hook: each function runs on every rank and returns something that JSON can hold."""

import contextlib
import math
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.train.tensor_sums import sum_in_background


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
    device: str = "cpu",
    bits: int = 32,
) -> list[float]:
    """Trains a small model with DDP; returns the mean loss of each step."""
    torch.manual_seed(3)
    model = DistributedDataParallel(
        Branches(width, branch=unused).to(device),
        bucket_cap_mb=bucket_mb,
        find_unused_parameters=unused,
        gradient_as_bucket_view=bucket_view,
        static_graph=static,
    )
    state = SaAtpState.from_env(bits=bits) if hook else None
    if state is not None:
        model.register_comm_hook(state, sa_atp_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = torch.zeros(steps)
    for step in range(steps):
        optimiser.zero_grad()
        for part in range(accumulate):
            x = torch.randn(8, 16, generator=generator).to(device)
            y = torch.tanh(x[:, :1] - x[:, 1:2])
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                # which ranks use the branch changes from step to step; in some steps none does
                output = model(x, use_branch=(step + rank) % 3 == 0) if unused else model(x)
                loss = nn.functional.mse_loss(output, y) / accumulate
                loss.backward()
            losses[step] += loss.detach().cpu()
        optimiser.step()
    dist.all_reduce(losses)
    if state is not None:
        state.close()
    return [float(loss) / world_size for loss in losses]


def gradients(
    rank: int,
    world_size: int,
    *,
    dtype: str,
    wrapper: bool = False,
    nonfinite: str = "raise",
    bad_rank: int = -1,
    device: str = "cpu",
) -> dict[str, object]:
    """One step with integer-valued gradients. Returns: the hook's mean gradient, the expected one, the bucket's type."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = DistributedDataParallel(nn.Linear(40, 30, bias=False).to(device, kind))
    state = SaAtpState.from_env(nonfinite=nonfinite)
    model.register_comm_hook(state, fp16_compress_wrapper(sa_atp_hook) if wrapper else sa_atp_hook)
    # the gradient of row i, column j is rank + j
    x = (torch.arange(40) + rank).to(device, kind)
    if rank == bad_rank:
        x[3] = float("inf")
    weights = torch.ones(1, 30, dtype=kind, device=device)
    (model(x[None]) * weights).sum().backward()
    found = next(model.parameters()).grad
    assert found is not None
    expected = torch.arange(40).float() + (world_size - 1) / 2
    state.close()
    return {
        "found": [float(v) for v in found[0]],
        "expected": expected.tolist(),
        "same_rows": bool((found == found[0]).all()),
        "finite": bool(torch.isfinite(found).all()),
        "dtype": str(found.dtype),
    }


def spread(rank: int, world_size: int, *, magnitude: float, keyed: bool) -> list[list[str]]:
    """Rank 0 has a NaN in the second of three sums, beside large values of the others. Returns: what each sum has."""
    state = SaAtpState.from_env(nonfinite="spread")
    found = []
    for step in range(3):
        tensor = torch.full((1000,), magnitude)
        if rank == 0 and step == 1:
            tensor[3] = float("nan")
        sum_in_background(state, tensor, key="key" if keyed else None, scale=1.0 / world_size).wait()
        found.append([f"{value:.4g}" for value in tensor.unique().tolist()[:2]])
    state.close()
    return found


def in_pairs(
    rank: int, world_size: int, *, steps: int = 6, values: int = 30_000, nonfinite: str = "raise", bad_step: int = -1
) -> dict[str, list[object]]:
    """Sums with 16 bits, of gradients that change little from step to step; the last rank's has an infinity in one step.

    Returns: of each step: packets that this rank sent, the error relative to the largest mean, a digest of the mean.
    """
    found: dict[str, list[object]] = {"sent": [], "error": [], "digest": []}
    with SaAtpState.from_env(bits=16, nonfinite=nonfinite) as state:
        for step in range(steps):
            parts = [_drawn(step, each, values) for each in range(world_size)]
            expected = torch.stack(parts).mean(0)
            tensor = parts[rank]
            if step == bad_step and rank == world_size - 1:
                tensor[3] = float("inf")
            before = state.communicator.stats().fragments_sent
            codec = state.codec_of("key", values)
            sum_in_background(state, tensor, key="key", scale=1.0 / world_size, codec=codec).wait()
            found["sent"].append(state.communicator.stats().fragments_sent - before)
            error = float((tensor - expected).abs().max() / expected.abs().max())
            found["error"].append("nan" if math.isnan(error) else error)
            found["digest"].append(sha256(tensor.numpy().tobytes()).hexdigest())
    return found


def _drawn(step: int, rank: int, values: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(values, generator=generator) * torch.logspace(-6, 0, values)


def two_models(rank: int, world_size: int, *, hook: bool) -> list[float]:
    """Two models that are trained in turns, as in a GAN; with the hook they share its state. Returns: losses of both."""
    torch.manual_seed(3)
    models = [DistributedDataParallel(Branches(width, branch=False)) for width in (64, 96)]
    state = SaAtpState.from_env() if hook else None
    if state is not None:
        for model in models:
            model.register_comm_hook(state, sa_atp_hook)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    generator = torch.Generator().manual_seed(100 + rank)
    losses = torch.zeros(2 * 20)
    for step in range(len(losses)):
        x = torch.randn(8, 16, generator=generator)
        optimisers[step % 2].zero_grad()
        loss = nn.functional.mse_loss(models[step % 2](x), torch.tanh(x[:, :1])) * (1.0 if step % 2 else 1e4)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(models[step % 2].parameters(), 1.0)
        optimisers[step % 2].step()
        losses[step] = loss.detach()
    dist.all_reduce(losses)
    if state is not None:
        state.close()
    return losses.tolist()
