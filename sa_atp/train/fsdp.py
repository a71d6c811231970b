"""FSDP2 through the switch: gradients are reduce-scattered, or averaged over replicas, by in-network aggregation, and
parameters are gathered by multicast.

    from sa_atp.train.fsdp import gather_in_switch, reduce_in_switch

    fully_shard(model)
    state = SaAtpState.from_env()
    reduce_in_switch(model, state)
    gather_in_switch(model, state)

FSDP has no communication hook as DDP has; it accepts a custom reduce-scatter and all-gather, and a hook that runs after the
former.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from sa_atp.basics.errors import UserError
from sa_atp.train.backend import SumWork
from sa_atp.train.by_group import note, sum_by_group, warn_once
from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_gathers import Gather, gather_in_background
from sa_atp.train.tensor_sums import (
    described,
    is_packed,
    is_summable,
    pack,
    scatter_in_background,
    sum_in_background,
)


class _InSwitch:
    """What FSDP asks of its custom collectives besides calling them."""

    def __init__(self, state: SaAtpState) -> None:
        self._state = state

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class SwitchAllGather(_InSwitch):
    """An all-gather for `FSDPModule.set_custom_all_gather`: every rank gets all parts."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gathers tensors. Raises: UserError: they are not on the CPU; TransportError."""
        gather = Gather(input_tensor, [output_tensor])
        if not gather.fits(group.size()):
            raise UserError(
                f"{described(input_tensor)}, gathered through the switch into {described(output_tensor)}: expected dense "
                "ones of one type on the CPU"
            )
        if not input_tensor.numel():
            return None
        work = SumWork(gather_in_background(self._state, gather).then(lambda future: [future.value()]))
        if async_op:
            return work
        work.wait()
        return None


class SwitchReduceScatter(_InSwitch):
    """A reduce-scatter for `FSDPModule.set_custom_reduce_scatter`: every rank gets its part of the sum."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce-scatters a tensor. Raises: UserError: the switch cannot do the reduction; TransportError."""
        if not is_summable(input_tensor):
            note(self._state, input_tensor)
            warn_once(self._state)
            by_group: Any = dist.reduce_scatter_tensor  # whose result some releases of PyTorch have no type for
            found: dist.Work | None = by_group(output_tensor, input_tensor, op, group, async_op)
            return found
        everything = input_tensor if is_packed(input_tensor) else pack(input_tensor)
        scale = _scale(op, group.size())
        summed = scatter_in_background(self._state, everything, output_tensor.detach(), rank=group.rank(), scale=scale)
        work = SumWork(summed.then(lambda future: [future.value()]))
        if async_op:
            return work
        work.wait()
        return None


def reduce_in_switch(model: nn.Module, state: SaAtpState) -> None:
    """Makes every FSDP unit of a model reduce-scatter its gradients through the switch.

    Args: state: its ranks are those over which the model is sharded.
    Raises: UserError: `fully_shard` has not been applied, or this release of PyTorch takes no custom reduce-scatter.
    """
    state.check_exact("FSDP")
    _set(model, "set_custom_reduce_scatter", SwitchReduceScatter(state))


def gather_in_switch(model: nn.Module, state: SaAtpState) -> None:
    """Makes every FSDP unit of a model gather its parameters through the switch. They are to be in memory of the CPU.

    Args: state: its ranks are those over which the model is sharded; `reduce_in_switch` may have the same one.
    Raises: UserError: `fully_shard` has not been applied, or this release of PyTorch takes no custom all-gather.
    """
    _set(model, "set_custom_all_gather", SwitchAllGather(state))


def average_replicas_in_switch(model: nn.Module, state: SaAtpState) -> None:
    """Makes every FSDP unit average its sharded gradients over the replicas of the model, after its reduce-scatter.

    For a model that is sharded within a machine, and replicated on several.

    Args: state: its ranks are those that hold the same shard; process group and job are theirs alone.
    Raises: UserError: `fully_shard` has not been applied.
    """
    _set(model, "set_all_reduce_hook", replica_hook(state))


def replica_hook(state: SaAtpState) -> Callable[[torch.Tensor], None]:
    """A hook for `FSDPModule.set_all_reduce_hook`."""

    def average(reduced: torch.Tensor) -> None:
        scale = 1.0 / state.communicator.membership.world_size
        if is_summable(reduced):
            sum_in_background(state, reduced, scale=scale).wait()
        else:
            sum_by_group(state, reduced, weight=scale).wait()
            warn_once(state)

    return average


def _set(model: nn.Module, method: str, collective: Callable[..., Any]) -> None:
    """Sets a custom collective on every FSDP unit of a model.

    Args: method: of FSDPModule, that takes the collective.
    Raises: UserError: the model has no FSDP unit.
    """
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not units:
        raise UserError("the model has no FSDP unit: call torch.distributed.fsdp.fully_shard first")
    for unit in units:
        getattr(unit, method)(collective)


def _scale(operation: Any, size: int) -> float:
    if operation == dist.ReduceOp.SUM:
        return 1.0
    if operation == dist.ReduceOp.AVG:
        return 1.0 / size
    factor = getattr(operation, "factor", None)  # PREMUL_SUM
    if isinstance(factor, float):
        return factor
    raise UserError(f"FSDP asks for the reduction {operation}: expected SUM, AVG or PREMUL_SUM with a number")
