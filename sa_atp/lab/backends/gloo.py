"""Gloo, for comparison: PyTorch's ring all-reduce over TCP."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import SaAtpError

AllReduce = Callable[[Values], Values]
TIMEOUT = timedelta(seconds=60)


def load() -> None:
    """Imports PyTorch, which takes seconds, before the first sum."""
    import torch.distributed  # noqa: F401


@contextmanager
def group(store: tuple[str, int], rank: int, world_size: int, interface: str | None) -> Iterator[Any]:
    """A process group of all ranks; yields torch.distributed.

    Args:
        store: address at which rank 0 listens for the others.
        interface: network interface for Gloo; None: Gloo chooses.

    Raises: SaAtpError: Gloo's error, in one line.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore  # the class behind torch.distributed.TCPStore

    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        made = TCPStore(store[0], store[1], world_size, rank == 0, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=made, rank=rank, world_size=world_size, timeout=TIMEOUT)
        try:
            yield dist
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        raise SaAtpError(f"Gloo: {str(error).splitlines()[0]}") from None


@contextmanager
def summing(task: dict[str, Any], rank: int, world_size: int) -> Iterator[AllReduce]:
    """Gloo's all-reduce, while all ranks are there. Args: task: a worker's. Raises: SaAtpError."""
    import torch

    with group(tuple(task["store"]), rank, world_size, task["interface"]) as dist:

        def all_reduce(values: Values) -> Values:
            dist.all_reduce(torch.from_numpy(values))
            return values

        dist.barrier()
        yield all_reduce
        dist.barrier()
