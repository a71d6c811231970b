"""The figures of a run. Each is a function of the result, and its title states the finding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sa_atp.basics.errors import UserError
from sa_atp.lab.report import comparing, findings, stats
from sa_atp.lab.report.drawing import stragglers, style
from sa_atp.lab.report.drawing.gantt import timeline
from sa_atp.lab.report.drawing.style import NARROW, WIDE, WIDTH_IN, FigureLayout, NothingToDrawError
from sa_atp.lab.report.drawing.training import training
from sa_atp.lab.report.stats import PolicyStats, WorkerShare
from sa_atp.lab.report.text import (
    axis_unit,
    digits,
    duration,
    factor,
    in_words,
    number,
    plural,
    policy_name,
    situation,
)
from sa_atp.lab.runs.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 400  # dots of one policy; more would overlap


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A kind of figure in reports. Its function raises NothingToDrawError if the run lacks the data."""

    name: str
    draw: Callable[[RunResult, FigureLayout], "Figure"]
    caption: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn figure: its file, and data URIs for wide and narrow screens."""

    path: Path
    caption: str
    wide: str
    narrow: str


def draw_all(result: RunResult, folder: Path) -> tuple[list[Drawn], dict[str, str]]:
    """Writes all figures for which the run has data, and removes files of the others.

    Returns: the figures; and by name, why others were not drawn. Raises: MissingPartError without matplotlib; UserError.
    """
    style.require_matplotlib()
    written, left_out = [], {}
    for kind in FIGURES:
        path = folder / kind.name
        try:
            with style.applied(WIDE):
                made = kind.draw(result, WIDE)
                style.save(made, path)
                wide = style.as_uri(made)
            with style.applied(NARROW):
                written.append(Drawn(path, kind.caption, wide, style.as_uri(kind.draw(result, NARROW))))
        except NothingToDrawError as reason:
            left_out[kind.name] = str(reason)
            path.unlink(missing_ok=True)
    return written, left_out


def write(
    result: RunResult, folder: Path, *, layout: FigureLayout = WIDE, suffix: str = "png"
) -> tuple[list[Path], dict[str, str]]:
    """Writes all figures for which the run has data in one layout and format, to be used elsewhere, without a page.

    Args: suffix: one of style.FORMATS. Returns: the files; and by name, why others were not drawn.

    Raises: MissingPartError without matplotlib; UserError.
    """
    style.require_matplotlib()
    written, left_out = [], {}
    for kind in FIGURES:
        name = Path(kind.name).with_suffix(f".{suffix}").name
        try:
            with style.applied(layout):
                written.append(style.save(kind.draw(result, layout), folder / name))
        except NothingToDrawError as reason:
            left_out[name] = str(reason)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return written, left_out


def draw(result: RunResult, kind: FigureKind, *, narrow: bool = False) -> "Figure":
    """One figure of a run, to be shown or saved. Raises: MissingPartError without matplotlib; NothingToDrawError."""
    style.require_matplotlib()
    layout = NARROW if narrow else WIDE
    with style.applied(layout):
        return kind.draw(result, layout)


# --- iteration_time.png -----------------------------------------------------------------------------------------------


def iteration_time(result: RunResult, layout: FigureLayout = WIDE) -> "Figure":
    """Mean iteration time of each policy beside the fluid bound, and the distribution of its steps below."""
    shown = [each for each in stats.policies(result) if each.mean_s is not None]
    if not shown:
        raise NothingToDrawError("no iterations were recorded")
    base = stats.baseline(result, shown)
    longest_s = max(float(each.pooled_s.max()) for each in shown)
    longest_mean_s = max(each.mean_s or 0.0 for each in shown)
    same_axis = longest_s < 2.2 * longest_mean_s
    row_in = 0.42 * max(1.0, max(_name(each, base, shown, layout).count("\n") for each in shown) * 0.7)
    heights = [row_in * len(shown) + 0.1, 0.5 * len(shown) + 0.1]
    height_in = sum(heights) + 1.1 + (0.5 if layout.is_narrow else 0.0)
    made = style.figure(height_in, findings.iteration_time(result), _subtitle(result, shown), layout=layout)
    panels = made.subplots(2, 1, sharex=same_axis, height_ratios=heights)
    _means(panels[0], result, shown, base, layout)
    _distributions(panels[1], shown, layout)
    end_s = max(_room_for_notes(result, shown, base, layout), longest_s * 1.04 if same_axis else 0.0)
    _time_axis(panels[0], end_s, layout, labelled=not same_axis)
    _time_axis(panels[1], end_s if same_axis else longest_s * 1.04, layout, labelled=True)
    return made


def _means(
    axes: "Axes", result: RunResult, shown: Sequence[PolicyStats], base: PolicyStats | None, layout: FigureLayout
) -> None:
    for y, each in enumerate(shown):
        mean = each.mean_s or 0.0
        axes.barh(y, mean, height=0.62, color=style.policy_colour(each.policy))
        end = mean
        if interval := each.mean_interval_s:
            # if all repetitions are equal, as in simulations, rounding may make this negative
            below, above = max(0.0, mean - interval[0]), max(0.0, interval[1] - mean)
            axes.errorbar(mean, y, xerr=[[below], [above]], color=style.INK, capsize=3, lw=1.1)
            end = max(end, interval[1])
        against = _against(result, base, each, layout)
        below = layout.is_narrow and bool(against)
        note = axes.annotate(
            duration(mean), (end, y), (6, 6 if below else 0), textcoords="offset points", va="center", weight="bold"
        )
        if below:
            axes.annotate(against, (end, y), (6, -6), textcoords="offset points", va="center")
        elif against:
            axes.annotate(against, (1, 0.5), (7, 0), xycoords=note, textcoords="offset points", va="center")
    _labels(axes, shown, base, layout)
    title = "mean iteration time" + (" and its 95 % interval" if any(e.mean_interval_s for e in shown) else "")
    _bounds(axes, shown, title, layout)


def _bounds(axes: "Axes", shown: Sequence[PolicyStats], title: str, layout: FigureLayout) -> None:
    """Draws the fluid bound: one line if it is the same for all policies, else a mark on each bar.

    Args: title: of the panel; the note on the bound stands beside it.
    """
    bounds = {y: each.fluid_bound_s for y, each in enumerate(shown) if each.fluid_bound_s}
    texts = [duration(bound) for bound in bounds.values()]
    if len(set(texts)) > 1:
        for y, bound in bounds.items():
            axes.plot([bound, bound], [y - 0.42, y + 0.42], color=style.BOUND_COLOUR, lw=1.4, ls=(0, (4, 2)))
        shortest, longest = min(bounds.values()), max(bounds.values())
        about = (
            f"fluid bounds {duration(shortest)} to {duration(longest)} (devices alone: work of an update / all speed)"
        )
    elif bounds:
        bound = sum(bounds.values()) / len(bounds)
        axes.axvline(bound, color=style.BOUND_COLOUR, lw=1.4, ls=(0, (4, 2)))
        about = f"fluid bound {duration(bound)} (devices alone: all work / all speed)"
    else:
        about = ""
    if about and layout.width_in < WIDTH_IN:  # beside each other they would not fit
        about = layout.lines(about, 40)
        line_in_points = 1.3 * layout.small
        axes.annotate(about, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points",
                      color=style.BOUND_COLOUR, size=layout.small, annotation_clip=False)  # fmt: skip
        axes.set_title(title, pad=8 + line_in_points * len(about.splitlines()))
    else:
        axes.set_title(title)
        axes.set_title(about, loc="right", color=style.BOUND_COLOUR, size=layout.small)


def _against(result: RunResult, base: PolicyStats | None, other: PolicyStats, layout: FigureLayout) -> str:
    """The comparison of a policy with the baseline in words; empty for the baseline itself."""
    if base is None or other is base or not base.mean_s or not other.mean_s:
        return ""
    how = comparing.iterations(result, base, other)
    if how is None or not how.is_clear:
        return "about the same" if how is None or how.verdict == "same" else "no clear difference"
    return how.in_words() + ("" if layout.is_narrow else f" ({factor(base.mean_s / other.mean_s)} as fast)")


def _room_for_notes(
    result: RunResult, shown: Sequence[PolicyStats], base: PolicyStats | None, layout: FigureLayout
) -> float:
    """The end of the axis, in seconds, that leaves room for the notes behind the bars."""
    ends: list[float] = []
    for each in shown:
        end: float = max([each.mean_s or 0.0, *(each.mean_interval_s or ())])
        mean, against = len(duration(each.mean_s)), len(_against(result, base, each, layout))
        # a character takes about a hundredth of the width; on narrow screens there are two lines
        share = (
            0.027 * (max(mean * 1.15, against) + 2)
            if layout.is_narrow
            else 0.105 / layout.width_in * (mean + against + 4)
        )
        ends.append(end / (1 - min(0.6, share)))
    return max(ends)


def _distributions(axes: "Axes", shown: Sequence[PolicyStats], layout: FigureLayout) -> None:
    middle_y, half = (0.14, 0.22) if layout.is_narrow else (0.0, 0.33)  # of a row; its notes are above or beside it
    for y, each in enumerate(shown):
        times = np.sort(each.pooled_s)
        if len(times) > MAX_POINTS:  # evenly spaced quantiles, which keep the shape and both ends
            times = times[np.linspace(0, len(times) - 1, MAX_POINTS).round().astype(int)]
        # a fixed, evenly spread sequence: the same run gives the same picture
        jitter = (np.arange(len(times)) * 0.618034 % 1.0 - 0.5) * 0.5
        axes.scatter(
            times,
            y + middle_y + jitter * half / 0.33,
            s=13 if half > 0.3 else 8,
            color=style.policy_colour(each.policy),
            alpha=0.45,
            linewidths=0,
        )
        low, middle, high, late = (stats.percentile(each.pooled_s, which) for which in (25, 50, 75, 99))
        if low is not None and high is not None:
            axes.plot([low, high], [y + middle_y] * 2, color=style.INK, lw=5, alpha=0.55, solid_capstyle="butt")
        if middle is not None:
            axes.plot([middle, middle], [y + middle_y - half, y + middle_y + half], color=style.INK, lw=1.8)
        last = f"p99 {duration(late)}" if late is not None else f"longest {duration(float(each.pooled_s.max()))}"
        lines = [f"median {duration(middle)}", last] if middle is not None else [last]
        if layout.is_narrow:
            axes.annotate(", ".join(lines), (0, y - 0.29), (3, 0), xycoords=("axes fraction", "data"),
                          textcoords="offset points", va="center", size=7.5, color=style.FAINT)  # fmt: skip
        else:
            axes.annotate("\n".join(lines), (1, y), (4, 0), xycoords=("axes fraction", "data"),
                          textcoords="offset points", va="center", size=9, color=style.FAINT)  # fmt: skip
    _labels(axes, shown, None, layout)
    most, fewest = (pick(len(each.pooled_s) for each in shown) for pick in (max, min))
    dots = f"{MAX_POINTS} of {number(most)} steps (dots)" if most > MAX_POINTS else "every step (dot)"
    marks = [
        name for name, which in (("median (line)", 50), ("middle half (bar)", 25)) if fewest >= stats.values_for(which)
    ]
    title = " and ".join(filter(None, [", ".join([dots, *marks[:-1]]), *marks[-1:]]))
    axes.set_title(layout.lines(title, 38))


def _labels(axes: "Axes", shown: Sequence[PolicyStats], base: PolicyStats | None, layout: FigureLayout) -> None:
    axes.set_yticks(range(len(shown)), [_name(each, base, shown, layout) for each in shown])
    axes.set_ylim(len(shown) - 0.45, -0.55)
    style.quiet_y(axes)


def _name(each: PolicyStats, base: PolicyStats | None, shown: Sequence[PolicyStats], layout: FigureLayout) -> str:
    """The label of a row."""
    return layout.lines(policy_name(each.policy), 11) + ("\n(baseline)" if each is base and len(shown) > 1 else "")


def _time_axis(axes: "Axes", end_s: float, layout: FigureLayout, *, labelled: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    scale, unit = axis_unit(end_s)
    axes.set_xlim(0, end_s or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(round(8 * layout.ticks), steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
    axes.grid(axis="x")
    if labelled:
        axes.set_xlabel(f"time per iteration ({unit})")


# --- who_did_what.png -------------------------------------------------------------------------------------------------


def who_did_what(result: RunResult, layout: FigureLayout = WIDE) -> "Figure":
    """Draws the mean time of each activity in a step, for each policy and worker."""
    shown = [(each, each.workers()) for each in stats.policies(result)]
    shown = [(each, workers) for each, workers in shown if workers]
    if not shown:
        raise NothingToDrawError("no iterations were recorded")
    slow = [stragglers.notes(result, workers) for _, workers in shown]
    few = max(len(workers) for _, workers in shown) <= 8
    names = [_worker_labels(workers, why, layout, few=few) for (_, workers), why in zip(shown, slow, strict=True)]
    row_in = max(0.34, 0.14 * stragglers.most_lines(names)) if few else 0.22
    titles = [layout.lines(_policy_title(policy), 32) for policy, _ in shown]
    heights = [
        row_in * len(workers) + 0.42 + 0.16 * title.count("\n")
        for (_, workers), title in zip(shown, titles, strict=True)
    ]
    height_in = sum(heights) + 0.55
    kinds = {kind for _, workers in shown for w in workers for kind, s in w.seconds.items() if s > 0}
    keys = style.activity_keys(kinds, slow=any(slow))
    rows = style.legend_rows((str(key.get_label()) for key in keys), layout)
    about = f"Mean of each worker's step, {situation(result)}."
    if layout.is_narrow:
        unused = any(worker.unused for _, workers in shown for worker in workers)
        about += f" Right: micro-batches per step, own + helped{' (unused)' if unused else ''}."
    made = style.figure(height_in, findings.who_did_what(result), about, legend=rows, layout=layout)
    panels = made.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    end_s = max(sum(worker.seconds.values()) for _, workers in shown for worker in workers) or 1.0
    for n, axes in enumerate(panels):
        workers = shown[n][1]
        axes.set_title(titles[n], weight="bold")
        _stacks(axes, workers, slow[n], end_s, layout, room_for_text=few)
        size = layout.size if few else min(8.5, layout.size - 1.5)
        axes.set_yticks(range(len(workers)), names[n], size=size)
        for tick, worker in zip(axes.get_yticklabels(), workers, strict=True):
            tick.set_fontweight("bold" if worker.worker in slow[n] else "normal")
        _micro_batches(axes, workers, size - 1, layout)
        axes.set_ylim(len(workers) - 0.5, -0.5)
        style.quiet_y(axes)
    style.add_legend(made, keys, layout)
    _time_axis(panels[-1], end_s * 1.01, layout, labelled=False)
    panels[-1].set_xlabel(f"mean time per step ({axis_unit(end_s * 1.01)[1]})")
    for axes in panels:
        axes.grid(axis="x")
    return made


def _stacks(
    axes: "Axes",
    workers: list[WorkerShare],
    slow: Mapping[int, str],
    end_s: float,
    layout: FigureLayout,
    *,
    room_for_text: bool,
) -> None:
    """Args: slow: stragglers."""
    scale, unit = axis_unit(end_s * 1.01)
    for y, worker in enumerate(workers):
        if worker.worker in slow:
            axes.barh(y, sum(worker.seconds.values()), height=1.0, color=style.SLOW_COLOUR, zorder=0)
        left = 0.0
        for kind in stats.ACTIVITIES:
            seconds = worker.seconds[kind]
            axes.barh(y, seconds, left=left, height=0.7, color=style.ACTIVITY_COLOURS[kind])
            if room_for_text and seconds > (0.16 if layout.is_narrow else 0.45 / layout.width_in) * end_s:
                colour = "white" if kind in ("compute", "send") else style.INK
                axes.text(
                    left + seconds / 2,
                    y,
                    _short(seconds / scale, unit),
                    ha="center",
                    va="center",
                    size=layout.size - 1,
                    color=colour,
                )
            left += seconds


def _policy_title(policy: PolicyStats) -> str:
    mean = f": mean iteration {duration(policy.mean_s)}" if policy.mean_s is not None else ""
    shown = {worker.worker for worker in policy.workers()}
    known = {i.worker for run in policy.runs for i in run.iterations}
    known |= {i.worker for run in policy.runs for i in run.intervals}
    missing = sorted(known - shown)
    who = f"worker {missing[0]}" if len(missing) == 1 else f"{in_words(len(missing))} workers"
    return policy_name(policy.policy) + mean + (f"; no counted step of {who}" if missing else "")


def _micro_batches(axes: "Axes", workers: list[WorkerShare], size: float, layout: FigureLayout) -> None:
    """Writes each worker's micro-batches per step beside its bar, and the samples of its shard where shards differ."""
    differ = len({round(worker.samples) for worker in workers}) > 1
    for y, worker in enumerate(workers):
        if layout.is_narrow:
            text = f"{worker.own:.1f}" + (f" + {worker.helped:.1f}" if worker.helped else "")
            text += f" ({worker.unused:.1f})" if worker.unused else ""
        else:
            text = f"{worker.own:.1f} own" + (f" ({worker.samples:.0f} samples a shard)" if differ else "")
            text += f" + {worker.helped:.1f} helped" if worker.helped else ""
            text += f", {worker.unused:.1f} unused" if worker.unused else ""
        axes.annotate(text, (1, y), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      va="center", size=size, color=style.FAINT)  # fmt: skip
    if not layout.is_narrow:
        axes.annotate("micro-batches per step", (1, 1), (4, 5), xycoords="axes fraction", textcoords="offset points",
                      size=8.5, color=style.FAINT)  # fmt: skip


def _short(value: float, unit: str) -> str:
    """A label within a bar, without tenths of a millisecond."""
    return f"{value:.0f}" if value >= 9.95 and unit != "s" else digits(value, 3 if value >= 9.95 else 2)


def _worker_labels(
    workers: list[WorkerShare], slow: Mapping[int, str], layout: FigureLayout, *, few: bool
) -> list[str]:
    """Args: slow: stragglers, and the reason of each."""
    return [stragglers.label(each.worker, slow.get(each.worker, ""), layout, few=few) for each in workers]


def _subtitle(result: RunResult, shown: Sequence[PolicyStats]) -> str:
    counted = max(len(each.pooled_s) for each in shown)
    taken = max(sum(len(stats.step_ends_s(run)) for run in each.runs) for each in shown)
    warm_up = f"{plural(result.plan.run.warm_up, 'step')} of warm-up not counted" if counted < taken else "all counted"
    return f"{findings.what_ran(result)} of each policy; {warm_up}."


FIGURES: tuple[FigureKind, ...] = (
    FigureKind(
        "iteration_time.png",
        iteration_time,
        "Mean time of an iteration under each policy, and the distribution of its steps below. The fluid bound is the time "
        "in which all devices together could do all work, shared perfectly. It leaves links out: with slow or long links "
        "no policy comes near it.",
    ),
    FigureKind(
        "who_did_what.png",
        who_did_what,
        "Where each worker's time goes in an average step, and how many micro-batches it contributes."
        " Unused ones were computed in vain: another worker contributed them first, or the sum was already complete.",
    ),
    FigureKind(
        "timeline.png",
        timeline,
        "A few consecutive steps of each policy on the same time axis; thin lines are the beginnings of steps. "
        "A worker is in no step while the testbed copies the sum and writes records, before its first step, and after its "
        "last.",
    ),
    FigureKind(
        "training.png",
        training,
        "Training over time: the loss, the accuracy on held-out samples if they were evaluated, and when it reached the "
        "target.",
    ),
)
