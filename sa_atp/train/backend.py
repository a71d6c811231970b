"""A torch.distributed backend: what a switch can add up goes through the switch, everything else through Gloo.

    import sa_atp.ddp  # registers the backend
    torch.distributed.init_process_group("sa_atp")

Through the switch: all_reduce and reduce_scatter with SUM and AVG of float32, float16 and bfloat16. Through Gloo: tensors
of a few values (see SMALL); other types, since lanes are sums of rounded numbers; other reductions (MAX, MIN, ...), whose
result must be one of the inputs bit for bit; and broadcast, all_gather, barrier and point-to-point messages, in which there
is nothing to aggregate.
"""

import functools
import hashlib
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed has them too, but its stubs do not say so

from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_sums import SUMMABLE, TensorFuture, sum_in_background, writing

NAME = "sa_atp"
MOST_NAME = 64  # characters of a job's name

# Tensors of at most so many values go through Gloo. A sum in the switch is one of fixed point, relative to the largest
# value. Gradients bear that; a program's metrics do not: [sum of losses, number of samples] mixes magnitudes, and the
# smaller one would be rounded away. And a sum without a key costs a round trip more, which is most of a small one's time.
SMALL = 256

# What Gloo does, under all names that releases of PyTorch have for it
BY_GLOO = (
    "_allgather_base", "abort", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather",
    "monitored_barrier", "recv", "recv_anysource", "reduce", "scatter", "send",
)  # fmt: skip


class SumWork(dist.Work):
    """A sum under way, as torch.distributed's callers expect it."""

    def __init__(self, future: "torch.futures.Future[Any]") -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until the sum is there. Raises what went wrong.

        Args: timeout: if it is positive, a RuntimeError is raised after so long, as by Gloo; the sum goes on. Else the
            connection's own limits say how long it may take.
        """
        if timeout > timedelta(0):
            done = threading.Event()  # PyTorch's futures wait without a limit
            self._future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                raise RuntimeError(
                    f"the sum was not there after the {timeout.total_seconds():g} s that wait() was given"
                )
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        try:
            self._future.value()
        except RuntimeError:
            return False
        return True

    def get_future(self) -> "torch.futures.Future[Any]":
        return self._future

    def result(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self._future.wait()
        return found


class SaAtpProcessGroup(dist.ProcessGroup):
    """Gloo, with the sums taken out."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        """Raises: UserError: the environment does not say where the parameter server is."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # what the stubs show cannot be subclassed
        gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        self._inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self._inner):
            for device in _devices():
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.state = SaAtpState.from_env(
            job=job_name(name), rank=rank, world_size=size, help="none", micro_batches=1, nonfinite="spread"
        )

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        return NAME

    def shutdown(self) -> None:
        self.state.close()

    # --- sums -----------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        operation = _operation(opts)
        # one by one: Gloo takes several at once for copies of one tensor, and adds them all up
        works = [self._reduce(tensor, operation) for tensor in tensors]
        if len(works) == 1:
            return works[0]
        return SumWork(_all([_future_of(work, tensor) for work, tensor in zip(works, tensors, strict=True)]))

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> dist.Work:
        if self._belongs_in_switch(tensor, operation):
            return SumWork(_all([self._sum(tensor.detach(), operation)]))
        return self._by_gloo(tensor, operation)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(list(tensors), opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        """Everybody gets the whole sum from the switch, and keeps a part."""
        operation = _operation(opts)
        everything = input.detach().clone()
        work = self._reduce(everything, operation)

        def keep(future: "torch.futures.Future[Any]") -> list[torch.Tensor]:
            future.value()
            with writing(output):
                output.copy_(everything.reshape(self.size(), -1)[self.rank()].view_as(output))
            return [output]

        return SumWork(_future_of(work, everything).then(keep))

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single(output, input, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return SumWork(_all([work.get_future() for work in works]))

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        output, parts = (outputs, inputs) if isinstance(outputs, torch.Tensor) else (outputs[0], inputs[0])
        return self.reduce_scatter_single(output, torch.cat([part.reshape(-1) for part in parts]), opts)

    def _belongs_in_switch(self, tensor: torch.Tensor, operation: Any) -> bool:
        return (
            self.size() > 1
            # not `in`: that asks the enumeration's members, which do not know the options' own type
            and (operation == dist.ReduceOp.SUM or operation == dist.ReduceOp.AVG)  # noqa: PLR1714
            and tensor.layout is torch.strided
            and tensor.dtype in SUMMABLE
            and tensor.numel() > SMALL
        )

    def _sum(self, tensor: torch.Tensor, operation: Any) -> TensorFuture:
        scale = 1.0 / self.size() if operation == dist.ReduceOp.AVG else 1.0
        if tensor.is_contiguous():
            return sum_in_background(self.state, tensor, scale=scale)
        packed = tensor.contiguous()

        def unpack(future: TensorFuture) -> torch.Tensor:
            with writing(tensor):
                return tensor.copy_(future.value())

        return sum_in_background(self.state, packed, scale=scale).then(unpack)

    def _by_gloo(self, tensor: torch.Tensor, operation: Any) -> dist.Work:
        options: Any = dist.AllreduceOptions()
        averages = operation == dist.ReduceOp.AVG  # Gloo does not
        options.reduceOp = dist.ReduceOp.SUM if averages else operation
        strided = tensor.layout is torch.strided and not tensor.is_contiguous()
        packed = tensor.contiguous() if strided else tensor  # Gloo takes what lies behind the first value
        work = self._inner.allreduce([packed], options)
        if not averages and not strided:
            return work
        work.wait()
        with writing(tensor):
            if averages:
                packed.div_(self.size())
            if strided:
                tensor.copy_(packed)
        return SumWork(_done([tensor]))


def _forward(name: str) -> None:
    """Has a method of the group call the inner group's.

    Left to itself, PyTorch would find Gloo's method, too, but call it with the interpreter's lock held (WORK_OVERRIDE in
    its PyProcessGroup.hpp). There it waits for Gloo's own lock, and a thread of Gloo's that has that one may need the
    interpreter's to let go of a tensor: a deadlock, seen about once in twenty runs of all collectives.
    """
    method = getattr(dist.ProcessGroup, name)

    @functools.wraps(method)
    def forwarded(self: SaAtpProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return method(self._inner, *args, **kwargs)

    setattr(SaAtpProcessGroup, name, forwarded)


for _name in BY_GLOO:
    if hasattr(dist.ProcessGroup, _name):
        _forward(_name)


def _operation(options: Any) -> Any:
    """The reduction, of options or given by itself."""
    if options is None:
        return dist.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def _future_of(work: dist.Work, tensor: torch.Tensor) -> "torch.futures.Future[Any]":
    """Of a sum of this tensor. Gloo's is waited for: a callback would need the interpreter's lock in a thread of Gloo's."""
    if isinstance(work, SumWork):
        return work.get_future()
    work.wait()
    return _done([tensor])


def _done(tensors: list[torch.Tensor]) -> "torch.futures.Future[Any]":
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return future


def _all(futures: Sequence["torch.futures.Future[Any]"]) -> "torch.futures.Future[list[torch.Tensor]]":
    """Done when all are, with a flat list of their tensors; fails as the first that fails."""

    def values(every: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for future in every.value():
            value = future.value()
            found.extend(value if isinstance(value, list) else [value])
        return found

    return torch.futures.collect_all(list(futures)).then(values)


def job_name(group: str) -> str:
    """The name of a process group's job: groups of one program do not mix, nor does the hook's job with them."""
    name = f"{os.environ.get('SA_ATP_JOB', 'default')}/group {group}"
    if len(name) <= MOST_NAME:
        return name
    return f"{name[: MOST_NAME - 17]} {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _create(options: Any, _: Any) -> SaAtpProcessGroup:
    return SaAtpProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, str(options.group_id)
    )


def _devices() -> list[str]:
    """Whose tensors Gloo takes here."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def register() -> None:
    """Makes the backend known to torch.distributed, once."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=_devices())
