"""The runs behind the headlines, as points that can run anywhere, and the results for each claim."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.lab import policies
from sa_atp.lab.backends import runner
from sa_atp.lab.parameters.parameter_worker import DivergedError
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import stats
from sa_atp.lab.reproduce.settings import Claim, Headline, Setting
from sa_atp.lab.runs import tuning
from sa_atp.lab.runs.points import Point
from sa_atp.lab.runs.progress import Progress
from sa_atp.protocol.job.errors import NonFiniteError
from sa_atp.steps.parallel import POINTS

Measured = dict[str, Any]
"""The measurements of one policy in one run: see `measure`."""
TIMES = {"iteration": "iteration_s", "sample": "sample_s", "accuracy": "time_to_accuracy_s"}
"""The measurement of each quantity of a claim."""
Compute = Callable[[Sequence[Point]], Mapping[str, Any]]
"""Computes points. Returns: their results by name."""
PARALLEL = POINTS[1:]
"""Numbers of micro-batches at a time that are tried for a baseline, besides one."""
DIVERGED: Measured = {
    "iteration_s": None,
    "sample_s": None,
    "fluid_bound_s": None,
    "accuracy": 0.0,
    "time_to_accuracy_s": None,
    "steps_to_accuracy": None,
    "helped": 0,
    "sums_checked": 0,
    "sums_wrong": 0,
}
"""The measurements of a training that ended in NaN or infinity."""
WORK = "sa_atp.lab.reproduce.points:measure"


def measure(arguments: dict[str, Any]) -> dict[str, Measured]:
    """Runs a plan in virtual time; see runs.points. Args: arguments: plan: its tables; where: its name in messages.

    Returns: for each policy `iteration_s` (mean), `sample_s` (that over the samples of an update), `fluid_bound_s`,
        `accuracy` (held out, at the end; None: no training), `time_to_accuracy_s` and `steps_to_accuracy` (None: not
        reached), `helped`, `sums_checked`, `sums_wrong`.
    """
    plan = plan_files.parse_tables(arguments["plan"], arguments["where"])
    try:
        result = runner.run(plan, arguments["where"], Path(), Progress())
    except (NonFiniteError, DivergedError):
        if len(plan.run.policies) > 1:
            raise
        return {plan.run.policies[0]: dict(DIVERGED)}  # the learning rate is too large
    found = {}
    for policy in stats.policies(result):
        run = policy.runs[0]
        there = next((e for e in run.evaluations if e.accuracy >= plan.run.target_accuracy), None)
        found[policy.policy] = {
            "iteration_s": policy.mean_s,
            "sample_s": policy.mean_s and policy.mean_s / (shards_of(plan, policy.policy) * plan.job.batch_size),
            "fluid_bound_s": policy.fluid_bound_s,
            "accuracy": run.evaluations[-1].accuracy if run.evaluations else None,
            "time_to_accuracy_s": there.time_s if there else None,
            "steps_to_accuracy": there.step + 1 if there else None,
            "helped": run.help.get("micro_batches", 0),
            "sums_checked": run.sums_checked,
            "sums_wrong": run.sums_wrong,
        }
    return found


def shards_of(plan: Plan, policy: str) -> int:
    """Number of shards in an update."""
    return policies.find(policy).shards(plan)


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements of a policy and its baseline with one seed."""

    seed: int
    policy: Measured
    baseline: Measured
    fewest_steps: int | None = None
    """The fewest steps to the accuracy that any policy needed in this setting with this seed; None: none reached it."""

    def ratio(self, quantity: str) -> float | None:
        """Time of the policy over that of its baseline; None: one of them did not reach the accuracy."""
        key = TIMES[quantity]
        if not self.policy[key] or not self.baseline[key]:
            return None
        return float(self.policy[key] / self.baseline[key])

    def bound_ratio(self, quantity: str) -> float | None:
        """The least ratio that the fluid bound (all work over all speed) allows.

        A time to accuracy is bounded by the fewest steps that any policy needed, each as long as the fluid bound.
        """
        bound, baseline = self.policy["fluid_bound_s"], self.baseline[TIMES[quantity]]
        if not bound or not baseline:
            return None
        if quantity == "accuracy":
            return bound * self.fewest_steps / baseline if self.fewest_steps else None
        if quantity == "sample":
            return float(bound / self.policy["iteration_s"] * self.policy["sample_s"] / baseline)
        return float(bound / baseline)


@dataclass(frozen=True, slots=True)
class Found:
    """The results for a claim in one of its settings."""

    setting: Setting
    samples: tuple[Sample, ...]
    rates: Mapping[str, float]
    """Tuned learning rates, by policy."""
    parallel: int = 1
    """How many micro-batches at a time are best for the baseline."""
    at_best: tuple[Sample, ...] = ()
    """The samples with the baseline at its best; empty: not compared."""


def tuning_points(headline: Headline, seed: int, steps: int | None) -> dict[tuple[str, str, float], Point]:
    """The tuning runs, by setting, policy and learning rate. Args: seed: used for tuning alone."""
    found = {}
    for setting in tuned_settings(headline):
        for policy in policies_of(headline, setting):
            for rate in tuning.GRID:
                plan = tuning.with_rate(setting.plan([policy], seed, steps), policy, rate)
                name = f"{headline.name}: {setting.name}: {policy}, rate {rate:g}, seed {seed}"
                found[setting.name, policy, rate] = Point(
                    name, WORK, {"plan": plan.as_dict(), "where": f"reproduce, {setting.name}"}
                )
    return found


def tuned_settings(headline: Headline) -> list[Setting]:
    return [setting for setting in settings_of(headline) if setting.tuned]


def settings_of(headline: Headline) -> list[Setting]:
    """The settings of a headline, each once."""
    found: list[Setting] = []
    for claim in headline.claims:
        found += [setting for setting in claim.settings if setting not in found]
    return found


def policies_of(headline: Headline, setting: Setting) -> list[str]:
    """The policies of a setting, each once, baselines first."""
    claims = [claim for claim in headline.claims if setting in claim.settings]
    return list(dict.fromkeys([*(claim.baseline for claim in claims), *(claim.policy for claim in claims)]))


def tuned_rates(
    points: Mapping[tuple[str, str, float], Point], results: Mapping[str, Any]
) -> dict[tuple[str, str], float]:
    """The rate of each setting and policy, by the rule of runs.tuning."""
    trials: dict[tuple[str, str], list[tuning.Trial]] = {}
    for (setting, policy, rate), each in points.items():
        measured = results[each.name][policy]
        time = measured["time_to_accuracy_s"]
        trial = tuning.Trial(rate, math.inf if time is None else time, measured["accuracy"] or 0.0)
        trials.setdefault((setting, policy), []).append(trial)
    return {key: tuning.best(tried).learning_rate for key, tried in trials.items()}


def parallel_points(
    headline: Headline, seed: int, steps: int | None, rates: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str, int], Point]:
    """The runs that find how many micro-batches at a time are best, by setting, policy and number."""
    found = {}
    for setting in tuned_settings(headline):
        for policy in baselines_at_best(headline, setting):
            for parallel in PARALLEL:
                plan = setting.plan([policy], seed, steps)
                found[setting.name, policy, parallel] = parallel_point(
                    headline, setting, policy, rates[setting.name, policy], parallel, plan
                )
    return found


def parallel_point(headline: Headline, setting: Setting, policy: str, rate: float, parallel: int, plan: Plan) -> Point:
    """A run of one policy with so many micro-batches at a time."""
    plan = tuning.with_rate(plan, policy, rate)
    plan = dataclasses.replace(plan, job=dataclasses.replace(plan.job, parallel=parallel))
    name = f"{headline.name}: {setting.key}: {policy}, {parallel} at a time, rate {rate:g}, seed {plan.run.seed}"
    return Point(name, WORK, {"plan": plan.as_dict(), "where": f"reproduce, {setting.name}"})


def baselines_at_best(headline: Headline, setting: Setting) -> list[str]:
    """The baselines of a setting that are compared with their best number of micro-batches at a time, each once."""
    return list(dict.fromkeys(c.baseline for c in headline.claims if c.at_best and setting in c.settings))


def run_points(
    headline: Headline, seeds: Sequence[int], steps: int | None, rates: Mapping[tuple[str, str], float]
) -> dict[tuple[str, int, str], Point]:
    """The runs that count, by the setting's key, seed and policy. Policies with own learning rates have a run each."""
    found: dict[tuple[str, int, str], Point] = {}
    for setting in settings_of(headline):
        names = policies_of(headline, setting)
        for seed in seeds:
            for group in [[name] for name in names] if setting.tuned else [names]:
                plan = setting.plan(group, seed, steps)
                if setting.tuned:
                    plan = tuning.with_rate(plan, group[0], rates[setting.name, group[0]])
                name = f"{headline.name}: {setting.key}: {', '.join(group)}, seed {seed}"
                one = Point(name, WORK, {"plan": plan.as_dict(), "where": f"reproduce, {setting.name}"})
                found |= {(setting.key, seed, policy): one for policy in group}
    return found


def find(
    headline: Headline, seeds: Sequence[int], tuning_seed: int, steps: int | None, compute: Compute
) -> list[list[Found]]:
    """Runs all points of a headline. Returns: for each claim, its results. Raises: SaAtpError."""
    tried = tuning_points(headline, tuning_seed, steps)
    tuned = compute(list(tried.values())) if tried else {}
    rates = tuned_rates(tried, tuned)
    best = _best_parallel(headline, tuning_seed, steps, rates, tried, tuned, compute)
    points = run_points(headline, seeds, steps, rates)
    fast = {
        (setting.key, seed, policy): parallel_point(
            headline, setting, policy, rates[setting.name, policy], best[setting.name, policy],
            setting.plan([policy], seed, steps),
        )
        for setting in tuned_settings(headline)
        for policy in baselines_at_best(headline, setting)
        for seed in seeds
        if best[setting.name, policy] > 1
    }  # fmt: skip
    results = compute(list({point.name: point for point in [*points.values(), *fast.values()]}.values()))

    def measured(of: Mapping[tuple[str, int, str], Point], setting: Setting, seed: int, policy: str) -> Measured:
        return dict(results[of[setting.key, seed, policy].name][policy])

    def fewest(setting: Setting, seed: int) -> int | None:
        sides = [measured(points, setting, seed, policy) for policy in policies_of(headline, setting)]
        return min((side["steps_to_accuracy"] for side in sides if side["steps_to_accuracy"]), default=None)

    def samples(claim: Claim, setting: Setting, of: Mapping[tuple[str, int, str], Point]) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                seed,
                measured(points, setting, seed, claim.policy),
                measured(of, setting, seed, claim.baseline),
                fewest(setting, seed),
            )
            for seed in seeds
        )

    return [
        [
            Found(
                setting,
                samples(claim, setting, points),
                {p: rates[setting.name, p] for p in (claim.baseline, claim.policy)} if setting.tuned else {},
                best.get((setting.name, claim.baseline), 1),
                samples(claim, setting, points | fast) if claim.at_best else (),
            )
            for setting in claim.settings
        ]
        for claim in headline.claims
    ]


def _best_parallel(
    headline: Headline,
    seed: int,
    steps: int | None,
    rates: Mapping[tuple[str, str], float],
    tried: Mapping[tuple[str, str, float], Point],
    tuned: Mapping[str, Any],
    compute: Compute,
) -> dict[tuple[str, str], int]:
    """By setting and baseline: the number of micro-batches at a time with which the accuracy is reached soonest."""
    points = parallel_points(headline, seed, steps, rates)
    results = compute(list(points.values())) if points else {}
    times: dict[tuple[str, str], dict[int, float]] = {}
    for (setting, policy, parallel), point in points.items():
        alone = tuned[tried[setting, policy, rates[setting, policy]].name][policy]["time_to_accuracy_s"]
        time = results[point.name][policy]["time_to_accuracy_s"]
        of = times.setdefault((setting, policy), {1: math.inf if alone is None else alone})
        of[parallel] = math.inf if time is None else time
    return {key: min(of, key=lambda n: (of[n], n)) for key, of in times.items()}


# --- numbers ----------------------------------------------------------------------------------------------------------


def value(claim: Claim, ratio: float) -> float:
    """A ratio in the paper's form, a speed-up or a reduction. Args: ratio: time over that of the baseline."""
    return 1 / ratio if claim.is_speedup else 1 - ratio


def values(claim: Claim, found: Iterable[Found]) -> list[float]:
    """The claim's value in each run in which both policies reached the accuracy."""
    ratios = [sample.ratio(claim.quantity) for each in found for sample in each.samples]
    return [value(claim, ratio) for ratio in ratios if ratio is not None]


def median(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median(known) if known else None


def values_at_best(claim: Claim, found: Iterable[Found]) -> list[float]:
    """Returns the values against the baseline at its best learning rate."""
    ratios = [sample.ratio(claim.quantity) for each in found for sample in each.at_best]
    return [value(claim, ratio) for ratio in ratios if ratio is not None]


def limit(claim: Claim, each: Found) -> float | None:
    """The claim's value at the bound (see `Sample.bound_ratio`), median over seeds."""
    middle = median(sample.bound_ratio(claim.quantity) for sample in each.samples)
    return None if middle is None else value(claim, middle)


def sums_wrong(found: Iterable[Found]) -> int:
    return sum(m["sums_wrong"] for each in found for s in each.samples for m in (s.policy, s.baseline))
