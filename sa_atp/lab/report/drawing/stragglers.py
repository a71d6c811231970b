"""Stragglers and their reasons, for labels and bands of figures: slow devices and pauses are in the records, slow links in
the plan, or in the manifest if the network is that of a file. Spells of contention follow from the plan and its seed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sa_atp.lab.plans.plan import StragglerPlan
from sa_atp.lab.report import text
from sa_atp.lab.report.stats import WorkerShare
from sa_atp.lab.report.text import percent, slower, slower_by
from sa_atp.lab.runs.records import PolicyRun, RunResult
from sa_atp.lab.runs.tasks import link_contention, straggler_pattern

BY = {"cpu-quota": "CPU quota, ", "hog": "CPU shared, "}


def slow_links(result: RunResult) -> dict[int, str]:
    """Workers with slow links, permanently or at times, with the text of their labels."""
    straggler = result.plan.straggler
    found = {worker: f"link {slower(factor)}" for worker, factor in text.slow_links(result).items()}
    if _is_congested(straggler):
        found |= dict.fromkeys(straggler.workers, f"link {slower(straggler.slowdown)}")
    if straggler.pattern == "contention" and (straggler.share < 1 or straggler.tail > 1):
        found |= {w: f"{found[w]}, contended" if w in found else "link contended" for w in straggler.workers}
    return found


def contended_us(
    result: RunResult, run: PolicyRun, worker: int, start_us: int, end_us: int
) -> Iterator[tuple[int, int]]:
    """The spells in which other traffic takes a worker's link, as far as they are in a stretch of a run's time."""
    contention = link_contention(result.plan)
    if contention is None:
        return
    for begins_us, ends_us, share in contention.spells(worker):
        first, last = max(start_us, begins_us - run.origin_us), min(end_us, ends_us - run.origin_us)
        if begins_us - run.origin_us >= end_us:
            return
        if share < 1 and first < last:
            yield first, last


def _is_congested(straggler: StragglerPlan) -> bool:
    return straggler.by == "congestion" and straggler.pattern == "constant" and straggler.slowdown > 1


def notes(result: RunResult, workers: Sequence[WorkerShare]) -> dict[int, str]:
    """Stragglers among some workers, with the text of their labels. Occasional slowness does not count if all have it."""
    links = slow_links(result)
    at_times = any(worker.slow_steps == 0 for worker in workers)
    found = {}
    for worker in workers:
        why = [links[worker.worker]] if worker.worker in links else []
        if worker.slow_steps == 1 or (worker.slow_steps > 0 and at_times):
            what = BY.get(result.plan.straggler.by, "") + slower_by(worker.slowdowns) if worker.slowdowns else "pauses"
            why.insert(0, what if worker.slow_steps == 1 else f"{what} in {percent(worker.slow_steps)} of steps")
        if why:
            found[worker.worker] = ", ".join(why)
    return found


def slow_in_steps(result: RunResult, runs: Iterable[PolicyRun]) -> dict[int, set[int]]:
    """By step, the workers whose device was slow in it, who paused, or whose link other traffic took up. Policies of a run
    have the same stragglers.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for run in runs:
        for each in run.iterations:
            if each.slowdown > 1:
                found[each.step].add(each.worker)
        for interval in run.intervals:
            if interval.kind == "pause":
                found[interval.step].add(interval.worker)
    if _is_congested(result.plan.straggler):
        for step in filter(straggler_pattern(result.plan).is_on, range(result.plan.run.steps)):
            found[step] |= set(result.plan.straggler.workers)
    return dict(found)


def spells(steps: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of consecutive steps."""
    found: list[tuple[int, int]] = []
    for step in sorted(steps):
        if found and found[-1][1] == step - 1:
            found[-1] = found[-1][0], step
        else:
            found.append((step, step))
    return found
