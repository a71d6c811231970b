"""The ranks' programs in tests that need a GPU; all ranks share the first one."""

from typing import Any

import torch
from torch import nn

from sa_atp.ddp import SaAtpState
from sa_atp.steps.workloads.seeds import seeded
from sa_atp.train.tensor_sums import sum_in_background

LONG = 50_000_000  # clock cycles: tens of milliseconds
VALUES = 1 << 20


def streams(rank: int, world_size: int) -> dict[str, Any]:
    """Sums of values that the GPU has not computed yet when the sum begins, used by a stream that nobody synchronises."""
    state = SaAtpState.from_env()
    producer = torch.cuda.Stream()
    found: dict[str, list[float]] = {"early": [], "late": []}
    for round_ in range(5):
        with torch.cuda.stream(producer):
            torch.cuda._sleep(LONG)
            tensor = torch.full((VALUES,), float(rank + 1 + round_), device="cuda")
            future = sum_in_background(state, tensor)
        if round_ % 2:
            while not future.done():  # complete before anyone waits
                pass
        summed = future.wait()
        # on the default stream, straight behind the copy to the GPU
        found["late" if round_ % 2 else "early"] += [float(summed.min()), float(summed.max())]
    state.close()
    return found


def lifetimes(rank: int, world_size: int) -> float:
    """Tensors are given up while they travel, and others take their memory at once. Returns: how far results are off."""
    state = SaAtpState.from_env()
    worst = 0.0
    for _ in range(10):
        futures = [sum_in_background(state, torch.full((VALUES,), float(part), device="cuda")) for part in range(3)]
        noise = [torch.full((VALUES,), -1000.0, device="cuda") for _ in range(6)]  # in the same memory, if it is free
        for part, future in enumerate(futures):
            worst = max(worst, float((future.wait() - part * world_size).abs().max()))
        del noise
    state.close()
    return worst


def generators(rank: int, world_size: int) -> bool:
    """Whether seeding a helper's work leaves the GPU's own randomness as it was, and is the same each time."""
    torch.cuda.manual_seed(5)
    expected = torch.rand(4, device="cuda").tolist()
    torch.cuda.manual_seed(5)
    with seeded(1, 2, 3):
        first = torch.rand(4, device="cuda").tolist()
    with seeded(1, 2, 3):
        second = torch.rand(4, device="cuda").tolist()
    return first == second and torch.rand(4, device="cuda").tolist() == expected


def error(rank: int, world_size: int) -> str:
    """The message of a sum that cannot be done."""
    state = SaAtpState.from_env()
    tensor = torch.ones(100, device="cuda")
    if rank == 1:
        tensor[7] = float("nan")
    try:
        sum_in_background(state, nn.Parameter(tensor).detach()).wait()
    except RuntimeError as problem:
        return str(problem)
    finally:
        state.close()
    return ""
