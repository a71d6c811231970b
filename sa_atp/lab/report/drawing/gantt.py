"""timeline.png: a few consecutive steps of every policy on one time axis."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sa_atp.lab.report import findings, stats
from sa_atp.lab.report.drawing import stragglers, style
from sa_atp.lab.report.drawing.gaps import BETWEEN, without_gaps
from sa_atp.lab.report.drawing.style import WIDE, FigureLayout, NothingToDrawError
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import axis_unit, duration, in_words, policy_name, situation
from sa_atp.lab.runs.records import Interval, PolicyRun, RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS_OF_SLOWEST = 2
FEW_WORKERS = 8  # up to so many have high rows
MOST_STEPS = 12  # of the fastest policy: more would be too small to see


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a policy's run that is shown. Times are seconds since the first step shown began."""

    policy: PolicyStats
    run: PolicyRun
    origin_us: int
    starts_s: dict[int, float]
    """When each step began, from the first one shown."""
    ends_s: dict[int, float]
    """When each step of the job was over."""
    spans_s: dict[tuple[int, int], tuple[float, float]]
    """(step, worker): when the worker began and ended the step, also one that it was still in when the first one began."""

    def seconds(self, at_us: int) -> float:
        return (at_us - self.origin_us) / 1e6

    def finished_by(self, end_s: float) -> int:
        """Number of its steps that had ended by then."""
        return sum(end <= end_s * 1.0001 for end in self.ends_s.values())


def timeline(result: RunResult, layout: FigureLayout = WIDE) -> "Figure":
    """Draws what each worker does over the same stretch of time under each policy, with help and stragglers."""
    stretches = stretches_of(result)
    if not stretches:
        raise NothingToDrawError("no intervals were recorded")
    end_s = _window_s(stretches)
    rows = [rows_of(result, stretch, end_s) for stretch in stretches]
    few = max(map(len, rows)) <= FEW_WORKERS
    names = [[stragglers.label(row.worker, row.why, layout, few=few) for row in found] for found in rows]
    row_in = max(0.3, 0.14 * stragglers.most_lines(names)) if few else 0.17
    heights = [row_in * len(found) + 0.5 for found in rows]
    height_in = sum(heights) + 0.55
    shown = [_shown(stretch, end_s) for stretch in stretches]
    keys = style.activity_keys(
        {i.kind for found in shown for i in found}, slow=any(row.slow_s for found in rows for row in found)
    )
    if any(is_cancelled(i) for found in shown for i in found):
        keys.append(_cancelled_key())
    made = style.figure(
        height_in,
        _title(result, stretches, end_s),
        _subtitle(result, min(stretches[0].starts_s), [i for found in shown for i in found]),
        legend=style.legend_rows((str(key.get_label()) for key in keys), layout),
        layout=layout,
    )
    panels = made.subplots(len(stretches), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, stretch, intervals, found, texts in zip(panels, stretches, shown, rows, names, strict=True):
        axes.set_title(policy_name(stretch.policy.policy), weight="bold", pad=16)
        _draw(axes, stretch, intervals, found, end_s, layout)
        axes.set_yticks(range(len(found)), texts, size=layout.size if few else layout.size - 2)
        for tick, row in zip(axes.get_yticklabels(), found, strict=True):
            tick.set_fontweight("bold" if row.why else "normal")
        _step_lines(axes, stretch, end_s, layout)
        _end(axes, intervals, stretch, len(found), end_s, layout)
    style.add_legend(made, keys, layout)
    _axis(panels[-1], end_s, layout)
    return made


def stretches_of(result: RunResult, first: int | None = None) -> list[Stretch]:
    """A stretch of each policy with intervals: its first repetition, from the same step on.

    Args: first: the step; None: the first counted one with a straggler, if there is one.
    """
    found = [
        (each, next((run for run in each.runs if run.intervals and run.iterations), None))
        for each in stats.policies(result)
    ]
    runs = [(each, run) for each, run in found if run is not None]
    if not runs:
        return []
    if first is None:
        first = _first_step(result, runs[0][1])
    stretches = []
    for each, run in runs:
        begun_us = _begun_us(run, first)
        spans = _spans_us(run.intervals if begun_us is None else [i for i in run.intervals if i.end_us > begun_us])
        if begun_us is not None or any(step >= first for step, _ in spans):
            stretches.append(_stretch(each, run, spans, begun_us, first))
    return stretches


def _spans_us(intervals: Iterable[Interval]) -> dict[tuple[int, int], tuple[int, int]]:
    """(step, worker): when the worker began and ended the step, in microseconds."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for i in intervals:
        start, end = spans.get((i.step, i.worker), (i.start_us, i.end_us))
        spans[i.step, i.worker] = min(start, i.start_us), max(end, i.end_us)
    return spans


def _begun_us(run: PolicyRun, step: int) -> int | None:
    """When a step of the job began, if workers have steps of their own; None: steps are common to all."""
    if not run.step_ends_s:
        return None
    return round(1e6 * run.step_ends_s[min(step, len(run.step_ends_s)) - 1]) if step else 0


def _stretch(
    policy: PolicyStats,
    run: PolicyRun,
    spans: dict[tuple[int, int], tuple[int, int]],
    begun_us: int | None,
    first: int,
) -> Stretch:
    """Args: spans: (step, worker): when it began and ended, in microseconds."""
    starts: dict[int, float] = {}
    if begun_us is None:
        origin_us = min(start for (step, _), (start, _) in spans.items() if step >= first)
        spans = {(step, worker): (a, b) for (step, worker), (a, b) in spans.items() if step >= first or b > origin_us}
        for (step, _), (start_us, _) in sorted(spans.items()):
            if step < first:
                continue
            starts[step] = min((start_us - origin_us) / 1e6, starts.get(step, math.inf))
    else:
        origin_us = begun_us
        begins = [0.0, *run.step_ends_s[:-1]]
        starts = {step: begins[step] - origin_us / 1e6 for step in range(min(first, len(begins) - 1), len(begins))}
    ends = {step: at - origin_us / 1e6 for step, at in stats.step_ends_s(run).items() if step in starts}
    within = {key: ((a - origin_us) / 1e6, (b - origin_us) / 1e6) for key, (a, b) in spans.items()}
    return Stretch(policy, run, origin_us, starts, ends, within)


def _first_step(result: RunResult, run: PolicyRun) -> int:
    """The first counted step with a straggler, or the first counted step."""
    steps = stats.counted_steps(run, result.plan.run.warm_up) or sorted({i.step for i in run.intervals})
    slow = {i.step for i in run.iterations if i.slowdown > 1} | {i.step for i in run.intervals if i.kind == "pause"}
    for (step, worker), (start, end) in _spans_us(run.intervals).items():
        if any(True for _ in stragglers.contended_us(result, run, worker, start, end)):
            slow.add(step)
    return next((step for step in steps if step in slow), steps[0])


def _window_s(stretches: Sequence[Stretch]) -> float:
    """How much time to show: a few steps of the slowest policy, but not too many of the fastest."""
    few = [sorted(s.ends_s.values())[: STEPS_OF_SLOWEST + (len(stretches) == 1)][-1] for s in stretches]
    many = [sorted(s.ends_s.values())[:MOST_STEPS][-1] for s in stretches if len(s.ends_s) >= MOST_STEPS]
    return max(1e-6, min([max(few), *many]))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker's row: why it is a straggler, if in all steps shown, and when it is slow."""

    worker: int
    why: str
    slow_s: list[tuple[float, float]]


def rows_of(result: RunResult, stretch: Stretch, end_s: float) -> list[WorkerRow]:
    """A row for each worker, up to a time.

    A worker is a straggler for as long as its device or its link is slow, or it pauses in the step.
    """
    links, always = stragglers.slow_links(result), stragglers.always_slow_links(result)
    slow = {(i.step, i.worker): i.slowdown for i in stretch.run.iterations if i.slowdown > 1}
    paused = {(i.step, i.worker): 1.0 for i in stretch.run.intervals if i.kind == "pause"}
    found = []
    for worker in sorted({i.worker for i in stretch.run.intervals}):
        steps = sorted(step for (step, who), (start, _) in stretch.spans_s.items() if who == worker and start < end_s)
        factors = [f for step in steps if (f := slow.get((step, worker), paused.get((step, worker)))) is not None]
        found_in: list[tuple[int, float, float]] = []
        for step in steps:
            if (step, worker) in slow or (step, worker) in paused or worker in always:
                start, end = stretch.spans_s[step, worker]
                found_in.append((step, max(0.0, min(start, end_s)), min(end, end_s)))
        is_always = len(factors) == len(steps) and len(set(factors)) == 1 and factors[0] > 1
        why = [stragglers.slow_device(result, factors[0])] if is_always else []
        why += [links[worker]] if worker in links else []
        # a gap between two steps in which it is a straggler belongs to the first
        following = {step: start for step, start, _ in found_in}
        spans = [(start, max(end, following.get(step + 1, end))) for step, start, end in found_in]
        if worker not in always:
            last_s = max((end for (_, who), (_, end) in stretch.spans_s.items() if who == worker), default=0.0)
            until_us = stretch.origin_us + round(1e6 * min(end_s, last_s))
            spells = stragglers.contended_us(result, stretch.run, worker, stretch.origin_us, until_us)
            spans += [(stretch.seconds(start_us), stretch.seconds(end_us)) for start_us, end_us in spells]
        found.append(WorkerRow(worker, ", ".join(why), spans))
    return found


def _shown(stretch: Stretch, end_s: float) -> list[Interval]:
    """All intervals within the window."""
    return [
        i
        for i in without_gaps(stretch.run)
        if i.end_us > stretch.origin_us and i.end_us > i.start_us and stretch.seconds(i.start_us) < end_s
    ]


def _draw(
    axes: "Axes",
    stretch: Stretch,
    shown: Sequence[Interval],
    rows: Sequence[WorkerRow],
    end_s: float,
    layout: FigureLayout,
) -> None:
    """Bars of intervals, and bands behind them."""
    y = {row.worker: y for y, row in enumerate(rows)}
    bars: dict[tuple[int, str, bool], list[tuple[float, float]]] = defaultdict(list)
    for i in shown:
        start = max(0.0, stretch.seconds(i.start_us))
        bars[i.worker, i.kind, is_cancelled(i)].append((start, min(stretch.seconds(i.end_us), end_s) - start))
    for row in rows:
        spans = [(start, end - start) for start, end in row.slow_s]
        axes.broken_barh(spans, (y[row.worker] - 0.5, 1.0), facecolor=style.SLOW_COLOUR, lw=0, zorder=0)
    for (worker, kind, cancelled), spans in bars.items():
        # thin gaps separate micro-batches, unless they are too short for that
        is_work = kind not in ("wait", "between")
        gaps = is_work and sum(width for _, width in spans) / len(spans) > end_s / (25 * layout.width_in)
        axes.broken_barh(
            spans,
            (y[worker] - 0.36, 0.72),
            facecolor=style.ACTIVITY_COLOURS[kind],
            edgecolor="white" if gaps or cancelled else "none",
            linewidth=0.35 if gaps or cancelled else 0,
            hatch="//////" if cancelled else None,
        )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    style.quiet_y(axes)


def _step_lines(axes: "Axes", stretch: Stretch, end_s: float, layout: FigureLayout) -> None:
    """Lines where steps begin, with their numbers if there is room."""
    size, free_s = min(8.5, layout.size - 1), 0.0
    for n, (step, at) in enumerate((step, at) for step, at in stretch.starts_s.items() if at < end_s * 0.985):
        axes.axvline(at, color=style.INK, lw=0.8)
        text = f"step {step}" if n == 0 else str(step)
        if at >= free_s:
            axes.annotate(text, (at, 1), (1, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
                          size=size, color=style.FAINT)  # fmt: skip
            free_s = at + _width_s(text, size, end_s, layout)


def _end(
    axes: "Axes", shown: Sequence[Interval], stretch: Stretch, rows: int, end_s: float, layout: FigureLayout
) -> None:
    """A note where a policy's run has ended."""
    text, size = "the run is over", min(8.5, layout.size - 1)
    over_s = max(stretch.seconds(i.end_us) for i in shown) if shown else 0.0
    if end_s - over_s > _width_s(text, size, end_s, layout):
        axes.annotate(text, (over_s, (rows - 1) / 2), (5, 0), textcoords="offset points", va="center", size=size,
                      color=style.FAINT)  # fmt: skip


def _width_s(text: str, size: float, end_s: float, layout: FigureLayout) -> float:
    """Width of a text in seconds of the axis, which takes two thirds of the figure's width."""
    return (0.62 * size * len(text) + 4) / (72 * layout.width_in * 0.66) * end_s


def _axis(axes: "Axes", end_s: float, layout: FigureLayout) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    scale, unit = axis_unit(end_s)
    axes.set_xlim(0, end_s)
    axes.xaxis.set_major_locator(MaxNLocator(round(10 * layout.ticks), steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:g}"))
    axes.set_xlabel(f"time ({unit})" if layout.is_narrow else f"time since the first of these steps began ({unit})")


def is_cancelled(interval: Interval) -> bool:
    return "cancelled" in interval.label


def _cancelled_key() -> object:
    from matplotlib.patches import Patch

    return Patch(facecolor="#888888", edgecolor="white", hatch="//////", linewidth=0.35, label="work cancelled")


def _title(result: RunResult, stretches: Sequence[Stretch], end_s: float) -> str:
    """While ATP takes 2 steps, SA-ATP takes 6."""
    base = next((s for s in stretches if s.policy.policy == result.plan.run.policies[0]), None)
    chosen = findings.headline(result, [s.policy for s in stretches])
    other = next((s for s in stretches if chosen is not None and s.policy is chosen), None)
    if base is None or other is None:
        return f"What each worker does from step to step under {policy_name(stretches[0].policy.policy)}"
    if any(max(s.ends_s.values()) < end_s for s in (base, other)):  # one policy's run ends before
        same = min(len(base.ends_s), len(other.ends_s))
        took = [
            f"{duration(sorted(s.ends_s.values())[same - 1])} with {policy_name(s.policy.policy)}"
            for s in (base, other)
        ]
        return f"{in_words(same).capitalize()} step{'s take' if same > 1 else ' takes'} {took[0]}, {took[1]}"
    done = [(policy_name(s.policy.policy), s.finished_by(end_s)) for s in (base, other)]
    (name, steps), (other_name, other_steps) = done
    if not steps:
        return f"While {name} is in its first step, {other_name} takes {in_words(other_steps)}"
    if steps == other_steps:
        return f"{name} and {other_name} take {in_words(steps)} step{'s' * (steps != 1)} each in the same time"
    return f"While {name} takes {in_words(steps)} step{'s' * (steps != 1)}, {other_name} takes {in_words(other_steps)}"


def _subtitle(result: RunResult, first: int, shown: Sequence[Interval]) -> str:
    again = ", first repetition" if result.plan.run.repetitions > 1 else ""
    workers = result.plan.topology.workers
    who = f"The same {workers} workers" if workers > 1 else "The worker"
    between = (
        " Between steps the testbed copies sums and writes records." if any(i.label == BETWEEN for i in shown) else ""
    )
    return f"{who} from step {first} on{again}, {situation(result)}.{between}"
