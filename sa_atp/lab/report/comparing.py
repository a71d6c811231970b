"""Which policy is faster, and whether the run shows it. Titles, tables, figures and remarks all have their verdict from
here, so that no two of them say different things.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sa_atp.lab.report import stats
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import percent
from sa_atp.lab.runs.records import RunResult

SAME = 0.01  # differences of mean iteration time below one per cent are not worth a claim
SAME_TRAINING = 0.05  # ... and of the time to an accuracy, which is known to a step
CHANCE = 0.1  # so far apart have single runs been on a machine with few cores, where there was no difference

Verdict = Literal["shorter", "longer", "same", "unclear"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy's times against another's."""

    verdict: Verdict
    """unclear: the difference is within the spread of repetitions, or may be chance where there is only one."""
    reduction: float
    """By how much the mean is shorter: 0.6 for 60 %; negative: longer."""

    @property
    def is_clear(self) -> bool:
        return self.verdict in ("shorter", "longer")

    def in_words(self) -> str:
        """69 % shorter, 37 % longer, the same, unclear: words and no sign, which would say it twice."""
        if self.verdict == "same":
            return "the same"
        return f"{percent(abs(self.reduction))} {self.verdict}" if self.is_clear else "unclear"


def may_be_chance(result: RunResult) -> bool:
    """Whether times depend on more than the plan: on whatever else the machine did, or on which packets were lost."""
    return result.devices != "simulated" or not result.plan.network.is_perfect


def iterations(result: RunResult, base: PolicyStats, other: PolicyStats) -> Comparison | None:
    """Iteration times of a policy against another's; None: one of them took no step, or no time."""
    if not base.mean_s or other.mean_s is None:
        return None
    return _compare(result, 1 - other.mean_s / base.mean_s, stats.reductions(base, other), SAME)


def training_times(result: RunResult, base: Mapping[int, float], other: Mapping[int, float]) -> Comparison | None:
    """Times to an accuracy, by repetition; None where one has none, or the first took no time."""
    means = [sum(times.values()) / len(times) if times else 0.0 for times in (base, other)]
    if not means[0] or not other:
        return None
    pairs = [1 - time / base[n] for n, time in other.items() if base.get(n)]
    return _compare(result, 1 - means[1] / means[0], pairs, SAME_TRAINING)


def fastest(found: Sequence[PolicyStats]) -> PolicyStats | None:
    """The policy with the shortest mean iteration time; the plan's order decides between equal ones."""
    return min((p for p in found if p.mean_s is not None), key=lambda p: p.mean_s or 0.0, default=None)


def rivals(result: RunResult, best: PolicyStats, found: Sequence[PolicyStats]) -> list[PolicyStats]:
    """Policies that are not clearly slower than the fastest."""
    compared = [(each, iterations(result, best, each)) for each in found if each is not best]
    return [each for each, how in compared if how is not None and not how.is_clear]


def _compare(result: RunResult, reduction: float, pairs: Sequence[float], same: float) -> Comparison:
    """Args: pairs: the reduction in each repetition; same: what is too small for a claim."""
    word: Verdict = "shorter" if reduction > 0 else "longer"
    interval = stats.interval95(pairs)
    if interval is None:
        if abs(reduction) < same:
            word = "same"
        elif abs(reduction) < CHANCE and may_be_chance(result):
            word = "unclear"
    elif interval[0] <= 0 <= interval[1]:
        word = "unclear" if max(-interval[0], interval[1]) >= same else "same"  # else they are known to be alike
    elif abs(reduction) < same:
        word = "same"
    elif (reduction > 0) != (interval[0] > 0):  # repetitions that one of them lacks decide
        word = "unclear"
    return Comparison(word, reduction)
