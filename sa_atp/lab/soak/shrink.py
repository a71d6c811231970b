"""Reduces the description of a failing world to a smaller one that still fails in the same way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import OF_WORKERS, PLAIN, Fault, FaultKind, JobScene, Scene
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.switches.artefacts import most_contributions

MOST_RUNS = 250
# Fields that variants have as in the plainest scene, job and links, group by group.
PLAIN_SCENES = (
    ("lanes",), ("contributions",), ("slots",), ("slots", "quota"), ("ttl_ticks",), ("compiled",), ("gather_us",),
    ("peer",),
)  # fmt: skip
PLAIN_JOBS = (
    ("help",), ("scattered",), ("gathers",), ("magnitudes", "shapes"), ("magnitudes",), ("not_finite",), ("ahead",),
    ("keyed",), ("slow", "slowdown"), ("lossy", "loss"), ("compute_us",),
)  # fmt: skip
PLAIN_LINKS = (
    ("loss",), ("duplicate",), ("reorder", "reorder_by_us"), ("jitter_us",), ("corrupt",), ("rate_mbps",),
    ("delay_us",), ("queue_packets",),
)  # fmt: skip
T = TypeVar("T")


def shrink(
    scene: Scene, broken: Broken, run: Callable[[Scene], Broken | None], most_runs: int = MOST_RUNS
) -> tuple[Scene, Broken]:
    """Makes a failing scene smaller, step by step. Returns: the smallest that still fails, and its violation.

    Args:
        broken: the violation in the scene; smaller scenes with another kind of violation do not count.
        run: runs a scene; returns its violation, or None.
        most_runs: bound on the number of runs.
    """
    runs = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in smaller(scene):
            if runs == most_runs:
                return scene, broken
            runs += 1
            found = run(candidate)
            if found is not None and found.what == broken.what:
                scene, broken, is_smaller = candidate, found, True
                break
    return scene, broken


def smaller(scene: Scene) -> Iterator[Scene]:
    """Simpler variants of a scene, the largest reductions first. None equals the scene, so shrinking ends."""
    return (each for each in _variants(scene) if each != scene and _is_possible(each))


def _is_possible(scene: Scene) -> bool:
    """Whether there is a switch program for the scene, which its jobs fit, and each job's settings go together."""
    return scene.contributions <= most_contributions(scene.lanes) and all(
        job.contributions <= scene.contributions
        and (job.keyed or job.help is HelpGrade.NONE)
        and (job.not_finite is None or (job.not_finite[0] < len(job.lengths) and job.not_finite[1] < job.ranks))
        for job in scene.jobs
    )


def _variants(scene: Scene) -> Iterator[Scene]:
    """Variants that may equal the scene, or not be possible."""
    faults, jobs = scene.faults, scene.jobs
    if len(faults) > 1:
        yield replace(scene, faults=())
    for number in range(len(faults)):
        yield replace(scene, faults=_with(faults, number))
    if len(jobs) > 1:
        for number in range(len(jobs)):
            yield _without_job(scene, number)
    for number, job in enumerate(jobs):
        for simpler in _smaller_jobs(job):
            kept = tuple(fault for fault in faults if not _is_beyond(fault, number, simpler))
            yield replace(scene, jobs=_with(jobs, number, simpler), faults=kept)
    for leaves in sorted({0, *_fewer(scene.leaves)}):
        yield _with_leaves(scene, leaves)
    yield replace(scene, aggregates=True)
    if scene.trunk != scene.links:
        yield replace(scene, trunk=scene.links)
        for trunk in _plainer(scene.trunk, PLAIN, PLAIN_LINKS):
            yield replace(scene, trunk=trunk)
    for links in _plainer(scene.links, PLAIN, PLAIN_LINKS):
        yield replace(scene, links=links, trunk=links if scene.trunk == scene.links else scene.trunk)
    yield from _plainer(scene, Scene(seed=scene.seed), PLAIN_SCENES)
    for number, fault in enumerate(faults):
        if fault.for_us > 1:
            yield replace(scene, faults=_with(faults, number, replace(fault, for_us=fault.for_us // 4)))


def _with(things: tuple[T, ...], number: int, *other: T) -> tuple[T, ...]:
    """The things with another one, or none, in place of one of them."""
    return (*things[:number], *other, *things[number + 1 :])


def _fewer(count: int) -> list[int]:
    """The numbers that are tried in place of a larger one."""
    return sorted(fewer for fewer in {1, count // 2, count - 1} if 0 < fewer < count)


def _plainer(thing: T, plain: T, groups: Sequence[tuple[str, ...]]) -> Iterator[T]:
    """The thing with one group of fields after the other as the plain thing has them."""
    for names in groups:
        yield replace(thing, **{name: getattr(plain, name) for name in names})  # type: ignore[type-var]


def _is_beyond(fault: Fault, number: int, job: JobScene) -> bool:
    """Whether the fault is of a rank that the job does not have."""
    return fault.kind in OF_WORKERS and fault.job == number and fault.rank >= job.ranks


def _without_job(scene: Scene, number: int) -> Scene:
    faults = tuple(
        replace(fault, job=fault.job - (fault.job > number and fault.kind in OF_WORKERS))
        for fault in scene.faults
        if fault.kind not in OF_WORKERS or fault.job != number
    )
    return replace(scene, jobs=_with(scene.jobs, number), faults=faults)


def _with_leaves(scene: Scene, leaves: int) -> Scene:
    """The scene with another number of leaves; faults of removed leaves move to the last leaf, or to the root."""
    faults = tuple(
        replace(fault, switch=min(fault.switch, leaves))
        for fault in scene.faults
        if leaves or fault.kind is not FaultKind.CUT_LEAF
    )
    return replace(scene, leaves=leaves, faults=faults)


def _smaller_jobs(job: JobScene) -> Iterator[JobScene]:
    for ranks in _fewer(job.ranks):
        yield replace(
            job,
            ranks=ranks,
            slow=tuple(rank for rank in job.slow if rank < ranks),
            lossy=tuple(rank for rank in job.lossy if rank < ranks),
            help=job.help if ranks > 1 else HelpGrade.NONE,
        )
    steps = len(job.lengths)
    for kept in _fewer(steps):
        yield replace(
            job, lengths=job.lengths[:kept], magnitudes=job.magnitudes[:kept], shapes=job.shapes[:kept],
            ahead=min(job.ahead, kept),
        )  # fmt: skip
    for micro_batches in sorted({1, job.micro_batches // 2} - {0}):
        yield replace(job, micro_batches=micro_batches)
    for divisor in (64, 8, 2):
        yield replace(job, lengths=tuple(max(1, length // divisor) for length in job.lengths))
    yield from _plainer(job, JobScene(magnitudes=(0,) * steps, shapes=("whole",) * steps), PLAIN_JOBS)
