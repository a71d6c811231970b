"""Draws the description of a world from a seed: most worlds are small and quick, a few are large, slow, or both."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.soak.scene import OF_SWITCHES, OF_WORKERS, Fault, FaultKind, JobScene, Scene
from sa_atp.lab.soak.values import SHAPES
from sa_atp.protocol.numbers.fragments import CHUNK_VALUES
from sa_atp.protocol.numbers.scattered import cut_of
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS, LANE_BUILDS, MOST_RANKS, WIDE_BUILDS
from sa_atp.switches.artefacts import most_contributions

T = TypeVar("T")
Jobs = tuple[JobScene, ...]

RATES_MBPS = (10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
DELAYS_US = (1, 5, 20, 20, 100, 1000, 10_000, 50_000)  # one-way delay of a link: from a rack to another continent
LOSSES = (0.0, 0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3)
MOST_TRUNK_LOSS = 0.1  # between switches, where a packet crosses several links and workers' links lose packets, too
SLOTS = (1, 2, 4, 16, 64, 256, 1024)
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 200, 500, 1000, 8000)
CHUNK_EDGES = (CHUNK_VALUES - 1, CHUNK_VALUES, CHUNK_VALUES + 1)
PACKETS = (20, 20, 50, 50, 100, 100, 200, 400)  # about so many data packets that a job's ranks send for all sums
MANY_PACKETS = 2000  # the same in a large world
SHORT_US, LONG_US = (1, 2_000_000), (2_000_000, 20_000_000)
SHORT = 0.93  # share of faults that are short
FAULTS = (
    (FaultKind.RESTART_SWITCH, 6),
    (FaultKind.PAUSE_SWITCH, 3),
    (FaultKind.CUT_WORKER, 3),
    (FaultKind.PAUSE_WORKER, 4),
    (FaultKind.PAUSE_SERVER, 3),
    (FaultKind.RESTART_SERVER, 2),
    (FaultKind.RESTART_WORKER, 3),
    (FaultKind.KILL_WORKER, 1),
)  # with weights; in worlds with leaves there is one more kind
PEERS = 0.1  # share of worlds with a job of SwitchML
SHORT_OF_SERVER = 0.6  # the same of the parameter server's pauses: during long ones, requests to it time out


def draw(seed: int) -> Scene:
    rng = random.Random(seed)
    leaves = _weighted(rng, ((0, 6), (1, 1), (2, 3), (3, 1)))
    aggregates = bool(leaves) or rng.random() < 0.95
    slots = rng.choice(SLOTS)
    links = _links(rng, rng.choice(LOSSES))
    trunk = links if rng.random() < 0.3 else _links(rng, rng.choice(LOSSES))
    if trunk.loss > MOST_TRUNK_LOSS:
        trunk = replace(trunk, loss=MOST_TRUNK_LOSS)
    lanes = _weighted(rng, ((64, 8), *((lanes, 1) for lanes in LANE_BUILDS if lanes != 64)))
    large = rng.random() < 0.01
    contributions = CONTRIBUTION_BITS
    if any(width == lanes for width, _ in WIDE_BUILDS) and seed % 2:
        contributions = most_contributions(lanes)
    jobs = tuple(_job(rng, large, lanes, contributions) for _ in range(_weighted(rng, ((1, 6), (2, 3), (3, 1)))))
    quota = rng.choice([quota for quota in SLOTS if quota <= slots])
    jobs = _some(random.Random(seed ^ 0x5CA77E2), 0.6, jobs, partial(_scattered, quota))
    jobs = _some(random.Random(seed ^ 0x6A78E2), 0.4, jobs, _gathering)
    return Scene(
        seed=seed,
        lanes=lanes,
        contributions=contributions,
        leaves=leaves,
        aggregates=aggregates,
        slots=slots,
        quota=quota,
        ttl_ticks=rng.choice((1, 5, 50, 100)),
        links=links,
        trunk=trunk,
        jobs=jobs,
        faults=tuple(_fault(rng, leaves, jobs) for _ in range(_weighted(rng, ((0, 5), (1, 3), (2, 2), (4, 1))))),
        compiled=rng.random() < 0.6,
        gather_us=_weighted(rng, ((0, 2), (10, 1), (200, 1), (1000, 1))),
        peer=random.Random(seed ^ 0x5317C4).random() < PEERS,
    )


def _weighted(rng: random.Random, choices: Sequence[tuple[T, int]]) -> T:
    return rng.choices([choice for choice, _ in choices], [weight for _, weight in choices])[0]


def _links(rng: random.Random, loss: float) -> LinkSettings:
    delay_us = rng.choice(DELAYS_US)
    return LinkSettings(
        rate_mbps=rng.choice(RATES_MBPS),
        delay_us=delay_us,
        queue_packets=rng.choice((30, 100, 1000)),
        loss=loss * rng.choice((1.0, rng.random())),
        duplicate=rng.choice((0.0, 0.0, 0.01, 0.1)),
        reorder=rng.choice((0.0, 0.0, 0.05, 0.2)),
        reorder_by_us=rng.choice((50, 1000, 2 * delay_us + 1)),
        jitter_us=rng.choice((0, 0, 30, delay_us)),
        corrupt=rng.choice((0.0, 0.0, 0.001, 0.02)),
    )


def _job(rng: random.Random, large: bool, lanes: int, contributions: int) -> JobScene:
    ranks = rng.randint(1, 4) if rng.random() < 0.7 else rng.randint(2, 10)
    if large or rng.random() < 0.005:
        ranks = rng.randint(13, MOST_RANKS)
    most = contributions // ranks
    pieces = (4, 8, 16) if contributions == CONTRIBUTION_BITS else (8, 64, 256)
    micro_batches = 1 if rng.random() < 0.5 else rng.randint(1, min(most, rng.choice(pieces)))
    grade = HelpGrade.NONE
    if ranks > 1 and rng.random() < 0.5:
        grade = rng.choice((HelpGrade.STEAL, HelpGrade.STEAL, HelpGrade.CLONE))
    count = rng.randint(1, 6)
    lengths = _lengths(rng, ranks, count, lanes, MANY_PACKETS if large else rng.choice(PACKETS))
    if grade is not HelpGrade.NONE or rng.random() < 0.5:
        lengths = [min(lengths)] * count
    magnitude, magnitudes = rng.randint(-30, 30), []
    for _ in range(count):
        magnitude = max(-120, min(100, magnitude + rng.choice((0, 0, 0, 1, -1, 6, -6, 20, -20))))
        magnitudes.append(magnitude)
    some = [rank for rank in range(ranks) if rng.random() < 0.3]
    lossy = [rank for rank in range(ranks) if rng.random() < 0.3]
    return JobScene(
        ranks=ranks,
        micro_batches=micro_batches,
        help=grade,
        lengths=tuple(lengths),
        magnitudes=tuple(magnitudes),
        shapes=tuple(_weighted(rng, SHAPES) for _ in range(count)),
        keyed=grade is not HelpGrade.NONE or rng.random() < 0.6,
        ahead=1 if grade is not HelpGrade.NONE else rng.choice((1, 1, 2, count)),
        compute_us=rng.choice((0, 100, 1000, 10_000)),
        slow=tuple(some),
        slowdown=rng.choice((1, 3, 10)),
        lossy=tuple(lossy) if rng.random() < 0.3 else (),
        loss=(rng.choice(LOSSES), rng.choice(LOSSES)),
        not_finite=(rng.randrange(count), rng.randrange(ranks)) if rng.random() < 0.03 else None,
    )


def _some(rng: random.Random, share: float, jobs: Sequence[JobScene], kind: Callable[[JobScene], JobScene]) -> Jobs:
    """Changes some of the jobs that can be of a kind. What else a seed means does not depend on its generator."""
    changed = zip(jobs, map(kind, jobs), strict=True)
    return tuple(other if other != job and rng.random() < share else job for job, other in changed)


def _scattered(quota: int, job: JobScene) -> JobScene:
    """The job with scattered results, if it can have them."""
    if job.help is not HelpGrade.NONE or job.micro_batches > 1 or cut_of(job.ranks, quota) is None:
        return job
    return replace(job, scattered=True, lengths=tuple(max(1, length // job.ranks) for length in job.lengths))


def _gathering(job: JobScene) -> JobScene:
    """The job with all-gathers, if it can have them."""
    return replace(job, gathers=job.help is HelpGrade.NONE and not job.scattered and job.not_finite is None)


def _lengths(rng: random.Random, ranks: int, count: int, lanes: int, packets: int) -> list[int]:
    if ranks <= 2 and rng.random() < 0.01:
        return [rng.choice(CHUNK_EDGES) for _ in range(count)]
    most = max(1, packets * lanes // (ranks * count))
    return [min(most, rng.choice(LENGTHS)) for _ in range(count)]


def _fault(rng: random.Random, leaves: int, jobs: Sequence[JobScene]) -> Fault:
    kinds = [*FAULTS, (FaultKind.CUT_LEAF, 3)] if leaves else FAULTS
    kind = _weighted(rng, kinds)
    job = rng.randrange(len(jobs))
    at_us = round(10 ** rng.uniform(1, 5.5))
    short = SHORT_OF_SERVER if kind is FaultKind.PAUSE_SERVER else SHORT
    low, high = SHORT_US if rng.random() < short else LONG_US
    return Fault(
        kind=kind,
        at_us=at_us if rng.random() < 0.9 else -at_us,
        for_us=0 if kind is FaultKind.KILL_WORKER else round(low * (high / low) ** rng.random()),
        switch=(rng.randint(1, leaves) if kind is FaultKind.CUT_LEAF else rng.randint(0, leaves))
        * (kind in OF_SWITCHES),
        job=job * (kind in OF_WORKERS),
        rank=rng.randrange(jobs[job].ranks) * (kind in OF_WORKERS),
    )
