"""The mean iteration time of each policy in several runs, one panel for each policy."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.style import WIDE, FigureLayout, NothingToDrawError
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import axis_unit, duration, policy_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_IN, PANEL_IN = 0.36, 0.34  # heights of a bar, and of a panel's title


def means_of_runs(
    found: Mapping[str, Sequence[tuple[str, PolicyStats]]], title: str, layout: FigureLayout = WIDE
) -> "Figure":
    """Draws a bar for each run, with the 95 % interval of the mean over repetitions if the run has several.

    Args: found: by policy, the name of each run that has it, and the policy's statistics there. Raises: NothingToDrawError.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = {policy: [(name, each) for name, each in of if each.mean_s is not None] for policy, of in found.items()}
    shown = {policy: of for policy, of in shown.items() if of}
    if not shown:
        raise NothingToDrawError("no iterations were recorded")
    heights = [ROW_IN * len(of) + PANEL_IN for of in shown.values()]
    made = style.figure(sum(heights) + 0.5, title, layout=layout)
    panels = made.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    end_s = 0.0
    for axes, (policy, of) in zip(panels, shown.items(), strict=True):
        axes.set_title(policy_name(policy), weight="bold")
        for y, (_, each) in enumerate(of):
            mean = each.mean_s or 0.0
            low, high = each.mean_interval_s or (mean, mean)
            axes.barh(y, mean, height=0.62, color=style.policy_colour(policy))
            if each.mean_interval_s:
                error = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
                axes.errorbar(mean, y, xerr=error, color=style.INK, capsize=3, lw=1.1)
            axes.annotate(duration(mean), (high, y), (6, 0), textcoords="offset points", va="center", weight="bold")
            end_s = max(end_s, high)
        axes.set_yticks(range(len(of)), [layout.lines(name, 16) for name, _ in of])
        axes.set_ylim(len(of) - 0.45, -0.55)
        axes.grid(axis="x")
        style.quiet_y(axes)
    scale, unit = axis_unit(end_s)
    last = panels[-1]
    last.set_xlim(0, end_s * (1.32 if layout.is_narrow else 1.13) or 1.0)  # room for the labels of bars
    last.xaxis.set_major_locator(MaxNLocator(round(8 * layout.ticks), steps=[1, 2, 2.5, 5, 10]))
    last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
    last.set_xlabel(f"mean iteration time ({unit})")
    return made
