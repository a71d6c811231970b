"""Random scenarios of a cluster, each a pure function of its seed."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from helpers.cluster import Cluster, Reduction
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.embedded.pipeline import Pipeline

LOSSES = (0.0, 0.001, 0.01, 0.1)
LENGTHS = (1, 63, 64, 65, 127, 128, 129, 200, 500, 700, 1000)
LONG = (1500, 16_383, 16_384, 16_385)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    seed: int
    links: LinkSettings
    slots: int
    job_sizes: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    """of each operation of each job"""
    restarts: tuple[tuple[int, int], ...]
    """(when, for how long) the switch is off, from when the first operation begins; microseconds"""


def draw(seed: int) -> Scenario:
    rng = random.Random(seed)
    jobs = rng.choice((1, 2))
    return Scenario(
        seed=seed,
        links=LinkSettings(
            rate_mbps=rng.choice((100.0, 1000.0, 10_000.0)),
            delay_us=rng.choice((5, 50, 300)),
            queue_packets=rng.choice((30, 1000)),
            loss=LOSSES[seed % len(LOSSES)],
            duplicate=rng.choice((0.0, 0.01)),
            reorder=rng.choice((0.0, 0.05)),
            reorder_by_us=rng.choice((50, 1000)),
            jitter_us=rng.choice((0, 30)),
        ),
        slots=rng.choice((16, 16, 1024)),
        job_sizes=tuple(rng.randint(1, 4) for _ in range(jobs)),
        lengths=tuple(
            tuple(rng.choice(LENGTHS if rng.random() < 0.97 else LONG) for _ in range(rng.randint(2, 6)))
            for _ in range(jobs)
        ),
        restarts=tuple(
            (rng.randrange(1, 20_000), rng.choice((10, 2_000, 20_000))) for _ in range(rng.choice((0, 0, 1, 2)))
        ),
    )


def tensors(rng: np.random.Generator, ranks: int, values: int, magnitude: int) -> list[list[np.ndarray]]:
    """One contribution a rank: normal values about 2**magnitude, some of them zeros altogether."""
    found = []
    for _ in range(ranks):
        part = np.ldexp(rng.standard_normal(values), magnitude).astype(np.float32)
        if rng.random() < 0.1:
            part[:] = 0
        found.append([part])
    return found


class Runner:
    """Runs a scenario: each rank begins the operations in order, some at once and some one after the other."""

    def __init__(self, scenario: Scenario, pipelines: Sequence[Pipeline]) -> None:
        self.scenario = scenario
        settings = ServerSettings(slots=scenario.slots, slots_per_job=scenario.slots)
        self.cluster = Cluster(pipelines, seed=scenario.seed, links=scenario.links, settings=settings)
        self.rng = random.Random(scenario.seed ^ 0xABCD)
        values = np.random.default_rng(scenario.seed)
        self.jobs: list[list[Reduction]] = []
        self._restarts_scheduled = False
        self._unfinished: list[Reduction] = []
        for number, (size, lengths) in enumerate(zip(scenario.job_sizes, scenario.lengths, strict=True)):
            reductions = []
            magnitude = self.rng.randint(-30, 30)
            # A few tensors that come again and again, so that scales are predicted, and wrongly when magnitudes jump.
            repeated = lengths[0] if self.rng.random() < 0.7 else None
            for length in lengths:
                magnitude += self.rng.choice((0, 0, 0, 1, -1, 6, -6, 20, -20))
                magnitude = max(-120, min(100, magnitude))
                values_ = repeated or length
                key = "tensor" if repeated else None
                reductions.append(Reduction(tensors(values, size, values_, magnitude), key))
            self.jobs.append(reductions)
            self._unfinished += reversed(reductions)
            self.cluster.start_job(size, name=f"job {number}", joined=self._starter(reductions))

    def _starter(self, reductions: list[Reduction]) -> Callable[[SimWorker], None]:
        def start(worker: SimWorker) -> None:
            if not self._restarts_scheduled:
                self._restarts_scheduled = True
                for when, down_us in self.scenario.restarts:
                    self._at(when, partial(self._restart, down_us))
            self._begin(worker, reductions, 0)

        return start

    def _restart(self, down_us: int) -> None:
        if self.cluster.world.root.switch.up:
            self.cluster.world.restart_switch(self.cluster.world.root, down_us)

    def _at(self, delay_us: int, action: Callable[[], None]) -> None:
        self.cluster.clock.at(self.cluster.clock.now_us + delay_us, action)

    def _begin(self, worker: SimWorker, reductions: list[Reduction], at: int) -> None:
        """Begins operations until one is chosen to be waited for; in every other scenario all at once."""
        at_once = self.scenario.seed % 8 < 4
        while at < len(reductions):
            sum_ = reductions[at].start(worker)
            at += 1
            if not at_once and self.rng.random() < 0.4:
                sum_.future.add_done_callback(self._later(partial(self._begin, worker, reductions, at)))
                return

    def _later(self, action: Callable[[], None]) -> Callable[[object], None]:
        """What does something a while after it is called."""
        return lambda _: self._at(self.rng.randrange(500), action)

    @property
    def over(self) -> bool:
        while self._unfinished and self._unfinished[-1].over:
            self._unfinished.pop()
        return not self._unfinished

    def run(self) -> None:
        self.cluster.run(lambda: self.over)
        for job in self.jobs:
            for reduction in job:
                reduction.check()
        self.cluster.check_books()
