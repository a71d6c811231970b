"""The ranks' programs in tests of process groups: whose job is whose, how long things may take, and how they end."""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.net.job_status import ask_for_jobs
from sa_atp.train import BalancedBatches
from sa_atp.train.tensor_sums import sum_in_background


def _said(action: Callable[[], object]) -> str:
    """The error message; empty: there was none."""
    try:
        action()
    except Exception as error:
        return str(error)
    return ""


def two_groups(rank: int, world_size: int, *, job: str | None = None) -> dict[str, Any]:
    """Data-parallel groups of every other rank, in one program: each rank's mean of (rank + 1) over its own group."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    settings = {} if job is None else {"job": job}
    state = SaAtpState.from_env(process_group=groups[rank % 2], **settings)
    model = DistributedDataParallel(nn.Linear(300, 1, bias=False), process_group=groups[rank % 2])
    model.register_comm_hook(state, sa_atp_hook)
    (model(torch.full((1, 300), float(rank + 1)))).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    found = {"job": state.job_name, "mean": gradient.unique().tolist()}
    dist.barrier()
    state.close()
    return found


def numbered_groups(rank: int, world_size: int, *, agree: bool) -> dict[str, Any]:
    """Groups of two neighbours in a program of four, of which their states know the numbers alone.

    Args: agree: whether they also have a name and a text of their own.
    """
    own = {"job": f"half {rank // 2}", "agree": {"process group": f"half {rank // 2}"}} if agree else {}
    with SaAtpState.from_env(rank=rank % 2, world_size=2, join_timeout_s=10.0, **own) as state:
        said = _said(lambda: state.communicator)
        found = torch.full((300,), float(rank + 1))
        if not said:
            state.communicator.all_reduce(found)
        dist.barrier()
    return {"said": said, "sum": found.unique().tolist()}


def _wait_for_members(job: str) -> None:
    host, _, port = os.environ["SA_ATP_SERVER"].removeprefix("udp://").rpartition(":")
    while not any(found.name == job and found.members for found in ask_for_jobs((host, int(port)))):
        time.sleep(0.02)


def stated(rank: int, world_size: int, *, settings: list[dict[str, Any]]) -> str:
    """Ranks whose hooks have different settings. Returns: the error message."""
    own = dict(settings[rank])
    batches = own.pop("batch_size", None)
    if batches is not None:
        own["batches"] = BalancedBatches(torch.utils.data.TensorDataset(torch.zeros(100)), batches)
    state = SaAtpState.from_env(join_timeout_s=3.0, **own)
    if rank == 1:
        _wait_for_members(state.job_name)
    try:
        return _said(lambda: state.communicator)
    finally:
        dist.barrier()
        state.close()


def slow_rank(rank: int, world_size: int, *, timeout_s: float, how: str) -> dict[str, Any]:
    """The last rank does not come to a sum. How long do the others wait, and what do they hear?

    Args: how: "init": by init_process_group's timeout; "new_group"; "set": by what has been set since.
    """
    group: Any = dist.group.WORLD
    if how == "new_group":
        group = dist.new_group(list(range(world_size)), timeout=timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(1000), group=group)
    if how == "set":
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    started = time.monotonic()
    said = ""
    if rank != world_size - 1:
        said = _said(lambda: dist.all_reduce(torch.ones(1000), group=group))
    else:
        time.sleep(3 * timeout_s)
    return {"said": said, "took": time.monotonic() - started}


def unjoined(rank: int, world_size: int) -> str:
    """The last rank does not come to the first sum, for which a job is joined."""
    if rank == world_size - 1:
        time.sleep(4.0)
        return ""
    return _said(lambda: dist.all_reduce(torch.ones(1000)))


def ended(rank: int, world_size: int, *, how: str, when: str) -> dict[str, Any]:
    """The last rank does not come to a sum; another thread of the first ends the process group meanwhile.

    Args: how: "abort" or "destroy". when: "sum" or "join".
    """
    group: Any = dist.new_group(list(range(world_size)))
    if when == "sum":
        dist.all_reduce(torch.ones(1000), group=group)
    if rank == world_size - 1:
        dist.recv(torch.zeros(1), 0)
        return {"said": "", "later": ""}
    end = group.abort if how == "abort" else lambda: dist.destroy_process_group(group)
    if when == "sum":
        works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for _ in range(3)]
        end()
        said = "; ".join(sorted({_said(work.wait) for work in works if work is not None}))
    else:
        timer = threading.Timer(0.5, end)
        timer.start()
        said = _said(lambda: group.allreduce([torch.ones(1000)]))
        timer.join()
    later = _said(lambda: group.allreduce([torch.ones(1000)]))
    dist.send(torch.zeros(1), world_size - 1)
    return {"said": said, "later": later}


def barrier_that_says_who(rank: int, world_size: int) -> dict[str, str]:
    """The group has the method. PyTorch's function asks for a backend's name, and since 2.15 for one of the CPU."""
    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=20))
    function = _said(lambda: dist.monitored_barrier(timeout=timedelta(seconds=20)))
    said = ""
    if rank != world_size - 1:
        said = _said(lambda: group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=True))
    return {"function": function, "said": said}


class WithNothing(nn.Module):
    """Three layers, of which one has no outputs: its gradient has no values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.none, self.last = nn.Linear(4, 40), nn.Linear(40, 0), nn.Linear(40, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        total: torch.Tensor = self.last(hidden).sum() + self.none(hidden).sum()
        return total


def empty_buckets(rank: int, world_size: int, *, hook: bool, help: str = "none") -> list[list[float]]:
    """Two steps of a model with a layer without values, in buckets of one tensor. Returns: the gradients of each step."""
    torch.manual_seed(1)
    state = SaAtpState.from_env(help=help)
    model = DistributedDataParallel(WithNothing(), bucket_cap_mb=1e-5)
    if hook:
        model.register_comm_hook(state, sa_atp_hook)
    found = []
    for step in range(2):
        model.zero_grad()
        model(torch.full((2, 4), float(rank + step))).backward()
        found.append([float(p.grad.sum()) for p in model.parameters() if p.grad is not None])
    sum_in_background(state, torch.zeros(0, 3)).wait()
    state.close()
    return found
