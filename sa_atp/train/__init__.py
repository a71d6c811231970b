"""PyTorch: the communication hook, the process-group backend, help for stragglers, balanced batches.

Scripts import from here: BackupCompute, ShardedSampler, DistributedBatches, BalancedBatches, emulate_device.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sa_atp.train.backup import BackupCompute
    from sa_atp.train.balanced import BalancedBatches
    from sa_atp.train.emulated import emulate_device
    from sa_atp.train.samplers import DistributedBatches, ShardedSampler

_MODULES = {
    "BackupCompute": "backup",
    "BalancedBatches": "balanced",
    "DistributedBatches": "samplers",
    "ShardedSampler": "samplers",
    "emulate_device": "emulated",
}

__all__ = ["BackupCompute", "BalancedBatches", "DistributedBatches", "ShardedSampler", "emulate_device"]


def __getattr__(name: str) -> Any:
    """Imports a module, and so PyTorch, when its name is first used."""
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"sa_atp.train.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return __all__
