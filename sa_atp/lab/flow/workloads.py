"""Workloads for many workers in one process: one model for all of them, or none. (steps.step.Workload)

All workers have the same weights after each step, and a gradient is a function of (seed, step, shard, micro-batch) and the
weights. So one model computes each gradient once, whoever asks for it, and takes each update once.
"""

import math
from collections.abc import Callable

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.steps.step import Compute, Workload, gradient_of
from sa_atp.steps.workloads.comm_models import parameter_shapes

STEPS_KEPT = 8  # of gradients: whoever is late by more computes them anew, which nobody does


class Shared:
    """One workload for all ranks of a job; each has a `View` of it."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.updates = 0
        """How many have been applied."""
        self.on_update: Callable[[int], None] = lambda step: None
        """Called with the number of updates before it, after each."""
        self._gradients: dict[int, dict[tuple[int, int, range | None], tuple[Values, float]]] = {}

    def gradient(self, work: Compute) -> tuple[Values, float]:
        """A gradient of a step that is not over, or that somebody has computed before it was."""
        known = self._gradients.setdefault(work.step, {})
        name = work.shard, work.micro_batch, work.samples
        found = known.get(name)
        if found is None:
            found = known[name] = gradient_of(self.workload, work)
        return found

    def apply(self, gradient: Values) -> None:
        self.workload.apply(gradient)
        self.on_update(self.updates)
        self.updates += 1
        self._gradients.pop(self.updates - STEPS_KEPT, None)


class View:
    """What one rank sees of a shared workload: the first that has a step's sum applies it."""

    def __init__(self, shared: Shared) -> None:
        self.values = shared.workload.values
        self.micro_batch_size = shared.workload.micro_batch_size
        self._shared = shared
        self._applied = 0

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._shared.gradient(Compute(step, shard, micro_batch, None))

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        return self._shared.gradient(Compute(step, shard, micro_batch, None, samples=samples))

    def apply(self, gradient: Values) -> None:
        if self._applied == self._shared.updates:
            self._shared.apply(gradient)
        self._applied += 1


class SizesOnly:
    """Gradients of a model's size without values."""

    def __init__(self, model: str, *, batch_size: int, micro_batches: int, scale: float = 1.0) -> None:
        """Args: see CommModel."""
        self.values = sum(max(1, round(shape.values * scale)) for shape in parameter_shapes(model))
        self.micro_batch_size = batch_size // micro_batches
        self._nothing = np.zeros(0, np.float32)

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._nothing, math.nan

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        return self._nothing, math.nan

    def apply(self, gradient: Values) -> None:
        """Nothing is trained."""
