"""The papers' models as communication workloads: random gradients of their shapes and sizes, without training.

The models that ATP, SwitchML and others train need hardware that most people do not have. For a question about
communication it is enough that gradients have the right sizes and realistic values, and come when a device of given
speed would have them. The shapes are data (folder shapes); the time of a sample is a parameter of the plan.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Octets, Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.words import one_of

# Parameters of each model, as its authors count them.
COMM_MODELS = {"resnet-50": 25_557_032, "vgg-16": 138_357_544, "gpt-2-small": 124_439_808, "bert-base": 109_482_240}

# Bytes of one sample: an image of 224 x 224 pixels in three colours, or a text of 1024 (512) tokens of two bytes.
SAMPLE_BYTES = {"resnet-50": 150_528, "vgg-16": 150_528, "gpt-2-small": 2048, "bert-base": 1024}

SHIFTS = 4096  # different gradients, cut from one array of random numbers


@dataclass(frozen=True, slots=True)
class ParameterShape:
    name: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        return math.prod(self.shape)


@cache
def parameter_shapes(model: str) -> tuple[ParameterShape, ...]:
    """A model's parameters, in the order of its forward pass. Raises: UserError."""
    if model not in COMM_MODELS:
        raise UserError(f"model {model!r}: {one_of(model, COMM_MODELS, str)}")
    text = resources.files("sa_atp.steps.workloads").joinpath("shapes", f"{model}.json").read_text()
    return tuple(ParameterShape(name, tuple(shape)) for name, shape in json.loads(text))


class CommModel:
    """See step.Workload. Gradients are random, a function of (seed, step, shard, micro-batch); nothing is learned."""

    def __init__(
        self, model: str, *, seed: int, world_size: int, batch_size: int, micro_batches: int, scale: float = 1.0
    ) -> None:
        """Args: scale: share of every parameter that is sent, if the whole is too much for the machine.

        Raises: UserError.
        """
        if not 0.0 < scale <= 1.0:
            raise UserError(f"scale = {scale!r}: expected more than 0, and at most 1")
        self.micro_batch_size = batch_size // micro_batches
        shapes = parameter_shapes(model)
        sizes = [max(1, round(shape.values * scale)) for shape in shapes]
        self.values = sum(sizes)
        self._seed = seed
        self._model = model
        # A layer's gradients shrink with the number of its inputs, so the chunks of a gradient differ in magnitude.
        spread = np.repeat([1.0 / math.sqrt(max(1, math.prod(s.shape[1:]))) for s in shapes], sizes)
        rng = np.random.default_rng([seed, 0xC0])
        self._random = rng.standard_normal(self.values + SHIFTS, np.float32)
        self._random[: self.values] *= spread.astype(np.float32) / (world_size * micro_batches)

    def gradient(self, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """One micro-batch's gradient, float32[values], a view that must not be written; and NaN as its loss."""
        state = np.random.SeedSequence([self._seed, step, shard, micro_batch]).generate_state(1)
        first = int(state[0]) % SHIFTS
        return self._random[first : first + self.values], math.nan

    def gradient_at(self, weights: Values, step: int, shard: int, micro_batch: int) -> tuple[Values, float]:
        """As `gradient`, whatever the weights are."""
        return self.gradient(step, shard, micro_batch)

    def initial(self) -> Values:
        """float32[values], all 0."""
        return np.zeros(self.values, np.float32)

    def samples(self, step: int, shard: int, micro_batch: int) -> Octets:
        """As many bytes as a micro-batch's samples have, uint8[bytes]."""
        return np.zeros(self.micro_batch_size * SAMPLE_BYTES[self._model], np.uint8)

    def gradient_of(self, step: int, shard: int, micro_batch: int, samples: range) -> tuple[Values, float]:
        """As `gradient`, however many samples there are."""
        return self.gradient(step, shard, micro_batch)

    def apply(self, gradient: Values) -> None:
        """Nothing is trained."""

    def snapshot(self) -> Values:
        return np.zeros(0, np.float32)

    def score(self, weights: Values) -> Any:
        """None: there is nothing to evaluate."""
        return None
