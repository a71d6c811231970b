"""summary.json: the numbers of a run, for programs. NaN and infinity become null."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from sa_atp.basics.arrays import Measurements
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import comparing, findings, stats
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.runs.records import RunResult

SCHEMA = 1
FRAGMENTS = ("sent", "retransmitted", "in_switch", "at_ps", "collisions")


def summarise(result: RunResult) -> dict[str, Any]:
    """The summary of a run, ready for JSON. Times are in seconds.

    Means and percentiles are over the steps after the warm-up, all repetitions pooled; confidence intervals are over
    repetitions, and null for a single one. Missing measurements are null, and so are percentiles of too few values
    (`stats.values_for`).
    """
    plan = result.plan
    found = stats.policies(result)
    summary: dict[str, Any] = _plain(
        {
            "schema": SCHEMA,
            "backend": result.backend,
            "switch": result.switch,
            "lanes": result.plan_as_run.lanes,
            "bits": plan.job.bits,
            "networks": result.manifest.get("networks"),
            "workers": plan.topology.workers,
            "seed": plan.run.seed,
            "steps": plan.run.steps,
            "warm_up": plan.run.warm_up,
            "repetitions": plan.run.repetitions,
            "target_accuracy": plan.run.target_accuracy,
            "plan_path": result.plan_path,
            "policies": {each.policy: _policy(each, plan) for each in found},
            "comparison": _comparison(result, found),
        }
    )
    return summary


def _policy(policy: PolicyStats, plan: Plan) -> dict[str, Any]:
    target = plan.run.target_accuracy
    pooled = policy.pooled_s
    workers = policy.workers()
    final_loss, final_accuracy = _final(policy)
    training = [losses[-1][1] for run in policy.runs if (losses := stats.training_loss(run.iterations))]
    bound = policy.fluid_bound_s
    reached = [time for time in policy.times_to_accuracy_s(target) if time is not None]
    fragments = sums(run.fragments for run in policy.runs)
    help_ = sums(run.help for run in policy.runs)
    return {
        "iterations": sum(len(stats.step_ends_s(run)) for run in policy.runs),
        "iterations_counted": len(pooled),
        "repetitions": len({run.repetition for run in policy.runs}),
        "iteration_time_s": {
            **_distribution(pooled),
            "min": pooled.min() if len(pooled) else None,
            "std": pooled.std(ddof=1) if len(pooled) > 1 else None,
            "mean_ci95": policy.mean_interval_s,
            "mean_of_repetitions": list(policy.repetition_means_s().values()),
            "mean_of_jobs": list(policy.job_means_s().values()),
        },
        "worker_iteration_time_s": _distribution(np.concatenate([np.empty(0), *(each.times_s for each in workers)])),
        "samples_per_update": findings.samples_of(policy, plan),
        "final_loss": final_loss,
        "final_accuracy": final_accuracy,
        "final_training_loss": _mean(training),
        "time_to_accuracy_s": policy.time_to_accuracy_s(target),
        "repetitions_that_reached_accuracy": len(reached),
        "sums_checked": sum(run.sums_checked for run in policy.runs),
        "sums_wrong": sum(run.sums_wrong for run in policy.runs),
        "fragments": {**dict.fromkeys(FRAGMENTS), **fragments},
        "help": {"helped_steps": 0, "micro_batches": 0, **help_},
        "time_share": policy.shares(),
        "workers": [
            {
                "worker": each.worker,
                "seconds_per_step": each.seconds,
                "micro_batches_per_step": {"own": each.own, "helped": each.helped, "unused": each.unused},
                "iteration_time_s": _distribution(each.times_s),
                "slowdown": each.slowdown,
            }
            for each in workers
        ],
        "fairness": _mean(policy.fairness()) if len({run.job for run in policy.runs}) > 1 else None,
        "streams_per_link": policy.streams(),
        "fluid_bound_s": bound,
        "ratio_to_fluid_bound": _ratio(policy.mean_s, bound),
    }


def _distribution(times_s: Measurements) -> dict[str, float | None]:
    """Mean, percentiles and maximum of times in seconds; None if there are too few values."""
    found: dict[str, float | None] = {"mean": float(times_s.mean()) if len(times_s) else None}
    found |= {f"p{which}": stats.percentile(times_s, which) for which in (50, 90, 99)}
    return {**found, "max": float(times_s.max()) if len(times_s) else None}


def _comparison(result: RunResult, found: list[PolicyStats]) -> dict[str, Any]:
    wanted = result.plan.run.policies[0] if result.plan.run.policies else None
    base = stats.baseline(result, found)
    others = [each for each in found if each.policy != wanted]
    target = result.plan.run.target_accuracy
    compared = {each.policy: comparing.iterations(result, base, each) if base else None for each in others}
    speedups = {each.policy: _ratio(base.mean_s if base else None, each.mean_s) for each in others}
    bound_ratio = _ratio(base.fluid_bound_s, base.mean_s) if base else None
    return {
        "baseline": wanted,
        "iteration_time_reduction": {
            each.policy: _less(_ratio(each.mean_s, base.mean_s if base else None)) for each in others
        },
        "verdict": {policy: how.verdict if how else None for policy, how in compared.items()},
        "iteration_time_reduction_ci95": {
            each.policy: stats.interval95(stats.reductions(base, each)) if base else None for each in others
        },
        "speedup": speedups,
        "speedup_ci95": {each.policy: _paired_interval(base, each) for each in others},
        "training_speedup": {
            each.policy: _ratio(
                base.time_to_accuracy_s(target) if base else None,
                each.time_to_accuracy_s(target),
            )
            for each in others
        },
        "fluid_bound_s": base.fluid_bound_s if base else None,
        "fluid_bound_reduction": _less(bound_ratio),
    }


def _paired_interval(base: PolicyStats | None, other: PolicyStats) -> tuple[float, float] | None:
    """95 % confidence interval of the reduction, over pairs of repetitions with one seed."""
    if base is None:
        return None
    means = base.repetition_means_s()
    return stats.interval95([means[n] / mean for n, mean in other.repetition_means_s().items() if n in means and mean])


def _final(policy: PolicyStats) -> tuple[float | None, float | None]:
    """Held-out loss and accuracy after the last evaluated step, means over repetitions."""
    last = [max(run.evaluations, key=lambda e: e.step) for run in policy.runs if run.evaluations]
    return _mean([e.loss for e in last]), _mean([e.accuracy for e in last])


def sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Adds up counts by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _less(ratio: float | None) -> float | None:
    return None if ratio is None else 1.0 - ratio


def _plain(value: Any) -> Any:
    """Converts to JSON types: NumPy scalars become Python's, NaN and infinity become None."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
