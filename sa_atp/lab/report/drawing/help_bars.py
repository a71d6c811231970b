"""The picture of `sa-atp explain-help`: each worker's work in one step, as projected (above) and as it was (below)."""

import math
from typing import TYPE_CHECKING

from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.help_step import HelpStep, Span
from sa_atp.lab.report.text import duration, policy_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROJECTED, REAL = -0.2, 0.17  # where bars are in a worker's row
PROJECTED_IN, REAL_IN = 0.2, 0.46  # how high
PALE = 0.45  # opacity of projected work


def draw(found: HelpStep) -> "Figure":
    """A row for each worker: projected work as thin pale bars, its activities as bars below; revocations as marks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    projected = [d.step_end_ms for d in found.decisions if math.isfinite(d.step_end_ms)]
    last_ms = max(found.end_ms, *(span.end_ms for r in found.ranks for span in (*r.projected, *r.real)))
    keys = style.activity_keys({span.kind for r in found.ranks for span in r.real}, slow=False)
    keys.append(Patch(facecolor="white", edgecolor=style.FAINT, linewidth=0.8, label="projected, above"))
    keys.append(Line2D([], [], color=style.INK, lw=1.2, label="the sum is there"))
    if projected:
        keys.append(Line2D([], [], color=style.BOUND_COLOUR, lw=1.0, ls="--", label="when it was projected, at last"))
    if any(r.revoked for r in found.ranks):
        keys.append(Line2D([], [], color=style.INK, marker="v", ls="", label="asked to give back work"))
    made = style.figure(
        0.55 * len(found.ranks) + 0.6,
        f"Step {found.step} of {policy_name(found.policy)}: projected and real work of each worker",
        f"It took {duration(found.end_ms / 1000)}. Projections are those of the answers that the worker was given.",
        legend=style.legend_rows(str(key.get_label()) for key in keys),
    )
    axes = made.subplots()
    for y, r in enumerate(found.ranks):
        _bars(axes, r.projected, y + PROJECTED, PROJECTED_IN, is_projected=True)
        _bars(axes, r.real, y + REAL, REAL_IN, is_projected=False)
    for decision in found.decisions:
        if decision.asked == "revocation":
            y = [r.rank for r in found.ranks].index(decision.rank)
            axes.plot([decision.at_ms], [y + PROJECTED], "v", color=style.INK, ms=4)
    axes.axvline(found.end_ms, color=style.INK, lw=1.2)
    if projected:
        axes.axvline(projected[-1], color=style.BOUND_COLOUR, lw=1.0, ls="--")
    axes.set_yticks(range(len(found.ranks)), [f"worker {r.rank}" for r in found.ranks])
    axes.set_ylim(len(found.ranks) - 0.5, -0.5)
    axes.set_xlim(0, last_ms * 1.01)
    axes.set_xlabel("milliseconds since the step began")
    style.quiet_y(axes)
    style.add_legend(made, keys)
    return made


def _bars(axes: "Axes", spans: tuple[Span, ...], y: float, height: float, *, is_projected: bool) -> None:
    for kind in dict.fromkeys(span.kind for span in spans):
        axes.broken_barh(
            [(span.start_ms, span.end_ms - span.start_ms) for span in spans if span.kind == kind],
            (y - height / 2, height),
            facecolor=style.ACTIVITY_COLOURS[kind],
            alpha=PALE if is_projected else 1.0,
            edgecolor=style.FAINT if is_projected else "white",
            linewidth=0.6 if is_projected else 0.35,
        )
