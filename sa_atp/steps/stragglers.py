"""Stragglers: the slowness of each worker's device in each step, and of its link over time, as pure functions of the
seed.

All policies meet the same stragglers, so that they can be compared.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

NORMAL_99 = 2.3263478740408408  # 99th percentile of the standard normal distribution


@dataclass(frozen=True, kw_only=True)
class StragglerPattern:
    """The slow-downs and pauses of a run; StragglerPlan and JobPlan explain the fields."""

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
    among: tuple[int, ...] = ()
    points: int = 1
    tail: float = 1.0
    typical_us: int = 0
    """Time of a shard on a device of speed 1: the unit of pause_range."""
    from_step: int = 0
    until_step: int = 0
    trace: tuple[tuple[int, int, float], ...] = field(default=(), repr=False)
    """(step, worker, slow-down)."""

    def speed_of(self, worker: int) -> float:
        """The speed of a worker's device, relative to a normal one."""
        return self.speeds[worker] if self.speeds else 1.0

    def is_on(self, step: int) -> bool:
        """Whether there are stragglers in a step; what is drawn for one does not depend on that."""
        return self.from_step <= step and (not self.until_step or step < self.until_step)

    def slowdown_of(self, step: int, worker: int) -> float:
        """How many times as long as a normal device a worker's device takes in a step."""
        return (self._disturbance(step, worker) if self.is_on(step) else 1.0) / self.speed_of(worker)

    def _disturbance(self, step: int, worker: int) -> float:
        """How many times as long as usual a worker's device takes in a step."""
        if self.kind == "constant":
            return self.slowdown if worker in self.workers else 1.0
        if self.kind == "random":
            rng = np.random.default_rng([self.seed, 0x51, step])
            among = self.among or range(self.world_size)
            slow, factor = among[int(rng.integers(len(among)))], float(rng.uniform(*self.slowdown_range))
            return factor if worker == slow else 1.0
        if self.kind == "tail" and self._may_be_slow(worker):
            return with_tail(np.random.default_rng([self.seed, 0x7A, step, worker]), self.tail)
        if self.kind == "trace" and self.trace:
            return self._traced.get((step % self._trace_steps, worker), 1.0)
        return 1.0

    def _may_be_slow(self, worker: int) -> bool:
        """Whether a worker is among those that are drawn from."""
        return not self.among or worker in self.among

    @cached_property
    def _traced(self) -> Mapping[tuple[int, int], float]:
        return {(step, worker): slowdown for step, worker, slowdown in self.trace}

    @cached_property
    def _trace_steps(self) -> int:
        return max(step for step, _, _ in self.trace) + 1

    def pause_us_of(self, step: int, worker: int) -> int:
        """Returns for how long a worker stops in the middle of a step, in microseconds; 0: it does not."""
        if not self.is_on(step):
            return 0
        if self.kind == "random-pause":
            rng = np.random.default_rng([self.seed, 0x9A, step, worker])
            points = range(self.points) if self._may_be_slow(worker) else ()
            return sum(
                int(rng.uniform(*self.pause_range) * self.typical_us) for _ in points if rng.random() < self.probability
            )
        is_due = self.kind == "pause" and worker in self.workers and step % self.every == self.every // 2
        return self.pause_us if is_due else 0

    def fluid_bound_us(self, step: int, shard_us: float, gain_of: Callable[[int], float] = lambda worker: 1.0) -> float:
        """The fluid bound, total work over total speed: no assignment can finish the step's work sooner.

        Args:
        shard_us: time of one shard on a normal device. Pauses do not count as lost speed.
        gain_of: the highest throughput of a worker's device, relative to one task at a time.
        """
        speed = sum(gain_of(worker) / self.slowdown_of(step, worker) for worker in range(self.world_size))
        return self.world_size * shard_us / speed


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkContention:
    """Spells in which other traffic takes most of a worker's link, with calm between them.

    After the pattern of A2TP's experiments (Li et al., A2TP: Aggregator-aware In-network Aggregation for Multi-tenant
    Learning, EuroSys 2023): what is left of a link changes while a job goes on. Lengths are uniform in their ranges.
    """

    workers: tuple[int, ...]
    share: float
    """Share of the link's rate that is left in a spell."""
    tail: float = 1.0
    """More than 1: the share is drawn for each spell; its inverse has this 99th percentile over its median, which is 1."""
    spell_us: tuple[float, float]
    calm_us: tuple[float, float]
    seed: int

    def spells(self, worker: int) -> Iterator[tuple[int, int, float]]:
        """Start and end of each spell on a worker's link, and the share that is left, without end; empty for a link without
        contention.
        """
        if worker not in self.workers:
            return
        rng = np.random.default_rng([self.seed, 0xC7, worker])
        at = 0.0
        while True:
            start = at + rng.uniform(*self.calm_us)
            at = start + rng.uniform(*self.spell_us)
            yield int(start), int(at), min(1.0, 1 / with_tail(rng, self.tail)) if self.tail > 1 else self.share


def with_tail(rng: np.random.Generator, tail: float) -> float:
    """Draws from the log-normal distribution with a median of 1 and this 99th percentile."""
    return float(tail ** (rng.standard_normal() / NORMAL_99))
