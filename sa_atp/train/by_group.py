"""Sums that the hooks leave to the program's own process group (Gloo, NCCL), because lanes of a switch do not have their
type: float64, sparse tensors.

Which ones these are follows from a tensor's type and layout alone, so all ranks leave the same ones, in the same order.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist

from sa_atp.basics.words import join
from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_sums import SUMMED, TensorFuture, writing


def sum_by_group(state: SaAtpState, tensor: torch.Tensor, *, weight: float) -> TensorFuture:
    """Replaces a tensor by its sum over all ranks of the state's process group; this rank's is first multiplied by
    `weight`.

    Returns: a future whose value is the tensor. Raises: RuntimeError: the process group cannot sum it either.
    """
    note(state, tensor)
    with writing(tensor):
        tensor.mul_(weight)  # before the sum, as DDP itself does
    work = dist.all_reduce(tensor, group=state.process_group, async_op=True)

    def finish(future: "torch.futures.Future[Any]") -> torch.Tensor:
        future.value()  # raises what went wrong
        return tensor

    summed: TensorFuture = work.get_future().then(finish)
    return summed


def note(state: SaAtpState, tensor: torch.Tensor) -> None:
    """Counts a tensor that is left to the process group, for the warning."""
    if state.left_to_group is not None:
        kind = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided:
            kind = f"{str(tensor.layout).removeprefix('torch.')} {kind}"
        state.left_to_group[kind] = state.left_to_group.get(kind, 0) + tensor.numel()


def warn_once(state: SaAtpState) -> None:
    """Warns of what has been left to the process group so far, on rank 0; the first time that there is something."""
    if not state.left_to_group:
        return
    left = join(f"{values:,} values of {kind}" for kind, values in state.left_to_group.items())
    state.left_to_group = None
    if dist.get_rank(state.process_group) == 0:
        group = dist.get_backend(state.process_group)
        warnings.warn(
            f"job {state.job_name}: {left} are summed by the process group ({group}), not in the switch: it sums {SUMMED}",
            stacklevel=2,
        )
