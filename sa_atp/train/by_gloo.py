"""Collectives that the process-group backend leaves to Gloo, with tensors made fit for it.

Gloo reads the memory behind a tensor's first value. It ignores strides (all_reduce, reduce, broadcast, scatter) and a
pending minus sign, as `imag` of a conjugated tensor has one. So such a tensor is copied first, and the result is copied
back.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from sa_atp.basics.errors import UserError
from sa_atp.train.tensor_sums import check_dense, check_written, described, is_packed, pack, write

# Gloo's collectives, under the names that any release of PyTorch has for them
COLLECTIVES = (
    "_allgather_base", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "scatter",
)  # fmt: skip
POINT_TO_POINT = ("recv", "recv_anysource", "send")  # these refuse non-contiguous tensors themselves
OTHERS = ("barrier", "monitored_barrier")
TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool,
)  # fmt: skip


class Packed:
    """Copies of a call's tensors that Gloo can take, and those to be copied back."""

    def __init__(self) -> None:
        self.back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.copied = False
        self.strange: torch.Tensor | None = None  # a tensor of a type that Gloo may not know

    def of(self, argument: Any, *, written: bool) -> Any:
        """An argument with all tensors in it packed. Raises: UserError: a tensor that cannot be written."""
        if isinstance(argument, list | tuple):
            return [self.of(item, written=written) for item in argument]
        if not isinstance(argument, torch.Tensor):
            return argument
        if argument.dtype not in TYPES:
            self.strange = argument
        if written:
            check_written(argument)
        if argument.requires_grad:
            argument = argument.data  # a parameter may be sent, and receive a result, without autograd
        if argument.layout is not torch.strided or argument.is_meta or is_packed(argument):
            return argument
        self.copied = True
        packed = pack(argument)
        if written:
            self.back.append((argument, packed))
        return packed

    def copy_back(self) -> None:
        for tensor, packed in self.back:
            write(tensor, packed)


def collective(
    method: Callable[..., Any],
    group: dist.ProcessGroup,
    arguments: Sequence[Any],
    *,
    sparse: bool = False,
    **options: Any,
) -> Any:
    """Calls a collective of Gloo that writes its first argument.

    Args: sparse: whether it takes sparse tensors, too.

    Returns: its work; None: it is done already, because tensors were copied.
    Raises: UserError: tensors that cannot be written, or of a type that Gloo does not have.
    """
    if not sparse:
        check_dense(*_tensors(arguments))
    packed = Packed()
    given = [packed.of(argument, written=i == 0) for i, argument in enumerate(arguments)]
    if not packed.copied and packed.strange is None:
        return method(group, *given, **options)
    try:
        work = method(group, *given, **options)
        work.wait()
    except RuntimeError as error:
        if packed.strange is None or "Invalid scalar type" not in str(error):
            raise
        names = ", ".join(str(kind).removeprefix("torch.") for kind in TYPES)
        raise UserError(f"Gloo, which does this, has no {packed.strange.dtype}: expected one of {names}") from None
    packed.copy_back()
    return None


def point_to_point(
    method: Callable[..., Any], group: dist.ProcessGroup, arguments: Sequence[Any], **options: Any
) -> Any:
    """Calls `send` or `recv` of Gloo. Raises: UserError: a sparse tensor, or one with a pending minus sign."""
    check_dense(*_tensors(arguments))
    for tensor in _tensors(arguments):
        if tensor.is_contiguous() and not is_packed(tensor):
            raise UserError(f"{described(tensor)} cannot be sent or received: expected what its resolve_neg() gives")
    return method(group, *arguments, **options)


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _tensors(item)


def forwarding(name: str, done: Callable[[list[torch.Tensor]], dist.Work]) -> Callable[..., Any] | None:
    """A method that calls the one of a group's `_inner`; None: this release of PyTorch has no such method.

    PyTorch would find Gloo's method by itself, but call it with the interpreter's lock held (WORK_OVERRIDE in its
    PyProcessGroup.hpp). There it waits for Gloo's own lock, and the thread of Gloo that has that may need the
    interpreter's to release a tensor: a deadlock, seen about once in twenty runs of all collectives.

    Args: done: makes a completed work of tensors.
    """
    method = getattr(dist.ProcessGroup, name, None)
    if method is None:
        return None

    @functools.wraps(method)
    def forwarded(self: Any, *arguments: Any, **options: Any) -> Any:
        if name in OTHERS:
            return method(self._inner, *arguments, **options)
        if name in POINT_TO_POINT:
            return point_to_point(method, self._inner, arguments, **options)
        work = collective(method, self._inner, arguments, **options)
        return done(list(_tensors(arguments[:1]))) if work is None else work

    return cast(Callable[..., Any], forwarded)
