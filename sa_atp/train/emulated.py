"""A slow device, for experiments on machines whose ranks share a few cores."""

from typing import Any

import torch
from torch import nn

from sa_atp.steps.workloads.abandon import sleep


def emulate_device(module: nn.Module, seconds_per_sample: float, *, slowdown: float = 1.0) -> Any:
    """Makes every training pass of a module take `seconds_per_sample` longer for each sample, as on a slower device.

    The time passes before the forward pass; it is cut short for a straggler whose work others have done.

    Args:
        module: its first argument has one row a sample.
        slowdown: how many times slower than the others this rank is.

    Returns: a handle; its `remove()` ends the emulation.
    """

    def wait(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and arguments:
            sleep(seconds_per_sample * slowdown * len(arguments[0]))

    return module.register_forward_pre_hook(wait)
