"""The statistics of a run, which summary, table and figures share.

An iteration's time is the time between the ends of two steps of the job (`step_ends_s`), so that times add up to the run's.
The first `plan.run.warm_up` steps of a run do not count, unless it has no others. Repetitions are pooled, and so are
concurrent jobs.

Means are by `fmean` and `fsum`, whose last digit depends neither on the release of Python nor on the type of the numbers:
`sum` adds in another way since Python 3.12, and NumPy's numbers still in the old one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

import numpy as np

from sa_atp.basics.arrays import Measurements
from sa_atp.lab.runs.records import Iteration, PolicyRun, RunResult

Key = TypeVar("Key")
Value = TypeVar("Value")
ACTIVITIES = ("compute", "help", "send", "wait", "pause")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's activities under one policy, as means per counted step."""

    worker: int
    seconds: dict[str, float]
    """Seconds of each activity. A pause is separate here, although it is part of an iteration's compute_s."""
    times_s: Measurements = field(repr=False)
    """Times of its own steps, from its beginning to its end of each."""
    own: float
    """Micro-batches that it contributed of its own shard."""
    helped: float
    """Micro-batches that it contributed of other shards."""
    unused: float
    """Micro-batches that it computed in vain."""
    samples: float
    """Samples of its shard; 0: not recorded."""
    slowdowns: tuple[float, ...]
    """Slow-downs of its device, of the steps in which it was slow."""
    slow_steps: float
    """Share of steps in which its device was slow or it paused."""

    @property
    def slowdown(self) -> float:
        """Largest slow-down of its device."""
        return max(self.slowdowns, default=1.0)


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """The statistics of one policy, from its runs: one for each repetition and job."""

    policy: str
    runs: list[PolicyRun]
    times_s: list[Measurements] = field(repr=False)
    """Per run: iteration times of the job, for each counted step."""
    counted: list[list[Iteration]] = field(repr=False)
    """Per run: the iterations of the counted steps."""

    @property
    def pooled_s(self) -> Measurements:
        """Iteration times of the counted steps of all repetitions."""
        return np.concatenate(self.times_s) if self.times_s else np.empty(0)

    @property
    def mean_s(self) -> float | None:
        """Mean iteration time; None if there was no step."""
        pooled = self.pooled_s
        return float(pooled.mean()) if len(pooled) else None

    def run_means_s(self) -> dict[int, list[float]]:
        """By repetition, the mean iteration time of each job that took a step."""
        return grouped(
            (run.repetition, float(times.mean()))
            for run, times in zip(self.runs, self.times_s, strict=True)
            if len(times)
        )

    def repetition_means_s(self) -> dict[int, float]:
        """Mean iteration time of each repetition with a step, averaged over concurrent jobs."""
        return {repetition: fmean(means) for repetition, means in sorted(self.run_means_s().items())}

    @property
    def mean_interval_s(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean iteration time, over repetitions."""
        return interval95(list(self.repetition_means_s().values()))

    def job_means_s(self) -> dict[int, float]:
        """Mean iteration time of each job, over all repetitions."""
        by_job = grouped((run.job, times) for run, times in zip(self.runs, self.times_s, strict=True))
        pooled = {job: np.concatenate(times) for job, times in sorted(by_job.items())}
        return {job: float(times.mean()) for job, times in pooled.items() if len(times)}

    def fairness(self) -> list[float]:
        """Jain's index of the jobs' speeds, for each repetition: 1 if all are equal, 1/n if one of n gets everything."""
        speeds = [[1 / mean for mean in means] for means in self.run_means_s().values()]
        return [math.fsum(s) ** 2 / (len(s) * math.fsum(x * x for x in s)) for s in speeds]

    def streams(self) -> dict[str, float]:
        """For each link between switches, the copies of a step's fragments that went up it, mean over repetitions."""
        found = grouped(link for run in self.runs for link in run.streams.items())
        return {link: fmean(counts) for link, counts in found.items()}

    @property
    def fluid_bound_s(self) -> float | None:
        """Total work over total speed, mean over repetitions; None: not computed."""
        found = [run.fluid_bound_s for run in self.runs if run.fluid_bound_s > 0]
        return fmean(found) if found else None

    def shares(self) -> dict[str, float]:
        """Share of all workers' time that went into each activity; they add up to 1."""
        total: dict[str, float] = defaultdict(float)
        for worker in self.workers():
            for kind, seconds in worker.seconds.items():
                total[kind] += seconds
        whole = math.fsum(total.values())
        return {kind: total[kind] / whole for kind in ACTIVITIES} if whole > 0 else {}

    def workers(self) -> list[WorkerShare]:
        """Each worker's activities, by rank."""
        rows: dict[int, list[Iteration]] = defaultdict(list)
        paused: dict[int, list[float]] = defaultdict(list)
        for run, iterations in zip(self.runs, self.counted, strict=True):
            pauses = _pauses(run)
            for each in iterations:
                rows[each.worker].append(each)
                paused[each.worker].append(min(pauses.get((each.worker, each.step), 0.0), each.compute_s))
        return [_share(worker, rows[worker], paused[worker]) for worker in sorted(rows)]

    def times_to_accuracy_s(self, target: float) -> list[float | None]:
        """For each repetition: when held-out accuracy first reached the target, the mean of concurrent jobs; None: it did
        not, in one of them at least. Empty: nothing was evaluated.
        """
        found = grouped((run.repetition, _reached_s(run, target)) for run in self.runs)
        is_evaluated = any(run.evaluations for run in self.runs)
        return [mean_of_all(times) for times in found.values()] if is_evaluated else []

    def reached_s(self, target: float) -> dict[int, float]:
        """Times to accuracy of the repetitions that reached it, in seconds; the mean of concurrent jobs that did."""
        times = ((run.repetition, _reached_s(run, target)) for run in self.runs)
        found = grouped((repetition, time) for repetition, time in times if time is not None)
        return {repetition: fmean(times) for repetition, times in found.items()}

    def time_to_accuracy_s(self, target: float) -> float | None:
        """Returns the mean time to an accuracy over repetitions; None: not all repetitions reached it."""
        return mean_of_all(self.times_to_accuracy_s(target))


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """The mean; None unless all values are there: those that are not may be the largest, so a mean of the others would be
    biased.
    """
    found = [value for value in values if value is not None]
    return fmean(found) if found and len(found) == len(values) else None


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _reached_s(run: PolicyRun, target: float) -> float | None:
    """When held-out accuracy first reached a target; None: it did not."""
    return next((e.time_s for e in run.evaluations if e.accuracy >= target), None)


def policies(result: RunResult) -> list[PolicyStats]:
    """Statistics of the policies that ran, in the plan's order: the baseline, if it ran, is the first."""
    runs: dict[str, list[PolicyRun]] = {policy: [] for policy in result.plan.run.policies}
    for run in result.runs:
        runs.setdefault(run.policy, []).append(run)
    return [_stats(policy, found, result.plan.run.warm_up) for policy, found in runs.items() if found]


def has_steps(result: RunResult) -> bool:
    """Whether the job took a step, under any policy."""
    return any(each.mean_s is not None for each in policies(result))


def baseline(result: RunResult, found: Sequence[PolicyStats]) -> PolicyStats | None:
    """The plan's first policy, if it took a step."""
    wanted = result.plan.run.policies[0] if result.plan.run.policies else None
    return next((p for p in found if p.policy == wanted and p.mean_s is not None), None)


def reductions(base: PolicyStats, other: PolicyStats) -> list[float]:
    """Relative reduction of a policy's iteration time against the baseline, 0.6 for 60 %, in each repetition of both.

    Repetitions of one number have the same seed, so pairing them removes the spread that they share.
    """
    means = base.repetition_means_s()
    return [1 - mean / means[n] for n, mean in other.repetition_means_s().items() if means.get(n)]


def counted_steps(run: PolicyRun, warm_up: int) -> list[int]:
    """Steps that count, in order: those after the first `warm_up`, or all where there are no more."""
    steps = list(step_ends_s(run))
    return steps[warm_up:] or steps


def counted_iterations(run: PolicyRun, warm_up: int) -> list[Iteration]:
    """Workers' own steps that count: without unfinished ones, and without those of workers ahead of the job that the job
    never reaches.
    """
    first = min(counted_steps(run, warm_up), default=0)
    return [each for each in run.iterations if each.step >= first and each.is_finished]


def step_ends_s(run: PolicyRun) -> dict[int, float]:
    """The end of each step of a job, in seconds since its first one began, by number and in order.

    A step ends when the first worker has applied its sum. Another worker may be later, because it paused or lost a packet,
    while those who did its work are already in the next step; counting its end would charge the whole pause to one step,
    and nothing to the steps that it slept through. The last step ends when the last worker has its sum.
    """
    if run.step_ends_s:  # workers have clocks of their own: a step of the job is the samples of one step
        return dict(enumerate(run.step_ends_s))
    ends: dict[int, float] = {}
    clocks: dict[int, float] = defaultdict(float)  # by worker
    for each in sorted((i for i in run.iterations if i.is_finished), key=lambda i: i.step):
        # records without times: each step of a worker begins where its last one ended
        clocks[each.worker] = clocks[each.worker] + each.iteration_s if math.isnan(each.end_s) else each.end_s
        ends[each.step] = min(ends.get(each.step, math.inf), clocks[each.worker])
    if ends:
        ends[max(ends)] = max(clocks.values())
    return dict(zip(ends, np.maximum.accumulate([0.0, *ends.values()])[1:].tolist(), strict=True))


def times_by_step(policy: PolicyStats) -> tuple[list[int], Measurements]:
    """The steps of a policy's runs, with the warm-up; and a row for each run: its iteration times in seconds, NaN where it
    has no such step.
    """
    ends = [step_ends_s(run) for run in policy.runs]
    steps = sorted({step for each in ends for step in each})
    times = np.full((len(ends), len(steps)), np.nan)
    for row, each in zip(times, ends, strict=True):
        row[np.searchsorted(steps, list(each))] = np.diff([0.0, *each.values()])
    return steps, times


def mean_step_ms(run: PolicyRun, counted: Sequence[int]) -> float:
    """The mean time of a job's steps, in milliseconds. Args: counted: numbers of the steps that count."""
    ends = step_ends_s(run)
    took = dict(zip(ends, np.diff([0.0, *ends.values()]), strict=True))
    return 1000 * float(np.mean([took[step] for step in counted]))


def values_for(percentile: int) -> int:
    """The number of values that a percentile needs: so many that one of them is beyond it. (The 99th percentile of three
    values would just be the largest.) p50 needs 2, p25 and p75 need 4, p90 needs 10, p99 needs 100.
    """
    return -(-100 // min(percentile, 100 - percentile))


def percentile(values: Measurements, which: int) -> float | None:
    """A percentile (1 to 99), interpolated; None if there are too few values for it (`values_for`)."""
    return float(np.percentile(values, which)) if len(values) >= values_for(which) else None


def milliseconds(seconds: Measurements, which: int) -> float | None:
    """Returns a percentile of times in seconds, in milliseconds."""
    found = percentile(seconds, which)
    return None if found is None else 1e3 * found


def interval95(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % confidence interval of a mean; None for fewer than two values. A spread by rounding counts as 0."""
    n = len(values)
    if n < 2:
        return None
    mean = fmean(values)
    if math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12):
        return mean, mean
    half = _t_quantile(n - 1) * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean - half, mean + half


def training_loss(iterations: Iterable[Iteration]) -> list[tuple[int, float]]:
    """(step, mean loss over all workers' samples); steps without a loss are left out."""
    sums: dict[int, float] = defaultdict(float)
    weights: dict[int, float] = defaultdict(float)
    for each in iterations:
        weight = each.micro_batches + each.helped + each.unused or 1
        if not math.isnan(each.loss):
            sums[each.step] += weight * each.loss
            weights[each.step] += weight
    return [(step, sums[step] / weights[step]) for step in sorted(sums)]


def _stats(policy: str, runs: list[PolicyRun], warm_up: int) -> PolicyStats:
    times, counted = [], []
    for run in runs:
        wanted = set(counted_steps(run, warm_up))
        ends = step_ends_s(run)
        took = np.diff([0.0, *ends.values()])
        times.append(took[[step in wanted for step in ends]])
        counted.append(counted_iterations(run, warm_up))
    return PolicyStats(policy, runs, times, counted)


def _share(worker: int, rows: list[Iteration], paused: list[float]) -> WorkerShare:
    n, pause = len(rows), math.fsum(paused)
    seconds = {
        "compute": (math.fsum(r.compute_s for r in rows) - pause) / n,
        "help": fmean(r.help_s for r in rows),
        "send": fmean(r.send_s for r in rows),
        "wait": fmean(r.wait_s for r in rows),
        "pause": pause / n,
    }
    return WorkerShare(
        worker,
        seconds,
        times_s=np.array([r.iteration_s for r in rows]),
        own=sum(r.micro_batches for r in rows) / n,
        helped=sum(r.helped for r in rows) / n,
        unused=sum(r.unused for r in rows) / n,
        samples=sum(r.samples for r in rows) / n,
        slowdowns=tuple(r.slowdown for r in rows if r.slowdown > 1),
        slow_steps=sum(r.slowdown > 1 or p > 0 for r, p in zip(rows, paused, strict=True)) / n,
    )


def _pauses(run: PolicyRun) -> dict[tuple[int, int], float]:
    """(worker, step) -> seconds of pause."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for interval in run.intervals:
        if interval.kind == "pause":
            found[interval.worker, interval.step] += (interval.end_us - interval.start_us) / 1e6
    return found


_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def _t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t: from a table, or by Fisher's expansion where it is good to three digits."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
