"""The ranks' programs in tests of balanced batches."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

from sa_atp.basics.errors import UserError
from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.protocol.batches.orchestrator import Measured
from sa_atp.train import BalancedBatches, emulate_device


def make_dataset(samples: int = 200) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 16, generator=generator)
    return TensorDataset(x, torch.tanh(x[:, :1] - x[:, 1:2]))


class AheadOf(Sampler[list[int]]):
    """Draws batches as a DataLoader with processes of its own does, which the ranks of these tests may not have."""

    def __init__(self, batches: BalancedBatches, ahead: int) -> None:
        self._batches = batches
        self._ahead = ahead

    def __iter__(self) -> Iterator[list[int]]:
        drawn: deque[list[int]] = deque()
        for batch in self._batches:
            drawn.append(batch)
            if len(drawn) > self._ahead:
                yield drawn.popleft()
        yield from drawn


def make_model(kind: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 1)).to(kind)


def mean_gradient(
    rank: int, world_size: int, *, seconds: list[float], steps: int = 6, bucket_mb: float = 25.0, dtype: str = "float32"
) -> dict[str, Any]:
    """Gradients of some steps, beside those of one process with the whole batches.

    Args: seconds: a sample, of each rank; put in as if they had been measured, so that sizes do not depend on the
        machine.
    Returns: sizes, and the largest relative error of each step.
    """
    kind = getattr(torch, dtype)
    dataset = make_dataset()
    batches = BalancedBatches(dataset, 60)
    for _ in range(4):
        batches.orchestrator.decide([Measured(20, 20 * s) for s in seconds])
    model = DistributedDataParallel(make_model(kind), bucket_cap_mb=bucket_mb)
    whole = make_model(kind)
    state = SaAtpState.from_env(batches=batches)
    model.register_comm_hook(state, sa_atp_hook)
    errors, sizes = [], []
    for step, (x, y) in enumerate(DataLoader(dataset, batch_sampler=batches)):
        sizes.append(batches.sizes)
        assert len(x) == batches.sizes[rank]
        if step == 3:
            break
        model.zero_grad()
        whole.zero_grad()
        nn.functional.mse_loss(model(x.to(kind)), y.to(kind)).backward()
        together = [dataset[i] for i in batches.whole(step)]
        x, y = (torch.stack([sample[n] for sample in together]).to(kind) for n in (0, 1))
        nn.functional.mse_loss(whole(x), y).backward()
        for found, expected in zip(model.module.parameters(), whole.parameters(), strict=True):
            assert found.grad is not None
            assert expected.grad is not None
            errors.append(float((found.grad - expected.grad).abs().max() / expected.grad.abs().max()))
    state.close()
    return {"sizes": sizes, "errors": errors}


def follows_speed(
    rank: int, world_size: int, *, ms: list[float], steps: int, lead: int = 0, device: str = "cpu"
) -> list[tuple[int, ...]]:
    """Trains with emulated devices. Args: ms: a sample, of each rank. Returns: the sizes of each step."""
    dataset = make_dataset()
    batches = BalancedBatches(dataset, 40, lead=lead)
    loader = DataLoader(dataset, batch_sampler=AheadOf(batches, lead))
    model = DistributedDataParallel(make_model().to(device))
    emulate_device(model, ms[rank] / 1e3)
    state = SaAtpState.from_env(batches=batches)
    model.register_comm_hook(state, sa_atp_hook)
    sizes: list[tuple[int, ...]] = []
    epoch = 0
    while len(sizes) < steps:
        batches.set_epoch(epoch)
        for x, y in loader:
            sizes.append(batches.sizes)
            assert len(x) == sizes[-1][rank]
            nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        epoch += 1
    state.close()
    return sizes


def misuse(rank: int, world_size: int, *, how: str) -> str:
    """Returns: the error message."""
    dataset = make_dataset()
    batches = BalancedBatches(dataset, 40, world_size=world_size + 1 if how == "another job" else None)
    model = DistributedDataParallel(make_model())
    state = SaAtpState.from_env(batches=batches)
    model.register_comm_hook(state, sa_atp_hook)
    loader = iter(DataLoader(dataset, batch_sampler=batches))
    try:
        if how == "accumulation":
            with model.no_sync():
                x, y = next(loader)
                nn.functional.mse_loss(model(x), y).backward()
            x, y = next(loader)
        elif how == "another loader":
            x, y = dataset.tensors
        else:
            x, y = next(loader)
        nn.functional.mse_loss(model(x), y).backward()
    except (UserError, RuntimeError) as error:
        return str(error)
    finally:
        state.close()
    return ""
