"""The layout of a training step's contribution in one flat array of float32.

    | gradients, last parameter first, in buckets | running statistics | counts | loss |

Each bucket, and each of the other parts, is summed by itself: a bucket can travel as soon as its gradients are there,
and parts of different magnitude do not share a scale.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from sa_atp.basics.errors import UserError
from sa_atp.steps.workloads.exact import HALVES

HELPED = (torch.float32, torch.float16, torch.bfloat16)
Span = tuple[int, int]  # first value, and one past the last


@dataclass(frozen=True)
class Segment:
    """A part of the array that is summed by itself."""

    name: str
    start: int
    end: int
    mean: bool
    """Whether it is averaged over ranks (gradients, loss) or added up."""


@dataclass(frozen=True)
class Layout:
    """The span of each part. Equal on all ranks, because it follows from the model alone."""

    gradients: dict[str, Span]
    running: dict[str, Span]
    """Floating-point statistics of rank 0's shard, as under DDP: for each of its micro-batches, the halves of their
    bits (see exact.py)."""
    counted: dict[str, Span]
    """Integer buffers that a forward pass increments; the increments are summed."""
    used: dict[str, Span]
    """For each parameter, one value: the number of contributions in which it was used. Empty: all are always used."""
    loss: Span
    segments: tuple[Segment, ...]
    bucket_of: dict[str, int] = field(default_factory=dict)
    """Parameter: number of its segment."""

    @property
    def values(self) -> int:
        return self.loss[1]

    @property
    def terms(self) -> dict[str, str]:
        """Terms for joining a job: the lengths of all sums of a step."""
        return {"sums of": ", ".join(str(segment.end - segment.start) for segment in self.segments) + " values"}


def layout_of(
    module: nn.Module, *, bucket_bytes: int, unused: bool, running: tuple[str, ...] = (), micro_batches: int = 1
) -> Layout:
    """Args:
        bucket_bytes: a bucket is closed when it has so many.
        unused: parameters may be without a gradient in a step.
        running: names of buffers that the forward pass changes, besides those of normalisation layers.
        micro_batches: of a shard.

    Raises: UserError: a model that cannot be helped with.
    """
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not any(parameter.numel() for _, parameter in named):
        raise UserError("the model has no parameter that requires a gradient and has values")
    at = 0
    cuts = [0]
    gradients: dict[str, Span] = {}
    bucket_of: dict[str, int] = {}
    for name, parameter in reversed(named):
        if parameter.dtype not in HELPED:
            raise UserError(
                f"parameter {name} is {parameter.dtype}: expected float32, float16 or bfloat16, since a helper's gradients "
                "are summed in the switch, which has no other types"
            )
        gradients[name] = (at, at + parameter.numel())
        # an empty parameter after the last value of a bucket belongs to that bucket: there may be no further one
        bucket_of[name] = len(cuts) - 1 - (not parameter.numel() and at == cuts[-1] and at > 0)
        at += parameter.numel()
        if 4 * (at - cuts[-1]) >= bucket_bytes:
            cuts.append(at)
    if cuts[-1] != at:
        cuts.append(at)
    segments = [Segment(f"bucket {n}", a, b, True) for n, (a, b) in enumerate(pairwise(cuts))]

    changing = _changing_buffers(module, running)
    floats = {n: b for n, b in changing.items() if b.dtype.is_floating_point}
    wholes = {n: b for n, b in changing.items() if not b.dtype.is_floating_point}

    def place(sizes: dict[str, int]) -> dict[str, Span]:
        nonlocal at
        spans = {}
        for name, size in sizes.items():
            spans[name] = (at, at + size)
            at += size
        return spans

    def close(name: str, start: int, *, mean: bool) -> None:
        if at > start:
            segments.append(Segment(name, start, at, mean))

    start = at
    spans = place({n: micro_batches * HALVES * b.numel() for n, b in floats.items()})
    close("running statistics", start, mean=False)
    start = at
    counted = place({n: b.numel() for n, b in wholes.items()})
    used = place({n: 1 for n, _ in named} if unused else {})
    close("counts", start, mean=False)
    start = at
    loss = place({"loss": 1})["loss"]
    close("loss", start, mean=True)
    return Layout(gradients, spans, counted, used, loss, tuple(segments), bucket_of)


def _changing_buffers(module: nn.Module, running: tuple[str, ...]) -> dict[str, torch.Tensor]:
    buffers = dict(module.named_buffers())
    names = set(running)
    for name in names - set(buffers):
        raise UserError(f"running = {name!r}: the model has no such buffer; it has {', '.join(buffers) or 'none'}")
    for path, child in module.named_modules():
        if isinstance(child, SyncBatchNorm):
            raise UserError(
                f"{path or 'the model'} is a SyncBatchNorm, whose forward pass needs all ranks at once: nobody can "
                "compute a shard alone; use BatchNorm"
            )
        if isinstance(child, _NormBase):
            names |= {f"{path}.{n}" if path else n for n, _ in child.named_buffers(recurse=False)}
    return {name: buffer for name, buffer in buffers.items() if name in names}


def bytes_of_megabytes(value: float, name: str) -> int:
    """Converts a setting in megabytes. Args: name: of the setting, for the message. Raises: UserError."""
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"{name} = {value!r}: expected a positive number of megabytes")
    return int(value * (1 << 20))
