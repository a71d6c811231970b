"""Sums of PyTorch tensors through the switch, as PyTorch futures; for the hook, the backend and FSDP."""

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from sa_atp.basics.arrays import Addends, Values
from sa_atp.basics.errors import UserError
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.protocol.numbers.pairs import PairCodec
from sa_atp.train.ddp_state import SaAtpState

SUMMABLE = (torch.float32, torch.float16, torch.bfloat16)
SUMMED = "dense tensors of float32, float16 and bfloat16"
DEVICES = ("cpu", "cuda")

# A mark behind a tensor's values: some value of this rank is not finite. It shares a scale with other ranks' values, so
# it is large: beside the largest float32, on 64 ranks, it is still 2**7 units at the coarsest scale that a prediction
# can give. And the sum of 64 marks is still finite.
NOT_FINITE = 2.0**120

TensorFuture = torch.futures.Future[torch.Tensor]


@contextlib.contextmanager
def writing(tensor: torch.Tensor) -> Iterator[None]:
    """A context in which any thread may write a tensor. Sums end in another thread than the caller's, without its
    modes.

    Autograd does not notice, as with other backends: a parameter may receive a result. Tensors made under
    `torch.inference_mode` are written in that mode.
    """
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():  # in this order: the former resets the latter
        yield


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copies values into a tensor that has as many elements, whatever its shape and strides. Any thread may call it."""
    with writing(tensor):
        tensor.copy_(values.view_as(tensor))


def described(tensor: torch.Tensor) -> str:
    """A tensor's kind, for a message: "a sparse_coo float32 tensor on cpu"."""
    words = ["nested"] if tensor.is_nested else []
    words += [str(tensor.layout).removeprefix("torch.")] if tensor.layout is not torch.strided else []
    shown = " ".join([*words, str(tensor.dtype).removeprefix("torch."), "tensor on", str(tensor.device)])
    return f"a {shown}{' with a minus sign that is not applied yet' if tensor.is_neg() else ''}"


def is_summable(tensor: torch.Tensor) -> bool:
    """Whether the switch can sum tensors of this type and layout."""
    return tensor.layout is torch.strided and tensor.dtype in SUMMABLE


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor is contiguous, without pending sign or conjugation."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def pack(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, with pending sign and conjugation applied."""
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def check_dense(*tensors: torch.Tensor) -> None:
    """Raises: UserError: a tensor is not dense, or a nested one, whose values have no common shape."""
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise UserError(
                f"{described(tensor)} in a collective: expected a dense one; all_reduce with SUM also takes sparse_coo"
            )


def check_written(tensor: torch.Tensor) -> None:
    """Raises: UserError: a result cannot be written to the tensor."""
    if tensor.is_nested:
        check_dense(tensor)
    if tensor.layout is not torch.strided or not tensor.numel():
        return
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise UserError(
            f"an expanded tensor of shape {tuple(tensor.shape)}, whose values share memory, cannot receive a result: "
            "expected one with memory for each value, as clone() makes it"
        )


def sum_in_background(
    state: SaAtpState,
    tensor: torch.Tensor,
    *,
    key: object | None = None,
    scale: float = 1.0,
    weight: float = 1.0,
    measured: bool = True,
    codec: PairCodec | None = None,
) -> TensorFuture:
    """Replaces a tensor by its sum over all ranks, times `scale`; this rank's tensor is first multiplied by `weight`.

    Every rank must call it in the same order with tensors of the same size. The sum of empty tensors is done at once.

    Args:
        tensor: dense, float32, float16 or bfloat16; it must not be touched before the future is done.
        key: names the tensor from step to step (see Communicator.all_reduce).
        measured: whether this sum counts where ranks are compared (see Communicator.begin).
        codec: of all sums with this key, which travel as it says; None: with 32 bits.

    Returns: a future whose value is the tensor; it raises RuntimeError if the sum fails.
    Raises: UserError: a tensor that cannot be summed; TransportError: the job cannot be joined.
    """
    if not is_summable(tensor):
        raise UserError(f"{described(tensor)} cannot be summed: expected a dense one of float32, float16 or bfloat16")
    if tensor.device.type not in DEVICES:
        raise UserError(f"{described(tensor)} cannot be summed: expected one on the CPU or a CUDA device")
    check_written(tensor)
    if not tensor.numel():
        nothing: TensorFuture = torch.futures.Future()
        nothing.set_result(tensor)
        return nothing
    terms = _Terms(key, scale, weight, measured, codec)
    if is_packed(tensor):
        return _sum(state, tensor, tensor, terms)

    def unpack(future: TensorFuture) -> torch.Tensor:
        write(tensor, future.value())
        return tensor

    packed = pack(tensor)
    return _sum(state, packed, packed, terms).then(unpack)


def scatter_in_background(
    state: SaAtpState, tensor: torch.Tensor, output: torch.Tensor, *, rank: int, scale: float = 1.0, weight: float = 1.0
) -> TensorFuture:
    """Sums a tensor over all ranks, and writes this rank's part of the sum, times `scale`, to `output`.

    Every rank must call it in the same order with tensors of the same size. Where the state says that parts alone are
    worth while (`may_scatter`), no rank gets more than its part; else each gets the whole sum, and keeps its part.

    Args:
        tensor: float32, float16 or bfloat16, contiguous; of N ranks, rank r gets the r-th of N equal parts. It must not be
            touched before the future is done, and is overwritten where ranks get the whole sum.
        output: of the same type and device, with a part's size; any strides.
        weight: this rank's tensor is first multiplied by it.

    Returns: a future whose value is `output`; it raises RuntimeError if the sum fails.
    Raises: UserError, TransportError: the job cannot be joined.
    """
    if state.may_scatter:
        return _sum(state.scattered, tensor, output, _Terms(scale=scale, weight=weight))

    def keep(summed: TensorFuture) -> torch.Tensor:
        write(output, summed.value().reshape(-1, output.numel())[rank])
        return output

    return sum_in_background(state, tensor, scale=scale, weight=weight).then(keep)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The arguments of `sum_in_background` that say how a tensor is summed."""

    key: object | None = None
    scale: float = 1.0
    weight: float = 1.0
    measured: bool = True
    codec: PairCodec | None = None


def _sum(state: SaAtpState, tensor: torch.Tensor, output: torch.Tensor, terms: _Terms) -> TensorFuture:
    """Sums a tensor in the background.

    Args: tensor: contiguous; output: the same tensor, or the one that receives this rank's part of the sum.
    Returns: a future whose value is `output`.
    """
    if tensor.device.type == "cpu":
        return future_of(output, _on_cpu(state, tensor, output, terms))
    stage = _stage_of(state, tensor.device)
    return future_of(output, stage.sum(state, tensor, output, terms), stage)


def future_of(tensor: torch.Tensor, done: "Future[None]", stage: "Stage | None" = None) -> TensorFuture:
    """A future whose value is a tensor that has its values when `done` is. Args: stage: of the tensor's GPU."""
    on_stream: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    future: TensorFuture = torch.futures.Future()
    if stage is not None:
        future = torch.futures.Future(devices=[tensor.device])
        on_stream = stage.current

    def finish(summed: "Future[None]") -> None:
        error = summed.exception()
        if error is not None:
            future.set_exception(cast(Any, error))
            return
        # Waiting for a future waits for the streams that were current when its result was set. This may run in any
        # thread, even this one, if the sum is done already.
        with on_stream():
            future.set_result(tensor)

    done.add_done_callback(finish)
    # set_exception stores the error as the value, which C++ would take for a tensor; value() raises it
    return future.then(_value)


def _value(future: TensorFuture) -> torch.Tensor:
    return future.value()


def _needs_no_copy(state: SaAtpState, tensor: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether a sum's values can be sent from where the tensor has them on the host, and written there."""
    return output is tensor and tensor.dtype is torch.float32 and state.nonfinite == "raise"


def _on_cpu(state: SaAtpState, tensor: torch.Tensor, output: torch.Tensor, terms: _Terms) -> "Future[None]":
    flat = tensor.detach().reshape(-1)
    if _needs_no_copy(state, tensor, output):
        pending = _Pending(state, flat.numel(), terms, values=flat.numpy())
        pending.contribute()
    else:
        parts = tensor.numel() // output.numel()
        pending = _Pending(state, flat.numel(), terms, store=lambda values: write(output.detach(), values), parts=parts)
        pending.contribute(flat)
    return pending.done


class _Pending:
    """A sum that has begun, so that its position in the order of operations is fixed; the values may follow later."""

    def __init__(
        self,
        state: SaAtpState,
        size: int,
        terms: _Terms,
        *,
        values: Values | None = None,
        store: Callable[[torch.Tensor], object] | None = None,
        parts: int = 1,
    ) -> None:
        """Args:
        values: float32[size]: the contribution, to be replaced by the sum; default: a new array.
        store: called with the sum, float32[size / parts], before the future is done.
        parts: of which this rank gets one.
        """
        self.done: Future[None] = Future()
        self._communicator = state.communicator
        # with "spread", one more value of each part says that something is not finite; NaN and infinity never travel
        self._spread = state.nonfinite == "spread"
        self._parts, self._size = parts, size // parts
        self._values = np.zeros(parts * (self._size + self._spread), np.float32) if values is None else values
        self._out = self._values if parts == 1 else np.empty(self._size + self._spread, np.float32)
        self._store, self._terms = store, terms
        self._packing = None if terms.codec is None else terms.codec.next_sum()
        if self._packing is None:
            self._sum = self._communicator.begin(
                self._values.size, key=terms.key, out=self._out, scale=terms.scale, measured=terms.measured
            )
        else:
            lanes = self._packing.lanes
            self._sum = self._communicator.begin(lanes, key=terms.key, measured=terms.measured, whole=True)
        self._sum.future.add_done_callback(self._finish)

    def contribute(self, source: torch.Tensor | None = None) -> None:
        """Contributes this rank's values, times the weight.

        Args: source: flat CPU tensor of `size` values; default: they are in `values` already.
        """
        values = torch.from_numpy(self._values).view(self._parts, -1)
        mine = values[:, : self._size]
        if source is not None:
            if self._spread and self._packing is None and not all_finite(source):
                values[:, -1] = NOT_FINITE
            else:
                mine.copy_(source.view(self._parts, -1))
        if self._terms.weight != 1.0:  # in float32, so that nothing is rounded to a smaller type
            mine.mul_(self._terms.weight)
        member = self._communicator.membership
        travels: Addends = self._values
        if self._terms.codec is not None and self._packing is not None:
            travels = self._terms.codec.pack(self._packing, self._values[: self._size], member.rank)
        self._communicator.contribute(self._sum, [travels], member.bits_of(member.rank))

    def fail(self, error: BaseException) -> None:
        """Fails the sum on this rank."""
        with contextlib.suppress(InvalidStateError):  # the sum has failed before
            self.done.set_exception(error)

    def _finish(self, summed: "Future[Any]") -> None:
        error = summed.exception()
        if error is not None:
            self.fail(error)
            return
        try:
            values, codec, scale = self._out[: self._size], self._terms.codec, self._terms.scale
            if codec is not None and self._packing is not None:
                bad = codec.unpack(self._packing, summed.result(), values, scale)
                if bad and not self._spread:
                    raise NonFiniteError(self._sum.operation, bad, 0, self._size - 1)
            elif self._spread and self._out[-1] != 0.0:
                self._out[:] = np.nan
            if codec is not None and self._packing is None:
                codec.after_exact(values, scale)
            if self._store is not None:
                self._store(torch.from_numpy(values))
        except Exception as problem:
            self.fail(problem)
        else:
            self.done.set_result(None)


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether all values are finite: the extremes are, and NaN is both of them. `isfinite` takes sixteen times as long."""
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor))


# --- GPUs -------------------------------------------------------------------------------------------------------------


class Stage:
    """Sums tensors of one GPU by way of pinned buffers, on a stream of its own, so that the GPU goes on computing.

    The order of events, of which only the first has happened when `sum` returns:

    1. The stream waits for the work launched on the caller's stream, then copies the tensor to the host.
    2. A thread waits for that copy, and contributes it.
    3. When the sum is there, the connection's thread launches the copy back, on the same stream.

    Pinned buffers come from PyTorch's allocator each time. It keeps them, and reuses one only after the copies in which
    it was used; DDP's buckets change their sizes, so buffers kept here would be useless after that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = cast(Any, torch.cuda.Stream)(device)
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="sa-atp-stage")

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which this stage's stream is the current one."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def sum(self, state: SaAtpState, tensor: torch.Tensor, output: torch.Tensor, terms: _Terms) -> "Future[None]":
        """Sums a tensor of the GPU in the background.

        Args: output: the same tensor, or the one that receives this rank's part of the sum.
        Returns: a future that is done once the copy of the sum to the GPU has been launched on this stage's stream.
        """
        flat = tensor.detach().reshape(-1)
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        in_place = _needs_no_copy(state, tensor, output)  # no further copy on the host
        target = output.detach()
        back = host if output is tensor else torch.empty(output.shape, dtype=output.dtype, pin_memory=True)

        def store(values: torch.Tensor) -> None:
            if not in_place:
                write(back, values)
            with self.current(), writing(target):
                target.copy_(back.view_as(target), non_blocking=True)

        parts = tensor.numel() // output.numel()
        values = host.numpy() if in_place else None
        pending = _Pending(state, flat.numel(), terms, values=values, store=store, parts=parts)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        arrived = cast(Any, torch.cuda.Event)(blocking=True)  # the thread that waits for it must not spin
        with self.current():
            host.copy_(flat, non_blocking=True)
            arrived.record()
        # `store` holds the tensor until the copy back is launched; after that the allocator must know of the stream
        for held in (tensor, output):
            held.record_stream(self._stream)

        def contribute() -> None:
            try:
                arrived.synchronize()
                pending.contribute(None if in_place else host)
            except Exception as error:
                pending.fail(error)

        self._waiter.submit(contribute)
        return pending.done


def _stage_of(state: SaAtpState, device: torch.device) -> Stage:
    if device not in state.stages:
        state.stages[device] = Stage(device)
    stage = state.stages[device]
    assert isinstance(stage, Stage)
    return stage
