"""The figure of `sa-atp reproduce`: for each claim the paper's number, and every run of ours by setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sa_atp.lab.report.drawing import style
from sa_atp.lab.report.text import policy_name
from sa_atp.lab.reproduce.points import Found, Sample, median
from sa_atp.lab.reproduce.settings import Claim, Headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.22
WHAT = {"iteration": "time of a step", "sample": "time of a sample", "accuracy": "time to accuracy"}


def draw(headlines: Sequence[Headline], found: Mapping[str, Sequence[Sequence[Found]]], path: Path) -> Path:
    """Draws each policy's time relative to its baseline's. Raises: UserError, MissingPartError."""

    def draw_on(axes: "Axes") -> float:
        return panel(headlines, found, axes)

    title = "Time over the baseline's in the papers and in every run of ours: what is further left is shorter"
    return style.save(style.drawn(draw_on, lambda: title), path)


def panel(headlines: Sequence[Headline], found: Mapping[str, Sequence[Sequence[Found]]], axes: "Axes") -> float:
    """Draws a row for each setting below its claim: a dot for each run, and the median."""
    labels: list[str] = []
    bold: set[int] = set()
    furthest = 1.08
    for headline in headlines:
        for claim, settings in zip(headline.claims, found[headline.name], strict=True):
            if claim.said_by:  # its runs are another claim's
                continue
            bold.add(len(labels))
            what = WHAT[claim.quantity]
            who = f"{policy_name(claim.policy)} against {policy_name(claim.baseline)}"
            labels.append(f"{headline.title}: {who}, {what}")
            _claim(axes, claim, settings, len(labels))
            labels += [each.setting.name for each in settings]
            furthest = max(furthest, *(1.05 * ratio for ratio in _ratios(claim, settings)))
    axes.axvline(1.0, color="#999999", lw=1.0, zorder=1, label="as long as the baseline")
    style.label_rows(axes, labels, bold)
    axes.set_xlim(0, furthest)
    axes.set_xlabel("time over the baseline's")
    axes.grid(axis="x")
    return ROW_IN * len(labels)


def _ratios(claim: Claim, settings: Sequence[Found]) -> list[float]:
    return _known(claim, [sample for each in settings for sample in (*each.samples, *each.at_best)])


def _known(claim: Claim, samples: Sequence[Sample]) -> list[float]:
    """The ratios of samples in which both policies reached the accuracy."""
    found = [sample.ratio(claim.quantity) for sample in samples]
    return [ratio for ratio in found if ratio is not None]


def _claim(axes: "Axes", claim: Claim, settings: Sequence[Found], first: int) -> None:
    """Draws a claim's settings. Args: first: the row of the first one."""
    colour = style.policy_colour(claim.policy)
    if claim.paper is not None:
        ratio = 1 / claim.paper if claim.is_speedup else 1 - claim.paper
        ends = first - 0.5, first + len(settings) - 0.5
        axes.vlines(ratio, *ends, color=style.INK, lw=1.4, ls="--", zorder=1, label="the paper's figure")
    for row, each in enumerate(settings, start=first):
        ratios, fair = _known(claim, each.samples), _known(claim, each.at_best)
        for values, fill, label in ((fair, "none", "baseline at its best"), (ratios, "full", "one run")):
            if values:
                rows = [row] * len(values)
                axes.plot(values, rows, "o", color=colour, ms=4.5, alpha=0.7, fillstyle=fill, zorder=2, label=label)
        middle = median(ratios)
        if middle is not None:
            axes.plot([middle], [row], "|", color=colour, ms=11, mew=2, zorder=3, label="median of a setting")
