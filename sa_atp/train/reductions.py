"""Reductions of torch.distributed in terms of those of the switch and Gloo: AVG and PREMUL_SUM are scaled sums."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sa_atp.basics.errors import UserError
from sa_atp.train.tensor_sums import writing


@dataclass(frozen=True, slots=True)
class Reduction:
    basic: Any
    """A reduction that Gloo has: SUM for AVG and PREMUL_SUM."""
    averages: bool = False
    """Whether the sum is divided by the number of ranks."""
    factor: float = 1.0
    """Factor of each rank's values before the sum."""

    @classmethod
    def of(cls, options: Any) -> "Reduction":
        """Args: options: of a collective, or the reduction itself; None: SUM."""
        operation = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
        if operation == dist.ReduceOp.AVG:
            return cls(dist.ReduceOp.SUM, averages=True)
        if operation == dist.ReduceOp.PREMUL_SUM:
            return cls(dist.ReduceOp.SUM, factor=factor_of(operation))
        return cls(operation)

    @property
    def is_sum(self) -> bool:
        return bool(self.basic == dist.ReduceOp.SUM)

    @property
    def is_basic(self) -> bool:
        """Whether Gloo can do it alone."""
        return not self.averages and self.factor == 1.0

    def check(self, kind: torch.dtype) -> None:
        """Raises: UserError: the reduction does not exist for this type."""
        if self.averages and kind is torch.bool:
            raise UserError("bool tensors have no mean (AVG): expected a type of numbers, or SUM, MAX or MIN")
        if self.factor != 1.0 and not kind.is_floating_point:
            raise UserError(f"PREMUL_SUM of {kind} tensors: expected a floating-point type")

    def prepare(self, tensor: torch.Tensor) -> None:
        """Applies the factor to a rank's own values, in place, before the sum."""
        if self.factor != 1.0:
            with writing(tensor):
                tensor.mul_(self.factor)

    def finish(self, tensor: torch.Tensor, ranks: int) -> None:
        """Divides a sum by the number of ranks, in place, for AVG. Means of integers are rounded towards zero, as by
        NCCL.
        """
        if self.averages:
            exact = tensor.is_floating_point() or tensor.is_complex()
            with writing(tensor):
                tensor.div_(ranks, rounding_mode=None if exact else "trunc")


def factor_of(operation: Any) -> float:
    """The factor of PREMUL_SUM. Raises: UserError: not one number."""
    # older releases of PyTorch reveal it only when a reduction is pickled
    factor = operation.factor if hasattr(operation, "factor") else operation.__getstate__()[1]
    if isinstance(factor, torch.Tensor) and factor.numel() == 1:
        factor = factor.item()
    if isinstance(factor, int | float):
        return float(factor)
    raise UserError(f"PREMUL_SUM with the factor {factor!r}: expected one number")
