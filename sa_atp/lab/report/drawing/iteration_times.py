"""iteration_time.png and over_steps.png: the mean time of an iteration, and the time of each."""

from typing import TYPE_CHECKING

import numpy as np

from sa_atp.basics.words import join
from sa_atp.lab.report import comparing, stats
from sa_atp.lab.report.drawing import stragglers, style
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import duration, in_words, policy_name, situation
from sa_atp.lab.runs.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 400  # dots of one policy; more would overlap
FEW = 3  # workers that a legend names
ROW_IN = 0.6
OVER_STEPS_IN = 3.4


def iteration_time(result: RunResult, axes: "Axes") -> float:
    """Draws each policy's mean iteration time as a bar, with its 95 % interval over repetitions; below it each step as a
    dot, and their median as a line; and the fluid bound.
    """
    shown = [each for each in stats.policies(result) if each.mean_s is not None]
    base = stats.baseline(result, shown)
    longest_s = max(float(each.pooled_s.max()) for each in shown)
    unit_s = style.time_axis(axes, "x", 1.05 * longest_s, "iteration time: mean, and each step")
    axes.barh(
        np.arange(len(shown)) - 0.2, [(each.mean_s or 0.0) / unit_s for each in shown], height=0.4,
        color=[style.policy_colour(each.policy) for each in shown],
    )  # fmt: skip
    for y, each in enumerate(shown):
        mean_bar(axes, y - 0.2, each, "" if base is None or each is base else _against(result, base, each), unit_s)
        times = np.sort(each.pooled_s) / unit_s
        if len(times) > MOST_POINTS:  # evenly spaced quantiles, which keep the shape and both ends
            times = times[np.linspace(0, len(times) - 1, MOST_POINTS).round().astype(int)]
        # a fixed, evenly spread sequence: the same run gives the same picture
        jitter = (np.arange(len(times)) * 0.618034 % 1.0 - 0.5) * 0.2
        axes.scatter(times, y + 0.22 + jitter, color=style.policy_colour(each.policy), alpha=0.5, linewidths=0)
        axes.vlines(np.median(times), y + 0.08, y + 0.36, color=style.INK, label="median")
    bounds = {y: each.fluid_bound_s for y, each in enumerate(shown) if each.fluid_bound_s}
    if bounds:
        values = join(list(dict.fromkeys(map(duration, bounds.values()))))
        label = "fluid bound" if len(bounds) > 1 and len(values) > 20 else f"fluid bound {values}"
        low, high = (np.array(list(bounds)) + half for half in (-0.5, 0.5))
        axes.vlines(
            np.array(list(bounds.values())) / unit_s, low, high, color=style.BOUND_COLOUR, linestyle="--", label=label
        )
    names = [policy_name(each.policy) + (" (baseline)" if each is base and len(shown) > 1 else "") for each in shown]
    style.label_rows(axes, names, set())
    return ROW_IN * len(shown)


def mean_bar(axes: "Axes", y: float, policy: PolicyStats, note: str, unit_s: float) -> None:
    """Writes a policy's mean iteration time behind its bar, and draws its interval.

    Args: note: stands behind the mean; unit_s: of the axis, in seconds.
    """
    mean = policy.mean_s or 0.0
    low, high = policy.mean_interval_s or (mean, mean)
    if high > low:
        # if all repetitions are equal, as in simulations, rounding may make this negative
        error = np.maximum(0.0, [[mean - low], [high - mean]]) / unit_s
        axes.errorbar(mean / unit_s, y, xerr=error, color=style.INK, capsize=2, lw=1.0)
    text = f"{duration(mean)}, {note}" if note else duration(mean)
    axes.annotate(text, (high / unit_s, y), (4, 0), textcoords="offset points", va="center")


def _against(result: RunResult, base: PolicyStats, other: PolicyStats) -> str:
    """The comparison of a policy with the baseline in words."""
    how = comparing.iterations(result, base, other)
    return how.in_words() if how is not None else ""


def over_steps(result: RunResult, axes: "Axes") -> float:
    """Draws the time of each step of the job, a line for each policy, with a band from the shortest to the longest of its
    repetitions; and shades the steps in which a worker, or its link, was slow.
    """
    shown = [each for each in stats.policies(result) if each.mean_s is not None]
    times = [stats.times_by_step(each) for each in shown]
    longest_s = max(float(np.nanmax(rows)) for _, rows in times)
    unit_s = style.time_axis(axes, "y", 1.08 * longest_s, "iteration time")
    for n, (each, (steps, rows_s)) in enumerate(zip(shown, times, strict=True)):
        rows = rows_s / unit_s
        axes.plot(steps, np.nanmean(rows, axis=0), drawstyle="steps-mid", **style.policy_line(each.policy, n))
        if len(rows) > 1:
            low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
            axes.fill_between(steps, low, high, color=style.policy_colour(each.policy), alpha=0.2, lw=0, step="mid")
    slow = stragglers.slow_in_steps(result, shown[0].runs)
    label: str | None = f"straggler: {_names(set().union(*slow.values()))}"
    for first, last in stragglers.spells(slow):
        axes.axvspan(first - 0.5, last + 0.5, color=style.SLOW_COLOUR, alpha=0.6, lw=0, zorder=0, label=label)
        label = None
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.margins(x=0)
    return OVER_STEPS_IN


def over_steps_title(result: RunResult) -> str:
    return f"Time of each iteration {situation(result, range(result.plan.run.steps))}"


def _names(workers: set[int]) -> str:
    """worker 3, workers 1 and 3, five workers"""
    if len(workers) > FEW:
        return f"{in_words(len(workers))} workers"
    return f"worker{'s' * (len(workers) > 1)} {join(map(str, sorted(workers)))}"
