"""training.png: loss and accuracy of the model over time."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sa_atp.basics.arrays import Measurements
from sa_atp.lab.report import findings, stats
from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.style import WIDE, FigureLayout, NothingToDrawError
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import axis_unit, duration, percent, policy_name
from sa_atp.lab.runs.records import Evaluation, PolicyRun, RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN = 3.5
FEW = 3  # with more policies, every second line is dashed
Series = Callable[[PolicyRun], tuple[Measurements, Measurements]]
"""From a repetition: times in seconds, and the measurements at these times."""


def training(result: RunResult, layout: FigureLayout = WIDE) -> "Figure":
    """Held-out loss and accuracy over time; training loss alone if nothing was evaluated."""
    found = stats.policies(result)
    evaluated = [each for each in found if any(run.evaluations for run in each.runs)]
    if evaluated:
        return _held_out(result, evaluated, layout)
    trained = [each for each in found if any(len(_training_loss(run)[0]) for run in each.runs)]
    if not trained:
        raise NothingToDrawError("neither evaluations nor losses were recorded")
    made = style.figure(
        _panel_in(layout),
        findings.training(result),
        "Nothing was evaluated on held-out samples in this run.",
        legend=_legend_rows(trained, layout),
        layout=layout,
    )
    axes = made.subplots(1, 1)
    _lines(axes, trained, _training_loss, "mean training loss of the step")
    _finish([axes], trained, _training_loss, None, layout)
    style.add_legend(made, _keys(trained), layout)
    return made


def _panel_in(layout: FigureLayout) -> float:
    return 2.7 if layout.is_narrow else PANEL_IN


def _held_out(result: RunResult, shown: Sequence[PolicyStats], layout: FigureLayout) -> "Figure":
    """Loss and accuracy side by side, or one above the other in the narrow layout."""
    height_in = _panel_in(layout) * (2 if layout.is_narrow else 1)
    rows = _legend_rows(shown, layout)
    made = style.figure(height_in, findings.training(result), _subtitle(result, shown), legend=rows, layout=layout)
    left, right = made.subplots(2, 1) if layout.is_narrow else made.subplots(1, 2)
    _lines(left, shown, _series("loss"), "held-out loss (cross-entropy)")
    _lines(right, shown, _series("accuracy"), "held-out accuracy")
    _finish([left, right], shown, _series("loss"), _enough_s(result, shown), layout)
    _target(right, result, shown, layout)
    style.add_legend(made, _keys(shown), layout)
    return made


def _lines(axes: "Axes", shown: Sequence[PolicyStats], series: Series, title: str) -> None:
    for n, each in enumerate(shown):
        width = 2.0 if len(each.runs) == 1 else 1.2
        for run in each.runs:
            times, values = series(run)
            dots = "o" if len(times) <= 1 else None
            colour, dashes = style.policy_colour(each.policy), _dashes(n, shown)
            axes.plot(times, values, color=colour, lw=width, ls=dashes, alpha=0.9, marker=dots)
            if len(times):
                axes.plot(times[-1:], values[-1:], "o", color=style.policy_colour(each.policy), ms=4)
    axes.set_title(title)
    axes.grid()


def _target(axes: "Axes", result: RunResult, shown: Sequence[PolicyStats], layout: FigureLayout) -> None:
    """Draws the target accuracy as a line, and marks when each policy reached it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    target = result.plan.run.target_accuracy
    low = min((e.accuracy for each in shown for run in each.runs for e in run.evaluations), default=0.0)
    axes.set_ylim(max(0.0, min(low, target) - 0.05), 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.axhline(target, color=style.BOUND_COLOUR, lw=1.2, ls=(0, (4, 2)))
    # above the panel, where no curve can cross it
    axes.set_title(f"target {percent(target)}", loc="right", color=style.BOUND_COLOUR, size=layout.small)
    bottom, top = axes.get_ylim()
    for n, each in enumerate(shown):
        time = each.time_to_accuracy_s(target)
        if time is None:
            continue
        axes.plot([time, time], [bottom, target], color=style.policy_colour(each.policy), lw=1.0, ls=":")
        axes.plot([time], [target], "o", color=style.policy_colour(each.policy), ms=6, mec="white", mew=1, zorder=5)
        y = bottom + (top - bottom) * (0.05 + min(0.085, 0.85 / len(shown)) * n)
        right = time > (0.5 if layout.is_narrow else 0.72) * axes.get_xlim()[1]
        axes.annotate(
            f"{policy_name(each.policy)} {duration(time)}", (time, y), (-5 if right else 5, 0),
            textcoords="offset points", ha="right" if right else "left", va="center", size=layout.small,
            color=style.policy_colour(each.policy),
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip


def _finish(
    panels: Sequence["Axes"], shown: Sequence[PolicyStats], series: Series, end_s: float | None, layout: FigureLayout
) -> None:
    """Sets the axes: time ends at `end_s` or the last point, loss begins at zero."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    points = [series(run) for each in shown for run in each.runs]
    end_s = end_s or 1.03 * max((float(times[-1]) for times, _ in points if len(times)), default=0.0) or 1.0
    scale, unit = axis_unit(end_s)
    for axes in panels:
        axes.set_xlim(0, end_s)
        axes.xaxis.set_major_locator(MaxNLocator(max(5, round(7 * layout.ticks)), steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
        axes.set_xlabel(f"time since the first step began ({unit})")
    losses = np.concatenate([values for _, values in points])
    losses = losses[np.isfinite(losses)]
    if len(losses) and losses.min() >= 0:
        panels[0].set_ylim(0, 1.06 * float(losses.max()) or 1.0)


def _enough_s(result: RunResult, shown: Sequence[PolicyStats]) -> float | None:
    """The end of the time axis if the runs went on long after they reached the target; None: the last point."""
    reached = [each.time_to_accuracy_s(result.plan.run.target_accuracy) for each in shown]
    found = [time for time in reached if time is not None]
    last = max(run.evaluations[-1].time_s for each in shown for run in each.runs if run.evaluations)
    return 3.0 * max(found) if found and len(found) == len(reached) and last > 6.0 * max(found) else None


def _series(name: str) -> Series:
    def of(run: PolicyRun) -> tuple[Measurements, Measurements]:
        points: list[Evaluation] = sorted(run.evaluations, key=lambda e: e.step)
        return np.array([e.time_s for e in points]), np.array([getattr(e, name) for e in points], np.float64)

    return of


def _training_loss(run: PolicyRun) -> tuple[Measurements, Measurements]:
    at = stats.step_ends_s(run)
    losses = stats.training_loss(run.iterations)
    # a worker ahead of the job has losses of steps that the job never reaches
    found = [(at[step], loss) for step, loss in losses if step in at]
    return np.array([time for time, _ in found]), np.array([loss for _, loss in found])


def _keys(shown: Sequence[PolicyStats]) -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [], [], color=style.policy_colour(each.policy), lw=2.5, ls=_dashes(n, shown), label=policy_name(each.policy)
        )
        for n, each in enumerate(shown)
    ]


def _dashes(number: int, shown: Sequence[PolicyStats]) -> Any:
    """The line style of a policy: with many policies every second line is dashed, so that coinciding ones can be seen."""
    return (0, (4, 1.5)) if len(shown) > FEW and number % 2 else "-"


def _legend_rows(shown: Sequence[PolicyStats], layout: FigureLayout) -> int:
    return style.legend_rows((policy_name(each.policy) for each in shown), layout)


def _subtitle(result: RunResult, shown: Sequence[PolicyStats]) -> str:
    parts = [findings.same_training(result)]
    if result.plan.run.repetitions > 1:
        parts.append(f"Each of {result.plan.run.repetitions} repetitions is a line.")
    if _enough_s(result, shown) is not None:
        parts.append("The runs went on for longer than is shown.")
    return " ".join(filter(None, parts))
