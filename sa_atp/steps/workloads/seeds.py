"""Random numbers as a function of (seed, step, rank), so that a helper draws the same as the owner of the shard."""

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
    """Seeds `random`, `numpy.random` and `torch` (CPU and all GPUs), and restores their states at the end.

    A program's own generators, such as those of numpy.random.default_rng, are not seeded.
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
    """PyTorch's generators of the CPU and of every GPU in use. (torch.manual_seed would start CUDA.)"""
    started = torch.cuda.is_available() and cast(Any, torch.cuda).is_initialized()
    return [torch.default_generator, *(cast(Any, torch.cuda).default_generators if started else ())]
