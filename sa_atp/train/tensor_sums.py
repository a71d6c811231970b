"""Sums of PyTorch tensors through the switch, as PyTorch futures: what the hook, the backend and FSDP have in common."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch

from sa_atp.errors import UserError
from sa_atp.train.ddp_state import SaAtpState

SUMMABLE = (torch.float32, torch.float16, torch.bfloat16)

TensorFuture = torch.futures.Future[torch.Tensor]


def sum_in_background(
    state: SaAtpState, tensor: torch.Tensor, *, key: object | None = None, scale: float = 1.0
) -> TensorFuture:
    """Replaces a tensor by its sum over all ranks, times `scale`.

    Every rank must call it in the same order with tensors of the same size.

    Args:
        tensor: dense and contiguous, float32, float16 or bfloat16; it must not be touched before the future is done.
        key: names the tensor from step to step (see Communicator.all_reduce).

    Returns: a future whose value is the tensor. Waiting for it raises what went wrong.
    Raises: UserError: a tensor that cannot be summed; TransportError: the job cannot be joined.
    """
    if tensor.layout is not torch.strided or tensor.dtype not in SUMMABLE or not tensor.is_contiguous():
        raise UserError(
            f"a {tensor.layout} tensor of {tensor.dtype} cannot be summed: expected a dense, contiguous one of "
            "float32, float16 or bfloat16"
        )
    if tensor.device.type == "cpu":
        devices: list[Any] = []
        done = _on_cpu(state, tensor, key, scale)
    elif tensor.device.type == "cuda":
        devices = [tensor.device]
        done = _stage_of(state, tensor.device).sum(state, tensor, key, scale)
    else:
        raise UserError(f"a tensor on {tensor.device} cannot be summed: expected one on the CPU or a CUDA device")
    future: TensorFuture = torch.futures.Future(devices=devices)

    def finish(summed: "Future[None]") -> None:
        error = summed.exception()
        if error is None:
            future.set_result(tensor)
        else:
            future.set_exception(cast(Any, error))

    done.add_done_callback(finish)
    # set_exception stores the error as a value, which C++ would take for a tensor; value() raises it
    return future.then(_value)


def _value(future: TensorFuture) -> torch.Tensor:
    return future.value()


def _on_cpu(state: SaAtpState, tensor: torch.Tensor, key: object | None, scale: float) -> "Future[None]":
    flat = tensor.detach().reshape(-1)
    if tensor.dtype is torch.float32 and state.nonfinite == "raise":
        pending = _Pending(state, flat.numel(), key, scale, values=flat.numpy())  # nothing is copied
        pending.contribute()
        return pending.done
    pending = _Pending(state, flat.numel(), key, scale, store=flat.copy_)
    pending.contribute(flat)
    return pending.done


class _Pending:
    """A sum that has begun, so that its place in the order is fixed; the values may follow later."""

    def __init__(
        self,
        state: SaAtpState,
        size: int,
        key: object | None,
        scale: float,
        *,
        values: np.ndarray | None = None,
        store: Callable[[torch.Tensor], object] | None = None,
    ) -> None:
        """Args:
        values: float32[size]: what to contribute, and where the sum goes; default: an array of our own.
        store: called with the sum, float32[size]; then the future is done.
        """
        self.done: Future[None] = Future()
        self._communicator = state.communicator
        # With "spread", one more value says that something is not finite. That itself never travels.
        self._spread = state.nonfinite == "spread"
        self._size = size
        self._values = np.zeros(size + self._spread, np.float32) if values is None else values
        self._store = store
        self._sum = self._communicator.begin(self._values.size, key=key, out=self._values, scale=scale)
        self._sum.future.add_done_callback(self._finish)

    def contribute(self, source: torch.Tensor | None = None) -> None:
        """Args: source: CPU tensor of `size` values; default: they are in `values` already."""
        if source is not None:
            if self._spread and not bool(torch.isfinite(source).all()):
                self._values[-1] = 1.0
            else:
                torch.from_numpy(self._values)[: self._size].copy_(source)
        member = self._communicator.membership
        self._communicator.contribute(self._sum, [self._values], member.bits_of(member.rank))

    def _finish(self, summed: "Future[np.ndarray]") -> None:
        error = summed.exception()
        if error is not None:
            self.done.set_exception(error)
            return
        try:
            if self._spread and self._values[-1] != 0.0:
                self._values[:] = np.nan
            if self._store is not None:
                self._store(torch.from_numpy(self._values)[: self._size])
        except Exception as problem:
            self.done.set_exception(problem)
        else:
            self.done.set_result(None)


# --- GPUs -------------------------------------------------------------------------------------------------------------


class Stage:
    """Sums tensors of one GPU by way of pinned buffers, on a stream of its own, so that the GPU goes on computing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = cast(Any, torch.cuda.Stream)(device)
        self._pinned: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}  # buffers that nobody uses
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="sa-atp-stage")

    def sum(self, state: SaAtpState, tensor: torch.Tensor, key: object | None, scale: float) -> "Future[None]":
        """Replaces a tensor by its sum. When the future is done, the current stream of the thread that completes it
        knows the new values.
        """
        done: Future[None] = Future()
        shelf = self._pinned.setdefault((tensor.numel(), tensor.dtype), [])
        flat = tensor.detach().reshape(-1)
        host = shelf.pop() if shelf else torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)

        def store(values: torch.Tensor) -> None:
            host.copy_(values)
            with torch.cuda.stream(self._stream):
                flat.copy_(host, non_blocking=True)
            # whoever takes the buffer next copies into it on this stream, after this copy out of it
            shelf.append(host)

        pending = _Pending(state, flat.numel(), key, scale, store=store)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        arrived = cast(Any, torch.cuda.Event)()
        with torch.cuda.stream(self._stream):
            host.copy_(flat, non_blocking=True)
            arrived.record(self._stream)
        tensor.record_stream(self._stream)

        def contribute() -> None:
            try:
                arrived.synchronize()
                pending.contribute(host)
            except Exception as error:
                done.set_exception(error)

        def finish(summed: "Future[None]") -> None:
            error = summed.exception()
            with torch.cuda.stream(self._stream):  # a PyTorch future remembers the stream on which it was completed
                if done.done():
                    return
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(None)

        pending.done.add_done_callback(finish)
        self._waiter.submit(contribute)
        return done


def _stage_of(state: SaAtpState, device: torch.device) -> Stage:
    if device not in state.stages:
        state.stages[device] = Stage(device)
    stage = state.stages[device]
    assert isinstance(stage, Stage)
    return stage
