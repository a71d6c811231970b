"""Comparison of policies: which is faster, and whether the run shows it. Titles, tables, figures and warnings share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from sa_atp.lab.report import stats
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import percent
from sa_atp.lab.runs.records import RunResult

SAME = 0.01  # smaller differences of mean iteration time count as none
SAME_TRAINING = 0.05  # smaller differences of the time to an accuracy count as none: it is measured in whole steps
CHANCE = 0.1  # single runs of one plan differed by so much on a machine with few cores

Verdict = Literal["shorter", "longer", "same", "unclear"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a policy's times with another's."""

    verdict: Verdict
    """unclear: the difference is within the spread of repetitions, or may be chance in a single one."""
    reduction: float
    """Relative reduction of the mean: 0.6 if it is 60 % shorter; negative if it is longer."""

    @property
    def is_clear(self) -> bool:
        return self.verdict in ("shorter", "longer")

    def in_words(self) -> str:
        """The verdict in words, without a sign: 69 % shorter, 37 % longer, the same, unclear."""
        if self.verdict == "same":
            return "the same"
        return f"{percent(abs(self.reduction))} {self.verdict}" if self.is_clear else "unclear"


def may_be_chance(result: RunResult) -> bool:
    """Whether times depend on chance: on other load of the machine, or on which packets were lost."""
    return result.devices != "simulated" or not result.plan.network.is_perfect


def iterations(result: RunResult, base: PolicyStats, other: PolicyStats) -> Comparison | None:
    """Compares iteration times of two policies; None: one of them has no step, or steps that take no time."""
    if not base.mean_s or other.mean_s is None:
        return None
    reduction = 1 - other.mean_s / base.mean_s
    return compare(reduction, stats.reductions(base, other), SAME, by_chance=may_be_chance(result))


def training_times(result: RunResult, base: Mapping[int, float], other: Mapping[int, float]) -> Comparison | None:
    """Compares times to an accuracy, by repetition; None: one has none, or the first took no time."""
    means = [fmean(times.values()) if times else 0.0 for times in (base, other)]
    if not means[0] or not other:
        return None
    pairs = [1 - time / base[n] for n, time in other.items() if base.get(n)]
    return compare(1 - means[1] / means[0], pairs, SAME_TRAINING, by_chance=may_be_chance(result))


def fastest(found: Sequence[PolicyStats]) -> PolicyStats | None:
    """The policy with the shortest mean iteration time; the plan's order decides between equal ones."""
    return min((p for p in found if p.mean_s is not None), key=lambda p: p.mean_s or 0.0, default=None)


def rivals(result: RunResult, best: PolicyStats, found: Sequence[PolicyStats]) -> list[PolicyStats]:
    """Policies that are not clearly slower than the fastest."""
    compared = [(each, iterations(result, best, each)) for each in found if each is not best]
    return [each for each, how in compared if how is not None and not how.is_clear]


def compare(reduction: float, pairs: Sequence[float], same: float, *, by_chance: bool) -> Comparison:
    """Judges a difference by its spread.

    Args:
        reduction: of the means.
        pairs: the reduction in each repetition.
        same: smaller differences count as none.
        by_chance: whether a difference below CHANCE in a single repetition may be chance.
    """
    interval = stats.interval95(pairs)
    low, high = interval or (reduction, reduction)
    word: Verdict = "shorter" if reduction > 0 else "longer"
    if low <= 0 <= high:  # an interval may be so narrow that they are the same
        word = "same" if max(-low, high) < same else "unclear"
    elif abs(reduction) < same:
        word = "same"
    else:
        contradicted = (reduction > 0) != (low > 0)  # of the means, by the repetitions that both ran
        if contradicted or (interval is None and by_chance and abs(reduction) < CHANCE):
            word = "unclear"
    return Comparison(word, reduction)
