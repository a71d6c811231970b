"""How slow each worker's device is in each step, and its link at each time: pure functions of the seed.

They are the same for every policy, so that policies can be compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True, kw_only=True)
class StragglerPattern:
    """See StragglerPlan and JobPlan for the meaning of the fields."""

    kind: str
    workers: tuple[int, ...]
    slowdown: float
    slowdown_range: tuple[float, float]
    pause_us: int
    every: int
    seed: int
    world_size: int
    speeds: tuple[float, ...] = ()
    probability: float = 0.0
    pause_range: tuple[float, float] = (0.5, 2.0)
    typical_us: int = 0
    """What a shard takes on a device of speed 1: the unit of pause_range."""
    trace: tuple[tuple[int, int, float], ...] = field(default=(), repr=False)
    """(step, worker, slow-down)."""

    def speed_of(self, worker: int) -> float:
        """Of its device, relative to a normal one."""
        return self.speeds[worker] if self.speeds else 1.0

    def slowdown_of(self, step: int, worker: int) -> float:
        """How many times longer than a normal device this worker's takes in this step."""
        return self._disturbance(step, worker) / self.speed_of(worker)

    def _disturbance(self, step: int, worker: int) -> float:
        """How many times longer its device takes than it usually does."""
        if self.kind == "constant":
            return self.slowdown if worker in self.workers else 1.0
        if self.kind == "random":
            rng = np.random.default_rng([self.seed, 0x51, step])
            slow, factor = int(rng.integers(self.world_size)), float(rng.uniform(*self.slowdown_range))
            return factor if worker == slow else 1.0
        if self.kind == "trace" and self.trace:
            return self._traced.get((step % self._trace_steps, worker), 1.0)
        return 1.0

    @cached_property
    def _traced(self) -> Mapping[tuple[int, int], float]:
        return {(step, worker): slowdown for step, worker, slowdown in self.trace}

    @cached_property
    def _trace_steps(self) -> int:
        return max(step for step, _, _ in self.trace) + 1

    def pause_us_of(self, step: int, worker: int) -> int:
        """For how long this worker stops in the middle of this step."""
        if self.kind == "random-pause":
            rng = np.random.default_rng([self.seed, 0x9A, step, worker])
            pauses = rng.random() < self.probability
            return int(rng.uniform(*self.pause_range) * self.typical_us) if pauses else 0
        is_due = self.kind == "pause" and worker in self.workers and step % self.every == self.every // 2
        return self.pause_us if is_due else 0

    def fluid_bound_us(self, step: int, shard_us: float) -> float:
        """Total work over total speed: no assignment can finish the step's work sooner.

        Args: shard_us: time that one shard takes on a normal device. A pause is not counted as lost speed.
        """
        speed = sum(1.0 / self.slowdown_of(step, worker) for worker in range(self.world_size))
        return self.world_size * shard_us / speed


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkContention:
    """Spells in which other traffic takes most of a worker's link, and the calm between them.

    After the pattern of A2TP's experiments (Li et al., A2TP: Aggregator-aware In-network Aggregation for Multi-tenant
    Learning, EuroSys 2023): what is left of a link changes while a job goes on. Lengths are uniform in their ranges.
    """

    workers: tuple[int, ...]
    share: float
    """What a spell leaves of the link's rate."""
    spell_us: tuple[float, float]
    calm_us: tuple[float, float]
    seed: int

    def spells(self, worker: int) -> Iterator[tuple[int, int]]:
        """From when to when a worker's link is contended, without end; nothing for one that never is."""
        if worker not in self.workers:
            return
        rng = np.random.default_rng([self.seed, 0xC7, worker])
        at = 0.0
        while True:
            start = at + rng.uniform(*self.calm_us)
            at = start + rng.uniform(*self.spell_us)
            yield int(start), int(at)
