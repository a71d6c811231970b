"""The ranks' programs in tests of the process-group backend and of FSDP."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState
from sa_atp.train import backend
from sa_atp.train.fsdp import (
    SwitchReduceScatter,
    average_replicas_in_switch,
    gather_in_switch,
    reduce_in_switch,
)


@contextmanager
def small(values: int) -> Iterator[None]:
    """Within it, tensors of so many values are small. Processes of ranks stay, for other tests."""
    usual, backend.SMALL = backend.SMALL, values
    try:
        yield
    finally:
        backend.SMALL = usual


def collectives(rank: int, world_size: int) -> dict[str, Any]:
    """What PyTorch makes of collectives, in the switch however few the values; the same is expected of every backend."""
    found: dict[str, Any] = {}
    mine = torch.full((4,), float(rank + 1))
    with small(0):
        spoilt = torch.tensor([1.0, float("inf") if rank == 0 else 1.0])
        dist.all_reduce(spoilt)
        found["infinity is noticed"] = not bool(torch.isfinite(spoilt).all())
        mesh = init_device_mesh("cpu", (world_size,))
        rows = distribute_tensor(torch.arange(2.0 * world_size).view(world_size, 2), mesh, [Shard(0)])
        total = rows.sum()
        assert isinstance(total, DTensor)
        found["DTensor"] = total.full_tensor().tolist()
        works = [dist.all_reduce(t, async_op=True) for t in (mine.clone(), mine * 2)]
        for work in works:
            assert work is not None
            work.wait()
        found["at once"] = [work.result()[0].tolist() for work in works if work is not None]
        objects: list[Any] = [None] * world_size
        dist.all_gather_object(objects, {"rank": rank})
        found["objects"] = objects
        pair: Any = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(mine, group=pair)
            found["pair"] = mine.tolist()
    return found


def metrics(rank: int, world_size: int) -> dict[str, Any]:
    """Sums of a few values of very different magnitude, as programs make them of their metrics."""
    found: dict[str, Any] = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        found[name] = tensor.tolist()

    def mixed() -> torch.Tensor:
        return torch.tensor([3e9, 5.0])

    total = mixed()
    dist.all_reduce(total)
    put("sum", total)
    mean = mixed()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    put("mean", mean)
    columns = torch.stack([mixed(), mixed()])
    dist.all_reduce(columns[:, 0])
    dist.all_reduce(columns[:, 1], op=dist.ReduceOp.AVG)
    put("columns", columns)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, mixed().repeat(world_size))
    put("reduce_scatter", part)
    many, few = torch.ones(1000), mixed()
    with dist._coalescing_manager():
        dist.all_reduce(many)
        dist.all_reduce(few)
    put("together", torch.cat([few, many[:1], many[-1:]]))
    return found


def modes(rank: int, world_size: int, *, values: int) -> dict[str, Any]:
    """Sums of ones under inference_mode and no_grad. Returns: the values that each result has."""
    found: dict[str, Any] = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        found[name] = tensor.unique().tolist()

    ordinary = torch.ones(values, dtype=torch.float16)
    state = SaAtpState.from_env(job=f"{os.environ['SA_ATP_JOB']}, FSDP")
    with torch.inference_mode():
        dist.all_reduce(ordinary)
        put("made before", ordinary)
        for kind in (torch.float32, torch.float16):
            for name, operation in (("sum", dist.ReduceOp.SUM), ("mean", dist.ReduceOp.AVG)):
                tensor = torch.ones(values, dtype=kind)
                dist.all_reduce(tensor, op=operation)
                put(f"{name} of {kind}", tensor)
        columns = torch.ones(values, 2)
        dist.all_reduce(columns[:, 0])
        put("column", columns[:, 0])
        part = torch.zeros(values)
        dist.reduce_scatter_tensor(part, torch.ones(values * world_size))
        put("reduce_scatter", part)
        part = torch.zeros(values)
        group: Any = dist.group.WORLD
        SwitchReduceScatter(state)(part, torch.ones(values * world_size), group, dist.ReduceOp.SUM)
        put("FSDP", part)
    with torch.no_grad():
        parameter = nn.Parameter(torch.zeros(values))
        dist.reduce_scatter_tensor(parameter, torch.ones(values * world_size))
        put("reduce_scatter into a parameter", parameter)
        parameter = nn.Parameter(torch.zeros(values))
        SwitchReduceScatter(state)(parameter, torch.ones(values * world_size), group, dist.ReduceOp.SUM)
        put("FSDP into a parameter", parameter)
        for kind in (torch.float32, torch.float16):
            parameter = nn.Parameter(torch.ones(values, dtype=kind))
            dist.all_reduce(parameter)
            put(f"parameter of {kind}", parameter)
    ordinary += 1  # neither an inference tensor now, nor part of a graph
    assert not ordinary.requires_grad
    state.close()
    return found


def limited_wait(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 0 waits for a sum that rank 1 contributes to only when rank 0 has given up."""
    dist.all_reduce(torch.ones(1000))  # joins the job, for which each waits
    values = torch.ones(1000)
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    work = dist.all_reduce(values, async_op=True)
    assert work is not None
    said = ""
    if rank == 0:
        try:
            work.wait(timedelta(milliseconds=200))
        except RuntimeError as error:
            said = str(error)
        dist.send(torch.zeros(1), 1)
    return {
        "said": said,
        "waits": [work.wait(timedelta(seconds=60)), work.wait(timedelta(0)), work.wait(timedelta(milliseconds=-1))],
        "values": values.unique().tolist(),
    }


def one_after_another(rank: int, world_size: int, *, times: int) -> int:
    """Collectives of Gloo in close order: its threads let go of one's tensors while the next one is begun."""
    parts = [torch.zeros(4) for _ in range(world_size)]
    for _ in range(times):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
        dist.all_gather(parts, torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
        dist.barrier()
    return times


def through_switch(rank: int, world_size: int) -> dict[str, int]:
    """How many fragments this rank sends for what."""
    group: Any = dist.group.WORLD
    sent: dict[str, int] = {}

    def fragments() -> int:
        states = (group.state, group.state.scattered)
        return sum(state.communicator.stats().fragments_sent for state in states)

    def count(name: str) -> None:
        sent[name] = fragments() - sum(sent.values())

    dist.all_reduce(torch.ones(1000))
    count("all_reduce of float32")
    dist.all_reduce(torch.ones(1000, dtype=torch.int64))
    dist.all_reduce(torch.ones(1000), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(1000), 0)
    dist.barrier()
    count("everything else")
    dist.reduce_scatter_tensor(torch.zeros(500), torch.ones(500 * world_size))
    count("reduce_scatter")
    dist.all_gather_into_tensor(torch.zeros(500 * world_size), torch.ones(500))
    count("all_gather_into_tensor")
    dist.all_gather(
        [torch.zeros(500, dtype=torch.int64) for _ in range(world_size)], torch.ones(500, dtype=torch.int64)
    )
    count("all_gather")
    model = DistributedDataParallel(nn.Linear(50, 20))
    before = sum(sent.values())
    model(torch.ones(1, 50)).sum().backward()
    sent["DDP without a hook"] = fragments() - before
    return sent


GATHERED = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "uint8", "bool", "complex64")


def gathers(rank: int, world_size: int, *, values: int) -> dict[str, bool]:
    """Whether all-gathers have the bits of everybody's tensors, whatever these mean: NaN with a payload, -2**31."""
    group: Any = dist.group.WORLD
    found: dict[str, bool] = {}

    def bits(kind: torch.dtype, of: int, count: int = values) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * of + count)
        drawn = torch.randint(0, 256, (count * 16,), generator=generator, dtype=torch.uint8)
        drawn.view(torch.int32)[::3] = -(2**31)
        drawn.view(torch.int32)[1::7] = 0x7FA00001  # a signalling NaN of float32
        return (drawn % 2).bool()[:count] if kind is torch.bool else drawn.view(kind)[:count].clone()

    def check(name: str, tensor: torch.Tensor, expected: torch.Tensor) -> None:
        same = torch.equal(tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
        found[name] = found.get(name, True) and same

    for name in GATHERED:
        kind = getattr(torch, name)
        everyones = torch.cat([bits(kind, of) for of in range(world_size)])
        mine = bits(kind, rank)
        joined = torch.zeros(world_size * values, dtype=kind)
        dist.all_gather_into_tensor(joined, mine)
        check(name, joined, everyones)
        parts = [torch.zeros(values, dtype=kind) for _ in range(world_size)]
        dist.all_gather(parts, mine)
        check(name, torch.cat(parts), everyones)
    # FSDP's part is a piece of the output; several at once, in order
    outputs = [torch.zeros(world_size, values + n) for n in range(3)]
    works = []
    for n, output in enumerate(outputs):
        output[rank] = bits(torch.float32, rank, values + n)
        works.append(dist.all_gather_into_tensor(output, output[rank], async_op=True))
    for n, (output, work) in enumerate(zip(outputs, works, strict=True)):
        assert work is not None
        work.wait()
        check("in place", output.view(-1), torch.cat([bits(torch.float32, of, values + n) for of in range(world_size)]))
    with dist._coalescing_manager():
        pieces = [torch.zeros(world_size * values) for _ in range(2)]
        for piece in pieces:
            dist.all_gather_into_tensor(piece, bits(torch.float32, rank))
    for piece in pieces:
        check("coalesced", piece, torch.cat([bits(torch.float32, of) for of in range(world_size)]))
    joined = functional.wait_tensor(functional.all_gather_tensor(bits(torch.float32, rank), 0, group))
    check("functional", joined, torch.cat([bits(torch.float32, of) for of in range(world_size)]))
    found["by the switch"] = group.state.communicator.stats().results > 0
    return found


def fsdp(rank: int, world_size: int, *, mode: str, device: str = "cpu", dtype: str = "float32") -> list[float]:
    """Mean losses of a sharded model. mode: "native", "switch", "hybrid" (native), or "replicas" (through the switch)."""
    gathered: SaAtpState | None = None
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(17, 33), nn.Tanh(), nn.Linear(33, 17)) for _ in range(3)])
    kind = getattr(torch, dtype)
    model.to(device, kind)
    state: SaAtpState | None = None
    if mode in ("native", "switch"):
        mesh = init_device_mesh(device, (world_size,))
    else:
        both = init_device_mesh(device, (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
        mesh = both if mode == "hybrid" else both["shard"]
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh)
    if mode == "switch":
        state = SaAtpState.from_env()
        reduce_in_switch(model, state)
        gather_in_switch(model, state)
        gathered = state
    elif mode == "replicas":
        job = f"{os.environ['SA_ATP_JOB']}, shard {both['shard'].get_local_rank()}"
        state = SaAtpState.from_env(process_group=both["replicate"].get_group(), job=job)
        average_replicas_in_switch(model, state)
    elif mode == "native" and dist.get_backend() == "sa_atp":
        group: Any = mesh.get_group()
        gathered = group.state
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    losses = torch.zeros(8, dtype=kind)
    for step in range(len(losses)):
        x = torch.randn(8, 17, generator=generator).to(device, kind)
        optimiser.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimiser.step()
        losses[step] = loss.detach()
    dist.all_reduce(losses)
    if gathered is not None:  # the gradients' sums are in another job
        assert gathered.communicator.stats().results > len(losses) * 17 * 33 * 6 / 256
    if state is not None and dtype == "float32":
        communicator = (state.scattered if mode == "switch" else state).communicator
        assert communicator.stats().fragments_sent > 0
    if state is not None:
        state.close()
    return [float(loss) / world_size for loss in losses]
