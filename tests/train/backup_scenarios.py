"""The ranks' programs in tests of BackupCompute."""

import copy
import os
import signal
import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState
from sa_atp.steps.device import Device
from sa_atp.steps.workloads.seeds import seeded
from sa_atp.train import BackupCompute, emulate_device

SAMPLES = 8


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise: seeded by (step, rank) from outside, like augmentation would be."""
    x = torch.randn(SAMPLES, 16)
    return x, torch.tanh(x[:, :1] - x[:, 1:2])


def make_model(kind: str) -> nn.Sequential:
    torch.manual_seed(3)
    if kind == "norm":
        return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1))
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 1))


def slow_rank(
    rank: int,
    world_size: int,
    *,
    help: str,
    micro_batches: int = 1,
    steps: int = 12,
    seconds: float = 0.1,
    slowdown: float = 1.0,
    slow: int = -1,
    kind: str = "dropout",
    streams: bool = True,
) -> dict[str, Any]:
    """Trains while one rank is slower than the others.

    Args:
        seconds: that a shard takes on the others.
        slowdown: how many times as long it takes on the slow one.
        streams: emulate the device from within the forward pass; else with an emulated device, which sends at the end.

    Returns: loss of each step, what this rank did, its weights, and its statistics.
    """
    model = make_model(kind)
    if rank != slow % world_size:
        slowdown = 1.0
    device = None
    if streams:
        emulate_device(model, seconds / SAMPLES, slowdown=slowdown)
    else:
        device = Device(int(seconds / SAMPLES * 1e6))
        device.slowdown = slowdown
    spread = DistributedDataParallel(model)
    state = SaAtpState.from_env(help=help, micro_batches=micro_batches)
    backup = BackupCompute(spread, nn.functional.mse_loss, batch_of, state=state, device=device)
    optimiser = torch.optim.SGD(spread.parameters(), lr=0.05, momentum=0.5)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        losses.append(float(backup.forward_backward(step)))
        optimiser.step()
    state.close()
    return {
        "losses": losses,
        "stats": backup.stats.as_dict(),
        "weights": torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(),
        "statistics": {name: buffer.reshape(-1).tolist() for name, buffer in model.named_buffers()},
    }


def one_long_call(rank: int, world_size: int, *, steps: int, seconds: float) -> dict[str, Any]:
    """The last rank's forward pass is one call, which nothing can stop.

    Returns: how often this rank began a forward pass, its weights, and its optimiser's state.
    """
    model = make_model("dropout")
    begun = 0

    def begins(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal begun
        begun += 1
        if rank == world_size - 1:
            time.sleep(seconds)

    model.register_forward_pre_hook(begins)
    spread = DistributedDataParallel(model)
    state = SaAtpState.from_env(help="clone")
    backup = BackupCompute(spread, nn.functional.mse_loss, batch_of, state=state)
    optimiser = torch.optim.Adam(spread.parameters(), lr=0.01)
    for step in range(steps):
        optimiser.zero_grad()
        backup.forward_backward(step)
        optimiser.step()
    state.close()
    moments = [value for kept in optimiser.state.values() for value in (kept["exp_avg"], kept["exp_avg_sq"])]
    return {
        "begun": begun,
        "weights": torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(),
        "moments": torch.cat([moment.reshape(-1) for moment in moments]).tolist(),
    }


def against_ddp(rank: int, world_size: int, *, micro_batches: int, device: str = "cpu") -> dict[str, float]:
    """The same steps with BackupCompute, nobody being slow, and with DDP over Gloo; differences of gradients and losses."""
    model = make_model("norm" if micro_batches == 1 else "plain").to(device)

    def batch(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch_of(step, shard)
        return x.to(device), y.to(device)

    if micro_batches > 1:
        dropout = model[2]
        assert isinstance(dropout, nn.Dropout)
        dropout.p = 0.0  # masks are drawn for each micro-batch
    plain = DistributedDataParallel(copy.deepcopy(model))
    state = SaAtpState.from_env(help="steal", micro_batches=micro_batches)
    backup = BackupCompute(model, nn.functional.mse_loss, batch, state=state, seed=7)
    worst_gradient = worst_loss = worst_statistics = 0.0
    for step in range(5):
        model.zero_grad()
        plain.zero_grad()
        mean_loss = backup.forward_backward(step)
        total = torch.zeros(())
        for shard in range(world_size):
            if shard == rank:
                with seeded(7, step, shard):
                    x, y = batch(step, shard)
                loss = nn.functional.mse_loss(plain(x), y)
                loss.backward()
                total += loss.detach().cpu()
        torch.distributed.all_reduce(total)
        worst_loss = max(worst_loss, abs(float(total) / world_size - float(mean_loss)))
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            worst_gradient = max(worst_gradient, float((a.grad - b.grad).abs().max()))
            with torch.no_grad():
                a.sub_(0.05 * a.grad)
                b.sub_(0.05 * b.grad)
        if rank == 0:
            for own, other in zip(model.buffers(), plain.module.buffers(), strict=True):
                worst_statistics = max(worst_statistics, float((own - other).abs().max()))
    state.close()
    return {"gradient": worst_gradient, "loss": worst_loss, "statistics": worst_statistics}


def victim(rank: int, world_size: int) -> None:
    """The rank that VICTIM names is killed within a step; the others compute its shards until they are told."""
    model = make_model("dropout")

    def batch(step: int, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
        # from step 3 on: where it is late, others have done its shard of that one
        if step >= 3 and rank == shard == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch_of(step, shard)

    with SaAtpState.from_env(help="clone") as state:
        backup = BackupCompute(model, nn.functional.mse_loss, batch, state=state)
        while True:
            backup.forward_backward()
