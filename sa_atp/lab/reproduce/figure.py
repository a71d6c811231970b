"""The figure of `sa-atp reproduce`: for each claim the paper's number, and every run of ours by setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.text import policy_name
from sa_atp.lab.reproduce.points import Found, Sample, median
from sa_atp.lab.reproduce.settings import Claim, Headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN, PANEL_IN = 0.2, 0.62


def draw(headlines: Sequence[Headline], found: Mapping[str, Sequence[Sequence[Found]]], path: Path) -> Path:
    """Draws each policy's time relative to its baseline's. Raises: UserError, MissingPartError."""
    style.require_matplotlib()
    from matplotlib.lines import Line2D

    panels = [
        (headline, claim, settings)
        for headline in headlines
        for claim, settings in zip(headline.claims, found[headline.name], strict=True)
        if not claim.said_by  # its runs are another claim's
    ]
    heights = [PANEL_IN + ROW_IN * len(settings) for _, _, settings in panels]
    with style.applied():
        made = style.figure(
            sum(heights),
            "The papers' headlines, and every run of ours",
            "Time over that of the baseline: what is further left is shorter. A dot is a run, one for each "
            "seed; the bar is their median.",
            legend=1,
        )
        axes = made.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for at, (headline, claim, settings) in zip(axes, panels, strict=True):
            _panel(at, headline, claim, settings)
        # one scale for all panels, from zero
        axes[-1].set_xlim(0, max(1.08, *(1.05 * ratio for panel in panels for ratio in _ratios(*panel[1:]))))
        axes[-1].set_xlabel("time over the baseline's")
        hollow = Line2D(
            [], [], color=style.INK, marker="o", ls="", markersize=4.5, fillstyle="none", label="baseline at its best"
        )
        keys: list[Any] = [
            Line2D([], [], color=style.INK, marker="o", ls="", markersize=4.5, alpha=0.6, label="one run"),
            Line2D(
                [],
                [],
                color=style.INK,
                marker="|",
                ls="",
                markersize=11,
                markeredgewidth=2,
                label="median of a setting",
            ),
            Line2D([], [], color=style.INK, lw=1.4, ls=(0, (4, 2)), label="the paper's figure"),
            *([hollow] if any(each.at_best for *_, settings in panels for each in settings) else []),
            Line2D([], [], color="#999999", lw=1.0, label="as long as the baseline"),
        ]
        style.add_legend(made, keys)
        return style.save(made, path)


def _ratios(claim: Claim, settings: Sequence[Found]) -> list[float]:
    return _known(claim, [sample for each in settings for sample in (*each.samples, *each.at_best)])


def _known(claim: Claim, samples: Sequence[Sample]) -> list[float]:
    """The ratios of samples in which both policies reached the accuracy."""
    found = [sample.ratio(claim.quantity) for sample in samples]
    return [ratio for ratio in found if ratio is not None]


def _panel(axes: "Axes", headline: Headline, claim: Claim, settings: Sequence[Found]) -> None:
    what = {"iteration": "time of a step", "sample": "time of a sample", "accuracy": "time to accuracy"}[claim.quantity]
    axes.set_title(f"{headline.title}: {policy_name(claim.policy)} against {policy_name(claim.baseline)}, {what}")
    colour = style.policy_colour(claim.policy)
    axes.axvline(1.0, color="#999999", lw=1.0, zorder=1)
    if claim.paper is not None:
        ratio = 1 / claim.paper if claim.is_speedup else 1 - claim.paper
        axes.axvline(ratio, color=style.INK, lw=1.4, ls=(0, (4, 2)), zorder=1)
    for row, each in enumerate(settings):
        ratios, fair = _known(claim, each.samples), _known(claim, each.at_best)
        axes.plot(fair, [row] * len(fair), color=colour, marker="o", ls="", markersize=4.5, fillstyle="none", zorder=2)
        axes.plot(ratios, [row] * len(ratios), color=colour, marker="o", ls="", markersize=4.5, alpha=0.6, zorder=2)
        middle = median(ratios)
        if middle is not None:
            axes.plot([middle], [row], color=colour, marker="|", ls="", markersize=11, markeredgewidth=2, zorder=3)
    axes.set_yticks(range(len(settings)), [each.setting.name for each in settings], fontsize=8.5)
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.grid(axis="x")
    style.quiet_y(axes)
