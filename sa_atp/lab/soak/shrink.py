"""Reduces the description of a failing world to a smaller one that still fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from sa_atp.lab.simulator.network import LinkSettings
from sa_atp.lab.soak.invariants import Broken
from sa_atp.lab.soak.scene import OF_WORKERS, PLAIN, Fault, FaultKind, JobScene, Scene
from sa_atp.protocol.packets.message_fields import HelpGrade
from sa_atp.protocol.packets.spec import CONTRIBUTION_BITS

MOST_RUNS = 250


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
    yield from _without_faults(scene)
    if len(scene.jobs) > 1:
        for number in range(len(scene.jobs)):
            yield _without_job(scene, number)
    for number, job in enumerate(scene.jobs):
        for simpler in _smaller_jobs(job):
            faults = tuple(fault for fault in scene.faults if not _is_beyond(fault, number, simpler))
            jobs = (*scene.jobs[:number], simpler, *scene.jobs[number + 1 :])
            yield replace(scene, jobs=jobs, faults=faults)
    if scene.leaves:
        for leaves in {0, 1, scene.leaves - 1} - {scene.leaves}:
            yield _with_leaves(scene, leaves)
    if not scene.aggregates:
        yield replace(scene, aggregates=True)
    if scene.trunk != scene.links:
        yield replace(scene, trunk=scene.links)
        for trunk in _simpler_links(scene.trunk):
            yield replace(scene, trunk=trunk)
    for links in _simpler_links(scene.links):
        yield replace(scene, links=links, trunk=links if scene.trunk == scene.links else scene.trunk)
    for plain in (
        replace(scene, lanes=64) if scene.contributions == CONTRIBUTION_BITS else scene,
        _of_64(scene),
        replace(scene, slots=1024),
        replace(scene, slots=1024, quota=1024),
        replace(scene, ttl_ticks=50),
        replace(scene, compiled=False),
        replace(scene, gather_us=0),
        replace(scene, peer=False),
    ):
        if plain != scene:
            yield plain
    for number, fault in enumerate(scene.faults):
        if fault.for_us > 1:
            shorter = replace(fault, for_us=fault.for_us // 4)
            yield replace(scene, faults=(*scene.faults[:number], shorter, *scene.faults[number + 1 :]))


def _without_faults(scene: Scene) -> Iterator[Scene]:
    if len(scene.faults) > 1:
        yield replace(scene, faults=())
    for number in range(len(scene.faults)):
        yield replace(scene, faults=(*scene.faults[:number], *scene.faults[number + 1 :]))


def _is_beyond(fault: Fault, number: int, job: JobScene) -> bool:
    """Whether the fault is of a rank that the job does not have."""
    return fault.kind in OF_WORKERS and fault.job == number and fault.rank >= job.ranks


def _without_job(scene: Scene, number: int) -> Scene:
    faults = tuple(
        replace(fault, job=fault.job - (fault.job > number and fault.kind in OF_WORKERS))
        for fault in scene.faults
        if fault.kind not in OF_WORKERS or fault.job != number
    )
    return replace(scene, jobs=(*scene.jobs[:number], *scene.jobs[number + 1 :]), faults=faults)


def _with_leaves(scene: Scene, leaves: int) -> Scene:
    """The scene with another number of leaves; faults of removed leaves move to the last leaf, or to the root."""
    faults = tuple(
        replace(fault, switch=min(fault.switch, leaves))
        for fault in scene.faults
        if leaves or fault.kind is not FaultKind.CUT_LEAF
    )
    return replace(scene, leaves=leaves, faults=faults)


def _smaller_jobs(job: JobScene) -> Iterator[JobScene]:
    for ranks in sorted({1, job.ranks // 2, job.ranks - 1} - {0, job.ranks}):
        if ranks < job.ranks and (job.not_finite is None or job.not_finite[1] < ranks):
            yield replace(
                job,
                ranks=ranks,
                slow=tuple(rank for rank in job.slow if rank < ranks),
                lossy=tuple(rank for rank in job.lossy if rank < ranks),
                help=job.help if ranks > 1 else HelpGrade.NONE,
            )
    steps = len(job.lengths)
    for kept in sorted({1, steps // 2, steps - 1} - {0, steps}):
        if kept < steps and (job.not_finite is None or job.not_finite[0] < kept):
            yield replace(
                job, lengths=job.lengths[:kept], magnitudes=job.magnitudes[:kept], shapes=job.shapes[:kept],
                ahead=min(job.ahead, kept),
            )  # fmt: skip
    for micro_batches in sorted({1, job.micro_batches // 2} - {0, job.micro_batches}):
        yield replace(job, micro_batches=micro_batches)
    for divisor in (64, 8, 2):
        lengths = tuple(max(1, length // divisor) for length in job.lengths)
        if lengths != job.lengths:
            yield replace(job, lengths=lengths)
    plain = JobScene(
        lengths=job.lengths,
        magnitudes=(0,) * steps,
        shapes=("whole",) * steps,
    )
    for names in (("help",), ("scattered",), ("gathers",), ("magnitudes", "shapes"), ("magnitudes",), ("not_finite",),
                  ("ahead",), ("keyed",), ("slow", "slowdown"), ("lossy", "loss"), ("compute_us",)):  # fmt: skip
        simpler = replace(job, **{name: getattr(plain, name) for name in names})
        if simpler != job and (simpler.keyed or simpler.help is HelpGrade.NONE):
            yield simpler


def _simpler_links(links: LinkSettings) -> Iterator[LinkSettings]:
    for names in (("loss",), ("duplicate",), ("reorder", "reorder_by_us"), ("jitter_us",), ("corrupt",), ("rate_mbps",),
                  ("delay_us",), ("queue_packets",)):  # fmt: skip
        simpler = replace(links, **{name: getattr(PLAIN, name) for name in names})
        if simpler != links:
            yield simpler


def _of_64(scene: Scene) -> Scene:
    """The scene with bitmaps of 64 bits, if its jobs fit."""
    fits = all(job.contributions <= CONTRIBUTION_BITS for job in scene.jobs)
    return replace(scene, contributions=CONTRIBUTION_BITS) if fits else scene
