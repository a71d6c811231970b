"""Any PyTorch module as a workload: computes the gradient of any rank's shard.

The module is called with parameters that share only their values with the real ones, so that neither `.grad` nor the
hooks of DistributedDataParallel are affected, and with copies of the buffers that it changes. Random numbers are seeded
by (step, rank, micro-batch). So it makes no difference which rank computes a shard.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.steps.workloads.bucketed import BucketedHost
from sa_atp.steps.workloads.collector import Collector
from sa_atp.steps.workloads.exact import HALVES, from_halves, to_halves
from sa_atp.steps.workloads.layout import Layout
from sa_atp.steps.workloads.seeds import seeded

Batch = tuple[Any, Any]
BatchOf = Callable[[int, int], Batch]
LossFunction = Callable[[Any, Any], torch.Tensor]


class ModuleWorkload:
    """See step.Workload. Contributions have the given layout: gradients, then statistics and loss."""

    def __init__(
        self,
        module: nn.Module,
        loss_fn: LossFunction,
        batch_of: BatchOf,
        layout: Layout,
        *,
        micro_batches: int,
        seed: int,
        host: BucketedHost,
        streams: bool,
    ) -> None:
        """Args: streams: whether to contribute each bucket as soon as it is full, if a shard is one contribution."""
        self.micro_batch_size = 0
        """In samples; set by `find_micro_batch_size`, and only needed for an emulated device."""
        self.module = module
        self.layout = layout
        self.values = layout.values
        self._loss_fn = loss_fn
        self._batch_of = batch_of
        self._micro_batches = micro_batches
        self._seed = seed
        self._host = host
        self._streams = streams and micro_batches == 1
        self._batches: dict[tuple[int, int], Batch] = {}  # of the current step: (step, rank)

    # --- computing ----------------------------------------------------------------------------------------------------

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """One contribution: the gradient of a micro-batch's share of its shard's loss, statistics and counts.

        Returns: float32[values]; and the micro-batch's loss. Raises: Cancelled, UserError.
        """
        (inputs, targets), share = self._piece(step, shard, micro_batch)
        parameters = {n: p.detach().requires_grad_(p.requires_grad) for n, p in self.module.named_parameters()}
        buffers = dict(self.module.named_buffers())
        changing = [n for n in buffers if n in self.layout.running or n in self.layout.counted]
        buffers.update({n: buffers[n].detach().clone() for n in changing})
        versions = {n: (b, b._version) for n, b in buffers.items() if n not in changing}
        collector = Collector(self.layout, next(iter(parameters.values())).device)
        if self._streams:
            bit = self._host.membership.bit(shard, 0)
            collector.on_full = lambda segment: self._host.contribute_segment(segment, collector.flat.numpy(), bit)
        for name in self.layout.gradients:
            cast(Any, parameters[name]).register_post_accumulate_grad_hook(collector.hook_for(name))
        tensors = {**parameters, **buffers}
        with torch.enable_grad(), seeded(self._seed, step, shard, micro_batch):
            outputs = _call(self.module, tensors, inputs)
            loss = self._loss_fn(outputs, targets)
            share_of_loss = loss if self._micro_batches == 1 else loss * share
            torch.autograd.backward(share_of_loss, inputs=[parameters[n] for n in self.layout.gradients])
        collector.finish()
        for name, (buffer, version) in versions.items():
            if tensors[name] is not buffer or buffer._version != version:
                raise UserError(
                    f"the model changes its buffer {name} when it is called: name it in running=(...), "
                    "so that every rank gets the same, whoever computes the shard"
                )
        flat = collector.flat
        for name in collector.used & set(self.layout.used):
            flat[self.layout.used[name][0]] = 1.0
        if shard == 0:  # as under DDP, running statistics are those of rank 0's shard
            self._write_statistics(flat, tensors, micro_batch, share)
        flat[self.layout.loss[0]] = share_of_loss.detach().float()
        return flat.numpy(), float(loss.detach())

    def _write_statistics(
        self, flat: torch.Tensor, after: Mapping[str, torch.Tensor], micro_batch: int, share: float
    ) -> None:
        before = dict(self.module.named_buffers())
        for name, (start, end) in self.layout.running.items():
            statistic = after[name].detach().float() * share
            # each micro-batch has its own position, since bits cannot be summed
            place = flat[start:end].view(self._micro_batches, -1, HALVES)[micro_batch]
            # NaN must be an error, as in gradients; its bits would not be one
            place.copy_(to_halves(statistic) if bool(torch.isfinite(statistic).all()) else torch.tensor(torch.nan))
        for name, (start, end) in self.layout.counted.items():
            flat[start:end].copy_((after[name] - before[name]).reshape(-1))

    def find_micro_batch_size(self, step: int, shard: int) -> None:
        """Sets `micro_batch_size` from a batch. Raises: UserError: the batch does not tell."""
        size = _samples(self._batch(step, shard))
        if size is None:
            raise UserError("an emulated device needs batches with one row a sample")
        self.micro_batch_size = -(-size // self._micro_batches)

    def _piece(self, step: int, shard: int, micro_batch: int) -> tuple[Batch, float]:
        """A micro-batch, and its share of the shard's samples."""
        batch = self._batch(step, shard)
        if self._micro_batches == 1:
            return batch, 1.0
        size = _samples(batch)
        if size is None or size < self._micro_batches:
            raise UserError(
                f"a batch of {size or 'unknown'} samples cannot be cut into {self._micro_batches} micro-batches"
            )
        start, end = (size * m // self._micro_batches for m in (micro_batch, micro_batch + 1))
        return _slice(batch, size, start, end), (end - start) / size

    def _batch(self, step: int, shard: int) -> Batch:
        key = step, shard
        if key not in self._batches:
            for old in [k for k in self._batches if k[0] != step]:
                del self._batches[old]
            with seeded(self._seed, step, shard):
                batch = self._batch_of(step, shard)
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise UserError(
                    f"batch_of({step}, {shard}) returned a {type(batch).__name__}: expected (inputs, targets)"
                )
            self._batches[key] = (batch[0], batch[1])
        return self._batches[key]

    # --- using the sum ------------------------------------------------------------------------------------------------

    def apply(self, sums: Values) -> None:
        """Adds the mean gradients to `.grad`, and writes the statistics to the buffers."""
        flat = torch.from_numpy(sums)
        parameters = dict(self.module.named_parameters())
        here = flat.to(next(iter(parameters.values())).device)  # to a GPU in one piece
        with torch.no_grad():
            for name, (start, end) in self.layout.gradients.items():
                used = self.layout.used.get(name)
                if used is not None and float(flat[used[0]]) < 0.5:
                    continue  # no rank used it: as under DDP, its gradient stays
                parameter = parameters[name]
                mean = here[start:end].view(parameter.shape).to(parameter.device, parameter.dtype)
                if parameter.grad is None:
                    parameter.grad = mean
                else:
                    parameter.grad.add_(mean)
            buffers = dict(self.module.named_buffers())
            for name, (start, end) in self.layout.running.items():
                parts = from_halves(here[start:end].view(self._micro_batches, -1, HALVES))
                buffers[name].copy_(functools.reduce(torch.add, parts).view(buffers[name].shape))
            for name, (start, end) in self.layout.counted.items():
                buffers[name].add_(here[start:end].round().view(buffers[name].shape).to(buffers[name].dtype))


# --- batches
# ------------------------------------------------------------------------------------------------------------


def _call(module: nn.Module, tensors: dict[str, torch.Tensor], inputs: Any) -> Any:
    """Calls a module: a tuple or list gives positional arguments, a mapping named ones, anything else is one argument.

    Args: tensors: parameters and buffers to use; buffers that the module replaces are replaced in it.
    """
    if isinstance(inputs, Mapping):
        return torch.func.functional_call(module, tensors, (), dict(inputs))
    arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return torch.func.functional_call(module, tensors, arguments)


def _samples(value: Any) -> int | None:
    """Length of the first tensor in a nest of tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() else None
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((n for n in map(_samples, children) if n is not None), None)


def _slice(value: Any, size: int, start: int, end: int) -> Any:
    """A batch with rows start to end - 1 of every tensor that has one row for each sample."""
    if isinstance(value, torch.Tensor):
        return value[start:end] if value.dim() and value.shape[0] == size else value
    if isinstance(value, Mapping):
        return {k: _slice(v, size, start, end) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_slice(v, size, start, end) for v in value)
    return value
