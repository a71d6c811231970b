"""Workloads for many workers in one process: one model for all of them, or none. (steps.effects.Workload)

All workers have the same weights after each step, and a gradient is a function of (seed, step, shard, micro-batch) and the
weights. So one model computes each gradient once, for all workers, and applies each update once.
"""

import math
from collections.abc import Callable

import numpy as np

from sa_atp.basics.arrays import Values
from sa_atp.steps.effects import Compute, WeightedWorkload, gradient_of
from sa_atp.steps.workloads.comm_models import parameter_shapes

STEPS_KEPT = 8  # gradients of older steps are dropped; no worker is so far behind


class SharedWorkload:
    """One workload for all ranks of a job; each rank has a `WorkloadView` of it."""

    def __init__(self, workload: WeightedWorkload) -> None:
        self.workload = workload
        self.updates = 0
        """Number of updates applied."""
        self.on_update: Callable[[int], None] = lambda step: None
        """Called after each update, with the number of updates before it."""
        self.weights = [workload.snapshot()]
        """The weights after each number of updates."""
        self._gradients: dict[int, dict[tuple[int, int, range | None], tuple[Values, float]]] = {}

    def gradient(self, work: Compute) -> tuple[Values, float]:
        """The gradient of a micro-batch: of the current step, or of an earlier one if it was computed in time."""
        if work.weights is not None:  # those that its worker began with: nobody else computes the same
            return gradient_of(self.workload, work)
        known = self._gradients.setdefault(work.step, {})
        name = work.shard, work.micro_batch, work.samples
        found = known.get(name)
        if found is None:
            found = known[name] = gradient_of(self.workload, work)
        return found

    def apply(self, gradient: Values) -> None:
        self.workload.apply(gradient)
        self.weights.append(self.workload.snapshot())
        self.on_update(self.updates)
        self.updates += 1
        self._gradients.pop(self.updates - STEPS_KEPT, None)


class WorkloadView:
    """One rank's view of a shared workload: the first rank that has a step's sum applies it."""

    def __init__(self, shared: SharedWorkload) -> None:
        self.values = shared.workload.values
        self.micro_batch_size = shared.workload.micro_batch_size
        self._shared = shared
        self._applied = 0

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._shared.gradient(Compute(step, shard, micro_batch, None))

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        return self._shared.gradient(Compute(step, shard, micro_batch, None, samples=samples))

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._shared.gradient(Compute(step, shard, micro_batch, None, weights))

    def snapshot(self) -> Values:
        """The weights after the updates that this rank has applied; others may have applied more."""
        return self._shared.weights[self._applied]

    def apply(self, gradient: Values) -> None:
        if self._applied == self._shared.updates:
            self._shared.apply(gradient)
        self._applied += 1


class SizesOnly:
    """Gradients of a model's size without values."""

    def __init__(self, model: str, *, batch_size: int, micro_batches: int, scale: float = 1.0) -> None:
        """Args: see `CommModel`."""
        self.values = sum(max(1, round(shape.values * scale)) for shape in parameter_shapes(model))
        self.micro_batch_size = batch_size // micro_batches
        self._nothing = np.zeros(0, np.float32)

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._nothing, math.nan

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        return self._nothing, math.nan

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        return self._nothing, math.nan

    def snapshot(self) -> Values:
        return self._nothing

    def apply(self, gradient: Values) -> None:
        """Does nothing: there are no values to apply."""
