"""The mean iteration time of each policy in several runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.drawing.iteration_times import mean_bar
from sa_atp.lab.report.drawing.style import NothingToDrawError
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import policy_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_IN = 0.33


def draw(found: Mapping[str, Sequence[tuple[str, PolicyStats]]]) -> "Figure":
    """Draws a bar for each run below its policy, with the 95 % interval of the mean over repetitions.

    Args: found: by policy, the name of each run that has it, and the policy's statistics there. Raises: NothingToDrawError.
    """

    def draw_on(axes: "Axes") -> float:
        labels: list[str] = []
        bold: set[int] = set()
        measured = [each for of in found.values() for _, each in of if each.mean_s is not None]
        if not measured:
            raise NothingToDrawError("no iterations were recorded")
        longest_s = max(time for each in measured for time in (each.mean_s or 0.0, *(each.mean_interval_s or ())))
        unit_s = style.time_axis(axes, "x", 1.05 * longest_s, "mean iteration time")
        for policy, of in found.items():
            bold.add(len(labels))
            labels.append(policy_name(policy))
            for name, each in of:
                if each.mean_s is not None:
                    axes.barh(len(labels), each.mean_s / unit_s, height=0.62, color=style.policy_colour(policy))
                    mean_bar(axes, len(labels), each, "", unit_s)
                labels.append(name)
        style.label_rows(axes, labels, bold)
        return ROW_IN * len(labels)

    return style.drawn(draw_on, lambda: "Mean iteration time of each policy in each run")
