"""A torch.distributed backend: sums of floating-point tensors go through the switch, everything else through Gloo.

    import sa_atp.ddp  # registers the backend
    torch.distributed.init_process_group("sa_atp")

Through the switch: all_reduce and reduce_scatter with SUM and AVG of float32, float16 and bfloat16, in a job each: in the
second one a rank gets the sum of its own part alone, where all parts are equal. And all_gather of equal parts of any
type, in memory of the CPU. Through Gloo: tensors of a few values (see SMALL); sums of other types, since lanes are sums of
rounded numbers; other reductions (MAX, MIN, ...), whose result must be one of the inputs bit for bit; and broadcast,
barrier and point-to-point messages, in which there is nothing to aggregate.
"""

import functools
import inspect
import os
import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed has them too, but its stubs do not say so

from sa_atp.basics.errors import UserError
from sa_atp.basics.words import plural
from sa_atp.train.by_gloo import COLLECTIVES, OTHERS, POINT_TO_POINT, collective, forwarding
from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.groups import beliefs, job_name
from sa_atp.train.reductions import Reduction
from sa_atp.train.tensor_gathers import GATHERS, Gather, gathering
from sa_atp.train.tensor_sums import (
    DEVICES,
    TensorFuture,
    check_dense,
    check_written,
    is_packed,
    is_summable,
    pack,
    scatter_in_background,
    sum_in_background,
    write,
)

NAME = "sa_atp"

# Tensors of at most so many values go through Gloo. The switch sums in fixed point, relative to the largest value.
# Gradients bear that; a program's metrics do not: [sum of losses, number of samples] mixes magnitudes, and the smaller
# one would be rounded away. And a sum without a key costs an extra round trip, which is most of a small sum's time.
SMALL = 256


class SumWork(dist.Work):
    """A sum under way, as a torch.distributed Work."""

    def __init__(self, future: "torch.futures.Future[Any]") -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the sum. Raises: RuntimeError: the sum failed, or the time is up.

        Args: timeout: if positive, the longest time to wait, as with Gloo; the sum goes on after that. Else only the
            connection's own time-outs apply.
        """
        if timeout > timedelta(0):
            done = threading.Event()  # PyTorch's futures wait without a limit
            self._future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                raise RuntimeError(
                    f"the sum was not there after the {timeout.total_seconds():g} s that wait() was given"
                )
        try:
            self._future.wait()
        except RuntimeError as error:
            raise RuntimeError(cause_of(error)) from None
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


def cause_of(error: RuntimeError) -> str:
    """The message of a future's error, without the lines and the stack that PyTorch adds for callbacks."""
    return re.sub(r"^(Got the following error when running the callback: \w+: )+", "", str(error)).split("\n\nAt:\n")[0]


class SaAtpProcessGroup(dist.ProcessGroup):
    """A process group that sums through the switch, and leaves the rest to Gloo."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, name: str, ranks: Sequence[int] | None = None
    ) -> None:
        """Args:
        timeout: of a collective without progress, and of joining.
        ranks: ranks in the default group; None: all, in order.

        Raises: UserError: the environment does not name the parameter server.
        """
        _keep_out_of_compiled_code()
        place: Any = (rank, size)  # the stubs of PyTorch before 2.15 do not show this constructor
        super().__init__(*place)
        self._gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        self._inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self._inner):
            for device in DEVICES:
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.state = SaAtpState.from_env(
            job=job_name(os.environ.get("SA_ATP_JOB", "default"), f"group {name}"), rank=rank, world_size=size,
            help="none", micro_batches=1, nonfinite="spread", bits=32,
            agree=beliefs(range(size) if ranks is None else ranks),
        )  # fmt: skip
        # a time-out in the environment bounds sums; the default does not, it is for programs without a process group
        given = os.environ.get("SA_ATP_OPERATION_TIMEOUT_S")
        self._longest_s = self.state.operation_timeout_s if given else float("inf")
        self.state.answer_timeout_s = self.state.join_timeout_s
        self.state.join_timeout_s = timeout.total_seconds()
        self._limit_sums(timeout)

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        return NAME

    def _limit_sums(self, timeout: timedelta) -> None:
        """Sets the time-out of sums without progress, or the environment's, if that is shorter."""
        self._timeout = timeout
        self.state.limit_operations(min(timeout.total_seconds(), self._longest_s))

    def set_timeout(self, timeout: timedelta) -> None:
        self._gloo._set_default_timeout(timeout)
        self._limit_sums(timeout)

    def shutdown(self) -> None:
        """Leaves the job; sums under way fail."""
        self.state.close(for_good="the process group was destroyed")

    def abort(self) -> None:
        """Ends all operations of this rank; the other ranks learn that it has left."""
        self.state.abort(for_good="the process group was aborted")
        self._inner.abort()

    # --- sums ---------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        reduction = Reduction.of(opts)
        # one by one: given several, Gloo takes them for copies of one tensor, and adds them all up
        works = [self._reduce(tensor, reduction) for tensor in tensors]
        if len(works) == 1:
            return works[0]
        return SumWork(_all([_future_of(work, tensor) for work, tensor in zip(works, tensors, strict=True)]))

    def _reduce(self, tensor: torch.Tensor, reduction: Reduction, key: object | None = None) -> dist.Work:
        reduction.check(tensor.dtype)
        check_written(tensor)
        if self._belongs_in_switch(tensor, reduction):
            return SumWork(_all([self._sum(tensor.detach(), reduction, key)]))
        return self._by_gloo(tensor, reduction)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(list(tensors), opts)

    def reduce(self, tensors: Any, *arguments: Any) -> dist.Work:
        """Reduces to one rank. Args: arguments: options; or the root and, if it is not SUM, the reduction."""
        tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        options: Any = dist.ReduceOptions()
        if arguments and isinstance(arguments[0], int):
            options.rootRank = arguments[0]
            reduction = Reduction.of(arguments[1] if len(arguments) > 1 else None)
        else:
            if arguments:
                options.rootRank, options.rootTensor = arguments[0].rootRank, arguments[0].rootTensor
            reduction = Reduction.of(arguments[0] if arguments else None)
        options.reduceOp = reduction.basic
        reduction.check(tensor.dtype)
        if reduction.is_basic:
            work = collective(dist.ProcessGroup.reduce, self._inner, [[tensor], options])
            return SumWork(_done([tensor])) if work is None else work
        # all ranks but the root keep their values
        mine = pack(tensor)
        reduction.prepare(mine)
        dist.ProcessGroup.reduce(self._inner, [mine], options).wait()
        if self.rank() == options.rootRank:
            reduction.finish(mine, self.size())
            check_written(tensor)
            write(tensor, mine)
        return SumWork(_done([tensor]))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        """Sums all parts, of which every rank gets its own."""
        check_dense(output, input)
        if input.numel() != output.numel() * self.size() or input.dtype != output.dtype:
            raise UserError(
                f"reduce_scatter of {input.numel()} values of {input.dtype} into {output.numel()} of {output.dtype} on "
                f"{plural(self.size(), 'rank')}: expected {output.numel() * self.size()} of {output.dtype}"
            )
        return self._keep_equal_part(output, pack(input).reshape(-1), Reduction.of(opts))

    def _keep_equal_part(self, output: torch.Tensor, everything: torch.Tensor, reduction: Reduction) -> dist.Work:
        """Sums equal parts, of which each rank gets one. Args: everything: values of all parts, contiguous."""
        check_written(output)
        reduction.check(everything.dtype)
        rank = self.rank()
        if not self._belongs_in_switch(everything, reduction):
            return self._keep_part(output, everything, output.numel() * rank, reduction)
        self._keep_limit()
        scale = 1.0 / self.size() if reduction.averages else 1.0
        summed = scatter_in_background(
            self.state, everything, output.detach(), rank=rank, scale=scale, weight=reduction.factor
        )
        return SumWork(_all([summed]))

    def _keep_part(
        self,
        output: torch.Tensor,
        everything: torch.Tensor,
        start: int,
        reduction: Reduction,
        key: object | None = None,
    ) -> dist.Work:
        """Sums all parts, and keeps one.

        Args: everything: values of all parts. start: of this rank's part. key: of the sum, see sum_in_background.
        """
        check_written(output)
        work = self._reduce(everything, reduction, key)

        def keep(future: "torch.futures.Future[Any]") -> list[torch.Tensor]:
            future.value()
            write(output, everything[start : start + output.numel()])
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
        """As `reduce_scatter_single`, for parts that may differ in length."""
        output, parts = (outputs, inputs) if isinstance(outputs, torch.Tensor) else (outputs[0], inputs[0])
        if len(parts) != self.size():
            raise UserError(
                f"reduce_scatter of {plural(len(parts), 'part')}: expected {self.size()}, one for each rank"
            )
        own = parts[self.rank()]
        if own.numel() != output.numel() or own.dtype != output.dtype:
            raise UserError(
                f"reduce_scatter of a part of {own.numel()} values of {own.dtype} for rank {self.rank()} into "
                f"{output.numel()} of {output.dtype}: expected the same number and type"
            )
        check_dense(output, *parts)
        everything = torch.cat([pack(part).reshape(-1) for part in parts])
        if len({part.numel() for part in parts}) == 1:
            return self._keep_equal_part(output, everything, Reduction.of(opts))
        lengths = tuple(part.numel() for part in parts)
        # ranks may differ about the parts and agree about their sum; what travels with fragments tells the key
        key = ("parts", *lengths)
        return self._keep_part(output, everything, sum(lengths[: self.rank()]), Reduction.of(opts), key)

    def _belongs_in_switch(self, tensor: torch.Tensor, reduction: Reduction) -> bool:
        return (
            self.size() > 1
            and reduction.is_sum
            and is_summable(tensor)
            and tensor.device.type in DEVICES
            and tensor.numel() > SMALL
        )

    def may_gather(self, gathers: Sequence[Gather]) -> bool:
        """Whether these all-gathers go through the switch, and not through Gloo; where they do, sets their time-out."""
        size = self.size()
        if size == 1 or not all(g.fits(size) and g.part.numel() * size > SMALL for g in gathers):
            return False
        self._keep_limit()
        return self.state.may_gather

    def _keep_limit(self) -> None:
        if (set_since := self._gloo.options._timeout) != self._timeout:  # PyTorch sets only Gloo's
            self._limit_sums(set_since)

    def _sum(self, tensor: torch.Tensor, reduction: Reduction, key: object | None = None) -> TensorFuture:
        self._keep_limit()
        scale = 1.0 / self.size() if reduction.averages else 1.0
        return sum_in_background(self.state, tensor, key=key, scale=scale, weight=reduction.factor)

    def _by_gloo(self, tensor: torch.Tensor, reduction: Reduction) -> dist.Work:
        options: Any = dist.AllreduceOptions()
        options.reduceOp = reduction.basic
        strided = tensor.layout is torch.strided and not is_packed(tensor)
        mine = pack(tensor) if strided else tensor
        reduction.prepare(mine)
        work: dist.Work | None = collective(dist.ProcessGroup.allreduce, self._inner, [[mine], options], sparse=True)
        if work is not None and reduction.is_basic and not strided:
            return work
        if work is not None:
            work.wait()
        reduction.finish(mine, self.size())
        if strided:
            write(tensor, mine)
        return SumWork(_done([tensor]))


@functools.cache
def _keep_out_of_compiled_code() -> None:
    """Keeps torch.compile from compiling the group's methods; done once.

    DDP's C++ code calls them within the compiled program, where torch.compile would compile them as well. Called when
    there is a group, because it imports the compiler, as DDP does.
    """
    for name, method in list(vars(SaAtpProcessGroup).items()):
        if inspect.isfunction(method) and hasattr(dist.ProcessGroup, name):  # these call the other methods
            setattr(SaAtpProcessGroup, name, torch.compiler.disable(method))


def _future_of(work: dist.Work, tensor: torch.Tensor) -> "torch.futures.Future[Any]":
    """The future of a tensor's sum. Waits for Gloo's: a callback would need the interpreter's lock in a thread of Gloo."""
    if isinstance(work, SumWork):
        return work.get_future()
    work.wait()
    return _done([tensor])


def _done(tensors: list[torch.Tensor]) -> "torch.futures.Future[Any]":
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return future


def _all(futures: Sequence["torch.futures.Future[Any]"]) -> "torch.futures.Future[list[torch.Tensor]]":
    """A future that is done when all are, with a flat list of their tensors; fails with the first failure."""

    def values(every: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for future in every.value():
            value = future.value()
            found.extend(value if isinstance(value, list) else [value])
        return found

    return torch.futures.collect_all(list(futures)).then(values)


def _after(
    futures: Sequence["torch.futures.Future[Any]"], tensors: list[torch.Tensor]
) -> "torch.futures.Future[list[torch.Tensor]]":
    """A future of these tensors that is done when all futures are; fails with the first failure."""

    def value(done: Any) -> list[torch.Tensor]:
        done.value()
        return tensors

    return _all(futures).then(value)


def _create(options: Any, _: Any) -> SaAtpProcessGroup:
    ranks = options.global_ranks_in_group or range(options.group_size)  # none are named for the default group
    return SaAtpProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, str(options.group_id), ranks
    )


for _name in (*COLLECTIVES, *POINT_TO_POINT, *OTHERS):
    if (_method := forwarding(_name, lambda tensors: SumWork(_done(tensors)))) is not None:
        if _name in GATHERS:
            _method = gathering(_name, _method, lambda futures, tensors: SumWork(_after(futures, tensors)))
        setattr(SaAtpProcessGroup, _name, _method)


def register() -> None:
    """Registers the backend with torch.distributed, once, for tensors on the CPU and on GPUs.

    Looking for a GPU would start its driver, and a process that is forked later could not use CUDA any more.
    """
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
