"""How slow each worker's device is in each step: a pure function of the seed, the same for every policy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerPattern:
    """See StragglerPlan for the meaning of the fields."""

    kind: str
    workers: tuple[int, ...]
    slowdown: float
    slowdown_range: tuple[float, float]
    pause_us: int
    every: int
    seed: int
    world_size: int

    def slowdown_of(self, step: int, worker: int) -> float:
        """How many times longer than a normal device this worker's takes in this step."""
        if self.kind == "constant":
            return self.slowdown if worker in self.workers else 1.0
        if self.kind == "random":
            rng = np.random.default_rng([self.seed, 0x51, step])
            slow, factor = int(rng.integers(self.world_size)), float(rng.uniform(*self.slowdown_range))
            return factor if worker == slow else 1.0
        return 1.0

    def pause_us_of(self, step: int, worker: int) -> int:
        """For how long this worker stops in the middle of this step."""
        is_due = self.kind == "pause" and worker in self.workers and step % self.every == self.every // 2
        return self.pause_us if is_due else 0

    def fluid_bound_us(self, step: int, shard_us: float) -> float:
        """Total work over total speed: no assignment can finish the step's work sooner.

        Args: shard_us: time that one shard takes on a normal device. A pause is not counted as lost speed.
        """
        speed = sum(1.0 / self.slowdown_of(step, worker) for worker in range(self.world_size))
        return self.world_size * shard_us / speed
