"""All-gathers of PyTorch tensors through the switch, for the backend and FSDP. (protocol section 5.10)"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist

from sa_atp.net.flat_values import flat_bytes
from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_sums import TensorFuture, check_written, future_of, is_packed, pack, write

# the methods of a process group that gather, under the names that any release of PyTorch has for them
SINGLE = ("_allgather_base", "all_gather_single")
COALESCED = ("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
GATHERS = (*SINGLE, *COALESCED, "allgather")


class Gather(NamedTuple):
    """What one all-gather reads and writes."""

    part: torch.Tensor
    """The part that this rank contributes."""
    outputs: Sequence[torch.Tensor]
    """The tensors that the parts of all ranks are written into: one for all parts, or one for each rank."""

    def fits(self, ranks: int) -> bool:
        """Whether these are dense tensors on the CPU, of one type, and outputs have the size of so many parts."""
        tensors = (self.part, *self.outputs)
        size = self.part.numel()
        sizes = [ranks * size] if len(self.outputs) == 1 else [size] * ranks
        return (
            all(t.layout is torch.strided and not t.is_nested and t.device.type == "cpu" for t in tensors)
            and len({t.dtype for t in tensors}) == 1
            and [output.numel() for output in self.outputs] == sizes
        )


def gathers_of(name: str, arguments: Sequence[Any]) -> list[Gather] | None:
    """The all-gathers that a call of a process group's method asks for; None: it is not called as PyTorch does."""
    if len(arguments) < 2:
        return None
    outputs, parts = arguments[:2]
    if name in SINGLE:
        return [Gather(parts, [outputs])]
    if name in COALESCED:
        return [Gather(part, [output]) for output, part in zip(outputs, parts, strict=True)]
    if isinstance(parts, torch.Tensor):
        return [Gather(parts, outputs)]
    return [Gather(part, of_part) for of_part, part in zip(outputs, parts, strict=True)]


def gather_in_background(state: SaAtpState, gather: Gather) -> TensorFuture:
    """Writes the parts of all ranks, bit for bit. Every rank must call it in the same order with tensors of one size and
    type.

    Args: gather: fits the state's ranks; its tensors must not be touched before the future is done. The part may be a
        piece of the output.

    Returns: a future whose value is the first output; it raises RuntimeError if the all-gather fails.
    Raises: UserError: an output that cannot be written; TransportError: the job cannot be joined.
    """
    for output in gather.outputs:
        check_written(output)
    communicator = state.communicator
    ranks, part, outputs = communicator.membership.world_size, gather.part, gather.outputs
    kind, own = flat_bytes(part if is_packed(part) else pack(part))
    in_place = len(outputs) == 1 and is_packed(outputs[0])
    room = flat_bytes(outputs[0])[1].reshape(ranks, -1) if in_place else np.empty((ranks, own.size), np.uint8)
    done: Future[None] = Future()

    def finish(gathered: "Future[Any]") -> None:
        error = gathered.exception()
        try:
            if error is None and not in_place:
                _store(torch.from_numpy(room.reshape(-1)).view(part.dtype), outputs)
        except Exception as problem:
            error = problem
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    gathering = communicator.begin_gather(kind, own.size, room)
    gathering.future.add_done_callback(finish)
    communicator.contribute_part(gathering, own)
    return future_of(outputs[0], done)


def _store(values: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    for output, piece in zip(outputs, values.chunk(len(outputs)), strict=True):
        write(output, piece)


def gathering(
    name: str, by_gloo: Callable[..., Any], made: Callable[[list[TensorFuture], list[torch.Tensor]], dist.Work]
) -> Callable[..., Any]:
    """A method of a process group that gathers through the switch what `may_gather` says, and leaves the rest to Gloo's.

    Args: made: makes a work of futures, and of the tensors that are its result.
    """

    @functools.wraps(by_gloo)
    def gathered(self: Any, *arguments: Any, **options: Any) -> Any:
        gathers = gathers_of(name, arguments)
        if not gathers or not self.may_gather(gathers):
            return by_gloo(self, *arguments, **options)
        outputs = [output for gather in gathers for output in gather.outputs]
        return made([gather_in_background(self.state, gather) for gather in gathers], outputs)

    return cast(Callable[..., Any], gathered)
