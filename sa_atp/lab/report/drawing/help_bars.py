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

    def draw_on(axes: "Axes") -> float:
        return _draw_on(found, axes)

    took = duration(found.end_ms / 1000)
    return style.drawn(draw_on, lambda: f"Step {found.step} of {policy_name(found.policy)}, projected and real: {took}")


def _draw_on(found: HelpStep, axes: "Axes") -> float:
    for y, r in enumerate(found.ranks):
        _bars(axes, r.real, y + REAL, REAL_IN, is_projected=False)
        _bars(axes, r.projected, y + PROJECTED, PROJECTED_IN, is_projected=True)
    rows = {r.rank: y for y, r in enumerate(found.ranks)}
    asked = [(d.at_ms, rows[d.rank] + PROJECTED) for d in found.decisions if d.asked == "revocation"]
    if asked:
        axes.plot(*zip(*asked, strict=True), "v", color=style.INK, ms=4, label="asked to give back work")
    axes.axvline(found.end_ms, color=style.INK, lw=1.2, label="the sum is there")
    projected = [d.step_end_ms for d in found.decisions if math.isfinite(d.step_end_ms)]
    if projected:
        label = "when it was projected, at last"
        axes.axvline(projected[-1], color=style.BOUND_COLOUR, lw=1.0, ls="--", label=label)
    style.label_rows(axes, [f"worker {rank}" for rank in rows], set())
    last_ms = max(found.end_ms, *(span.end_ms for r in found.ranks for span in (*r.projected, *r.real)))
    axes.set_xlim(0, last_ms * 1.01)
    axes.set_xlabel("milliseconds since the step began")
    return 0.55 * len(found.ranks)


def _bars(axes: "Axes", spans: tuple[Span, ...], y: float, height: float, *, is_projected: bool) -> None:
    for kind in dict.fromkeys(span.kind for span in spans):
        axes.broken_barh(
            [(span.start_ms, span.end_ms - span.start_ms) for span in spans if span.kind == kind],
            (y - height / 2, height),
            facecolor=style.ACTIVITY_COLOURS[kind],
            alpha=PALE if is_projected else 1.0,
            edgecolor=style.FAINT if is_projected else "white",
            linewidth=0.6 if is_projected else 0.35,
            label="projected, above" if is_projected else style.ACTIVITY_LABELS[kind],
        )
