"""A simulated cluster for tests: jobs, their workers, and sums whose every integer is checked."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sa_atp.basics.arrays import Counts
from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.simulator.nodes import Switch
from sa_atp.lab.simulator.sim_worker import SimWorker
from sa_atp.lab.simulator.world import SERVER_IP, Rack, World
from sa_atp.net.session import Sum
from sa_atp.protocol.job.errors import TransportError
from sa_atp.protocol.job.membership import JoinRequest
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.quantise import quantise
from sa_atp.protocol.packets.spec import UDP_PORT
from sa_atp.protocol.rank.compiled.common_case import Kernels
from sa_atp.protocol.rank.events import WorkerLimits
from sa_atp.protocol.rank.sums.operation import UNKNOWN
from sa_atp.protocol.server.job import State
from sa_atp.protocol.server.server_events import ServerSettings
from sa_atp.switches.control.events import EVENTS_A_JOB
from sa_atp.switches.embedded.pipeline import Pipeline

SERVER = (SERVER_IP, UDP_PORT)
SECOND_US = 1_000_000


def events_of(switch: Switch) -> Counts:
    """What a switch with the embedded target has counted: packets by event, of all jobs together."""
    assert isinstance(switch.pipeline, Pipeline)
    cells = switch.pipeline.counter("job_events")[:, 0].reshape(-1, EVENTS_A_JOB)
    return np.asarray(cells.sum(axis=0), np.int64)


class Cluster:
    """A world, and the workers of its jobs."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        seed: int = 1,
        links: LinkSettings | None = None,
        settings: ServerSettings | None = None,
        limits: WorkerLimits | None = None,
        ttl_ticks: int = 50,
        kernels: Kernels | None = None,
    ) -> None:
        self.kernels = kernels
        self.world = World(
            seed=seed,
            pipelines=list(pipelines),
            links=links or LinkSettings(),
            settings=settings or ServerSettings(),
            ttl_ticks=ttl_ticks,
            kernels=kernels,
        )
        self.clock = self.world.clock
        self.limits = limits
        self.rng = random.Random(seed ^ 0x5EED)
        self.jobs: list[list[SimWorker]] = []

    def start_job(
        self,
        size: int,
        *,
        name: str = "job",
        joined: Callable[[SimWorker], None] = lambda worker: None,
        **terms: Any,
    ) -> list[SimWorker]:
        """Adds a job's hosts; its workers join when the clock runs. Args: terms: see JoinRequest."""
        network = len(self.jobs)
        workers: list[SimWorker] = []
        for rank in range(size):
            self.world.add_worker(rank, network)
            workers.append(self.new_worker(name, rank, size, network, joined=joined, **terms))
        self.jobs.append(workers)
        return workers

    def new_worker(
        self,
        name: str,
        rank: int,
        size: int,
        network: int = 0,
        *,
        joined: Callable[[SimWorker], None] = lambda worker: None,
        **terms: Any,
    ) -> SimWorker:
        """A new connection on a host that is there: a worker that starts, or starts again. Args: terms: see JoinRequest."""
        return SimWorker(
            self.world.hosts[f"10.0.{network}.{rank + 1}"],
            self.clock,
            JoinRequest(job=name, rank=rank, world_size=size, **terms),
            SERVER,
            self.world.random,
            joined=joined,
            limits=self.limits,
            kernels=self.kernels,
        )

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        """Runs until the condition holds; fails with the state of every connection if it does not in time."""
        start_us = self.clock.now_us
        if not self.clock.run(until, start_us + int(seconds * SECOND_US)):
            raise AssertionError(
                f"not over after {(self.clock.now_us - start_us) / 1e6:.3f} simulated seconds\n{self.describe()}"
            )

    def run_for(self, seconds: float) -> None:
        """Lets time pass."""
        end_us = self.clock.now_us + int(seconds * SECOND_US)
        self.clock.at(end_us, lambda: None)
        self.clock.run(lambda: self.clock.now_us >= end_us, end_us)

    def run_until_joined(self, workers: Sequence[SimWorker]) -> None:
        self.run(lambda: all(hasattr(w, "worker") or w.error is not None for w in workers))
        for worker in workers:
            assert worker.error is None, worker.error

    def run_until_admitting(self) -> None:
        """Runs until a job's ranks are all there, and the switches are being told."""
        self.run(lambda: any(job.state is State.ADMITTING for job in self.world.server.jobs.values()))

    def joined_job(self, size: int, **terms: Any) -> list[SimWorker]:
        """Starts a job, and runs until all of its workers have joined. Args: terms: see JoinRequest."""
        workers = self.start_job(size, **terms)
        self.run_until_joined(workers)
        return workers

    def restart_switches(self, rng: np.random.Generator) -> None:
        """Restarts none, one or two switches within the next 20 ms."""
        for _ in range(int(rng.choice((0, 0, 1, 2)))):
            rack = self.world.racks[int(rng.integers(len(self.world.racks)))]
            when_us = self.clock.now_us + int(rng.integers(1, 20_000))
            down_us = int(rng.choice((10, 2_000, 20_000)))

            def restart(rack: Rack = rack, down_us: int = down_us) -> None:
                if rack.switch.up:
                    self.world.restart_switch(rack, down_us)

            self.clock.at(when_us, restart)

    def run_until_failed(self, workers: Sequence[SimWorker], seconds: float) -> list[TransportError]:
        """Returns: the error of each."""
        self.run(lambda: all(worker.error is not None for worker in workers), seconds)
        return [worker.error for worker in workers if worker.error is not None]

    def restarted_job(self, size: int, name: str = "job") -> list[SimWorker]:
        """Starts all ranks of a job again, in place of those that were there, and runs until they have joined."""
        return self.rejoined([self.new_worker(name, rank, size) for rank in range(size)])

    def rejoined(self, workers: list[SimWorker]) -> list[SimWorker]:
        """Runs until these have joined, in place of the job's workers before."""
        self.jobs = [workers]
        self.run_until_joined(workers)
        return workers

    def run_collectives(
        self, collectives: Sequence["Collective"], workers: Sequence[SimWorker], seconds: float = 60.0
    ) -> None:
        """Starts collectives on all ranks, runs until they are over, and checks them."""
        for each in collectives:
            for worker in workers:
                each.start(worker)
        self.finish_collectives(collectives, seconds)

    def finish_collectives(self, collectives: Sequence["Collective"], seconds: float = 60.0) -> None:
        """Runs until all of them are over, and checks them."""
        self.run(lambda: all(each.over for each in collectives), seconds)
        for each in collectives:
            each.check()
        self.check_books()

    def check_books(self) -> None:
        """All sums are over: no connection thinks that something of it is under way."""
        for worker in (w for job in self.jobs for w in job if w.error is None):
            under_way = worker.worker._operations.under_way
            assert (under_way.in_flight, under_way.missing) == (0, 0)

    def describe(self) -> str:
        lines = []
        for job in self.jobs:
            for worker in job:
                if worker.error is not None:
                    lines.append(f"error {worker.error!r}")
                if hasattr(worker, "worker"):
                    lines.append(worker.worker.describe())
        lines += [f"{job.name}: {job.state}, {job.stats}" for job in self.world.server.jobs.values()]
        return "\n".join(lines)


def wake(*workers: SimWorker) -> None:
    """Lets paused hosts go on."""
    for worker in workers:
        worker.host.paused = False
        worker.host.serve()


class Collective(Protocol):
    """A collective operation over all ranks of a job, with what it should result in."""

    def start(self, worker: SimWorker) -> object: ...
    @property
    def over(self) -> bool: ...
    def check(self) -> None: ...


def faulty_links(seed: int) -> LinkSettings:
    """Links that lose, double, reorder and damage packets, of any rate."""
    rng = np.random.default_rng(seed)
    return LinkSettings(
        rate_mbps=float(rng.choice((100, 1000, 10_000))), delay_us=int(rng.choice((5, 50, 300))),
        queue_packets=int(rng.choice((30, 1000))), loss=float(rng.choice((0, 0.001, 0.02, 0.1))),
        duplicate=float(rng.choice((0, 0.01))), reorder=float(rng.choice((0, 0.05))), jitter_us=int(rng.choice((0, 30))),
        corrupt=float(rng.choice((0, 0.002))),
    )  # fmt: skip


@dataclass(slots=True)
class Reduction:
    """One sum over all ranks of a job: what each contributes, and what each got."""

    parts: list[list[np.ndarray]]
    """[rank][micro-batch]: float32[values]"""
    key: object | None = None
    sums: dict[int, Sum] = field(default_factory=dict)
    outcomes: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """By rank: the integers of the sum, and the exponents of its chunks."""
    failed: int = 0

    @property
    def values(self) -> int:
        return self.parts[0][0].size

    @property
    def contributions(self) -> int:
        return len(self.parts) * len(self.parts[0])

    def begin(self, worker: SimWorker) -> Sum:
        """Starts it on one rank without contributing."""
        rank = worker.membership.rank
        sum_ = self.sums[rank] = worker.begin(self.values, self.key)
        sum_.future.add_done_callback(lambda _: self._take(rank, sum_))
        return sum_

    def _take(self, rank: int, sum_: Sum) -> None:
        if sum_.finished is None:
            self.failed += 1
            return
        integers, exponents = sum_.finished.integers()  # which are gone when the job has moved on
        self.outcomes[rank] = (integers.copy(), exponents.copy())

    def contribute(
        self, worker: SimWorker, micro_batches: Sequence[int] | None = None, rank: int | None = None
    ) -> None:
        """Contributes micro-batches of a rank (default: all of its own)."""
        rank = worker.membership.rank if rank is None else rank
        chosen = range(len(self.parts[rank])) if micro_batches is None else micro_batches
        bits = sum(worker.membership.bit(rank, m) for m in chosen)
        worker.contribute(
            self.sums[worker.membership.rank],
            [self.parts[rank][m] for m in chosen],
            bits,
            on_behalf=rank != worker.membership.rank,
        )

    def start(self, worker: SimWorker) -> Sum:
        """Begins and contributes everything of a rank's own."""
        sum_ = self.begin(worker)
        self.contribute(worker)
        return sum_

    @property
    def over(self) -> bool:
        """Every rank has its sum, or an error."""
        return len(self.outcomes) + self.failed == len(self.parts)

    def check(self) -> None:
        """Every rank has the same sum, and it is the sum of the quantised values bit for bit."""
        contributions = [part for shard in self.parts for part in shard]
        exact = np.sum(np.array(contributions, np.float64), axis=0)
        outs = {rank: sum_.future.result(timeout=0) for rank, sum_ in self.sums.items()}
        assert sorted(outs) == list(range(len(self.parts)))
        for rank, (integers, exponents) in self.outcomes.items():
            reference, bound = reference_sum(contributions, exponents)
            wrong = np.flatnonzero(integers != reference)
            assert not len(wrong), f"rank {rank}: {len(wrong)} sums differ, the first is value {wrong[0]}"
            out = outs[rank]
            assert np.array_equal(out, outs[0])
            rounding = np.abs(exact) * 2.0**-24  # of the result to float32
            assert (np.abs(out - exact) <= bound + rounding + 2.0**-140).all()


def ones(values: int, ranks: int, micro_batches: int = 1, key: object | None = None) -> Reduction:
    """A sum to which rank r contributes 1 + r, in each of its micro-batches."""
    parts = [[np.full(values, 1.0 + rank, np.float32) for _ in range(micro_batches)] for rank in range(ranks)]
    return Reduction(parts, key)


def reference_sum(parts: Sequence[np.ndarray], exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of quantised contributions, computed value by value in 64 bits, and the bound on its rounding error.

    Args: parts: float32[values] of every contribution; exponents: of each chunk.
    Returns: int64[values], float64[values].
    """
    values = parts[0].size
    total = np.zeros(values, np.int64)
    bound = np.zeros(values)
    for chunk, exponent in enumerate(exponents.tolist()):
        span = slice(chunk * CHUNK_VALUES, min((chunk + 1) * CHUNK_VALUES, values))
        if exponent == UNKNOWN:
            assert all(not part[span].any() for part in parts), "a chunk without an exponent is all zeros"
            continue
        bound[span] = len(parts) * 2.0 ** -(exponent + 1)
        for part in parts:
            rounded = np.empty(span.stop - span.start, np.int32)
            assert quantise([part[span]], exponent, len(parts), rounded) == 0, "a value that does not fit was accepted"
            assert np.array_equal(rounded, np.rint(part[span].astype(np.float64) * 2.0**exponent))
            total[span] += rounded
    return total, bound
