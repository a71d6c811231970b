"""Randomness as a function of (seed, step, rank): a helper that computes another rank's gradient draws the same numbers."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """63 bits that depend on all of these numbers, and on their order."""
    high, low = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return (int(high) << 32 | int(low)) >> 1


@contextlib.contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seeds `random`, `numpy.random` and `torch` (CPU and current GPU) within; outside, they go on as before."""
    python, array = random.getstate(), np.random.get_state()
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    seed = seed_of(*numbers)
    with torch.random.fork_rng(gpus):
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
