"""The runs behind the headlines, as points that can run anywhere, and the results for each claim."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa_atp.lab.backends import runner
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import stats
from sa_atp.lab.reproduce.settings import Claim, Headline, Setting
from sa_atp.lab.runs import tuning
from sa_atp.lab.runs.points import Point
from sa_atp.lab.runs.progress import Progress
from sa_atp.protocol.job.errors import NonFiniteError

Measured = dict[str, Any]
"""The measurements of one policy in one run: see `measure`."""
Compute = Callable[[Sequence[Point]], Mapping[str, Any]]
"""Computes points. Returns: their results by name."""
DIVERGED: Measured = {
    "iteration_s": None,
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

    Returns: for each policy `iteration_s` (mean), `fluid_bound_s`, `accuracy` (held out, at the end; None: no
    training), `time_to_accuracy_s` and `steps_to_accuracy` (None: not reached), `helped`, `sums_checked`, `sums_wrong`.
    """
    plan = plan_files.parse_tables(arguments["plan"], arguments["where"])
    try:
        result = runner.run(plan, arguments["where"], Path(), Progress())
    except NonFiniteError:
        if len(plan.run.policies) > 1:
            raise
        return {plan.run.policies[0]: dict(DIVERGED)}  # the learning rate is too large
    found = {}
    for policy in stats.policies(result):
        run = policy.runs[0]
        there = next((e for e in run.evaluations if e.accuracy >= plan.run.target_accuracy), None)
        found[policy.policy] = {
            "iteration_s": policy.mean_s,
            "fluid_bound_s": policy.fluid_bound_s,
            "accuracy": run.evaluations[-1].accuracy if run.evaluations else None,
            "time_to_accuracy_s": there.time_s if there else None,
            "steps_to_accuracy": there.step + 1 if there else None,
            "helped": run.help.get("micro_batches", 0),
            "sums_checked": run.sums_checked,
            "sums_wrong": run.sums_wrong,
        }
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurements of a policy and its baseline with one seed."""

    seed: int
    policy: Measured
    baseline: Measured

    def ratio(self, quantity: str) -> float | None:
        """Time of the policy over that of its baseline; None: one of them did not reach the accuracy."""
        key = "iteration_s" if quantity == "iteration" else "time_to_accuracy_s"
        if not self.policy[key] or not self.baseline[key]:
            return None
        return float(self.policy[key] / self.baseline[key])

    def of_steps(self) -> float | None:
        """Ratio of the steps to the accuracy to those of the baseline."""
        mine, other = self.policy["steps_to_accuracy"], self.baseline["steps_to_accuracy"]
        return mine / other if mine and other else None


@dataclass(frozen=True, slots=True)
class Found:
    """The results for a claim in one of its settings."""

    setting: Setting
    samples: tuple[Sample, ...]
    rates: Mapping[str, float]
    """Tuned learning rates, by policy."""


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
    rates = tuned_rates(tried, compute(list(tried.values()))) if tried else {}
    points = run_points(headline, seeds, steps, rates)
    results = compute(list({point.name: point for point in points.values()}.values()))

    def measured(setting: Setting, seed: int, policy: str) -> Measured:
        return dict(results[points[setting.key, seed, policy].name][policy])

    return [
        [
            Found(
                setting,
                tuple(
                    Sample(seed, measured(setting, seed, claim.policy), measured(setting, seed, claim.baseline))
                    for seed in seeds
                ),
                {p: rates[setting.name, p] for p in (claim.baseline, claim.policy)} if setting.tuned else {},
            )
            for setting in claim.settings
        ]
        for claim in headline.claims
    ]


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


def limit(claim: Claim, each: Found) -> float | None:
    """The claim's value at the fluid bound (all work over all speed), median over seeds."""
    middle = bound_ratio(each)
    return None if middle is None else value(claim, middle)


def bound_ratio(each: Found) -> float | None:
    """The fluid bound of the policy over the time of the baseline's step, median over seeds."""
    sides = [(s.policy["fluid_bound_s"], s.baseline["iteration_s"]) for s in each.samples]
    return median(bound / step for bound, step in sides if bound and step)


def sums_wrong(found: Iterable[Found]) -> int:
    return sum(m["sums_wrong"] for each in found for s in each.samples for m in (s.policy, s.baseline))
