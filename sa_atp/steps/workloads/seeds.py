"""Randomness as a function of (seed, step, rank): a helper that computes another rank's gradient draws the same numbers."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """63 bits that depend on all of these numbers, and on their order."""
    high, low = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return (int(high) << 32 | int(low)) >> 1


@contextlib.contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seeds `random`, `numpy.random` and `torch` (CPU and all GPUs) within; outside, they go on as before.

    Generators of one's own, like those of numpy.random.default_rng, are not reached.
    """
    python, array = random.getstate(), np.random.get_state()
    generators = _generators()
    states = [generator.get_state() for generator in generators]
    seed = seed_of(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    """Of the CPU and of every GPU. torch.manual_seed would also start CUDA, or note a seed for when it is started."""
    started = torch.cuda.is_available() and cast(Any, torch.cuda).is_initialized()
    return [torch.default_generator, *(cast(Any, torch.cuda).default_generators if started else ())]
