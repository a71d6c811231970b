"""timeline.png: a few consecutive steps of every policy on one time axis."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sa_atp.lab.report import stats, text
from sa_atp.lab.report.drawing import stragglers, style
from sa_atp.lab.report.drawing.gaps import without_gaps
from sa_atp.lab.report.stats import PolicyStats
from sa_atp.lab.report.text import duration, policy_name
from sa_atp.lab.runs.records import PolicyRun, RunResult
from sa_atp.lab.runs.tasks import straggler_pattern

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.27
STEPS_OF_SLOWEST = 2
MOST_STEPS = 12  # of the fastest policy: more would be too small to see
APART = 0.06  # share of the axis between two numbers of steps
GAPS_FROM = 0.004  # share of the axis: of longer work thin gaps separate micro-batches

ROWS_OF_A_NUMBER = 6  # in a column of a paper so many rows of bars are as high as the number of a step needs
CANCELLED = "work cancelled"
COLOURS = {**style.ACTIVITY_COLOURS, CANCELLED: style.ACTIVITY_COLOURS["help"], "straggler": style.SLOW_COLOUR}

Spans = list[tuple[float, float]]
"""(start, length) in seconds."""


def has_intervals(result: RunResult) -> bool:
    """Whether it was recorded what workers did when."""
    return bool(_runs(result))


def timeline(result: RunResult, axes: "Axes") -> float:
    """Draws what each worker does over the same stretch of time, below the name of its policy: its first repetition. Lines
    are where steps of the job begin.
    """
    runs = _runs(result)
    first, end_s = window(result)
    unit_s = style.time_axis(axes, "x", end_s, f"time since step {first} began")
    axes.grid(visible=False)
    small = style.is_small(axes)
    labels: list[str] = []
    bold: set[int] = set()
    bars: dict[str, dict[int, Spans]] = defaultdict(lambda: defaultdict(list))  # by label of the legend, and row
    for policy, run in runs:
        why = {} if small else stragglers.notes(result, policy.workers())
        if small and labels:  # room for the numbers of steps, of which the first policy has enough above the Axes
            labels += [""] * (len({i.worker for i in run.intervals}) // ROWS_OF_A_NUMBER)
        heading = len(labels)
        bold.add(heading)
        labels.append(policy_name(run.policy))
        begins = step_begins_s(run)
        origin_s = begins[min(first, max(begins))]
        workers = sorted({i.worker for i in run.intervals})
        row_of = {worker: heading + n for n, worker in enumerate(workers, start=1)}
        slow = slow_spans(result, run)
        for worker in workers:
            bars["straggler"][row_of[worker]] += _within(slow.get(worker, []), origin_s, end_s)
            labels.append(f"worker {worker}" + (f" ({why[worker]})" if worker in why else ""))
        for each in without_gaps(run):
            spans = _within([(each.start_us / 1e6, (each.end_us - each.start_us) / 1e6)], origin_s, end_s)
            key = CANCELLED if "cancelled" in each.label else each.kind
            bars[key][row_of[each.worker]] += spans
        places = {step: (at - origin_s) / unit_s for step, at in begins.items()}
        _steps(axes, places, (heading, len(labels) - 1), end_s / unit_s)
    _draw(axes, bars, end_s, unit_s)
    style.label_rows(axes, labels, bold)
    return ROW_IN * len(labels)


def timeline_title(result: RunResult) -> str:
    """Steps in 1.54 s: ATP 2, SA-ATP 6"""
    first, end_s = window(result)
    said = []
    for _, run in _runs(result):
        begins = step_begins_s(run)
        origin_s = begins[min(first, max(begins))]
        ends = [end - origin_s for end in stats.step_ends_s(run).values()]
        done = sum(0 < end <= end_s * 1.0001 for end in ends)
        is_over = max(ends) < end_s * 0.99
        said.append(f"{policy_name(run.policy)} {done}" + (" (no more were run)" if is_over else ""))
    return f"Steps in {duration(end_s)}: {', '.join(said)}"


def _runs(result: RunResult) -> list[tuple[PolicyStats, PolicyRun]]:
    """The first repetition of each policy that has intervals."""
    found = [
        (each, run) for each in stats.policies(result) for run in each.runs if run.intervals and stats.step_ends_s(run)
    ]
    return [(each, run) for n, (each, run) in enumerate(found) if n == 0 or found[n - 1][0] is not each]


def step_begins_s(run: PolicyRun) -> dict[int, float]:
    """When each step of the job began: as soon as the one before had ended, the first one at 0."""
    ends = stats.step_ends_s(run)
    return dict(zip(ends, [0.0, *ends.values()], strict=False))


def window(result: RunResult) -> tuple[int, float]:
    """The first step to show, a counted one with a straggler if there is one; and how many seconds: a few steps of the
    slowest policy, but not too many of the fastest.
    """
    runs = _runs(result)
    _, base = runs[0]
    begins, ends = step_begins_s(base), stats.step_ends_s(base)
    slow = [span for spans in slow_spans(result, base).values() for span in spans]
    counted = stats.counted_steps(base, result.plan.run.warm_up)
    with_one = (step for step in counted if any(a < ends[step] and a + length > begins[step] for a, length in slow))
    first = next(with_one, counted[0])
    few, many = [], []
    for _, run in runs:
        begun = step_begins_s(run)
        first_here = min(first, max(begun))
        took = [end - begun[first_here] for step, end in stats.step_ends_s(run).items() if step >= first_here]
        few.append(took[: STEPS_OF_SLOWEST + (len(runs) == 1)][-1])
        many += took[MOST_STEPS - 1 : MOST_STEPS]
    return first, max(1e-6, min([max(few), *many]))


def slow_spans(result: RunResult, run: PolicyRun) -> dict[int, Spans]:
    """By worker, the spells in which its device or its link was slow, or a step in which it paused; in seconds."""
    slow = stragglers.slow_in_steps(result, [run])
    always = text.slow_links(result)
    is_on = straggler_pattern(result.plan).is_on
    found: dict[int, Spans] = defaultdict(list)
    for (worker, step), intervals in stats.grouped(((i.worker, i.step), i) for i in without_gaps(run)).items():
        start_us, end_us = min(i.start_us for i in intervals), max(i.end_us for i in intervals)
        if worker in slow.get(step, {}) or worker in always:
            found[worker].append((start_us / 1e6, (end_us - start_us) / 1e6))
        elif is_on(step):
            spells = stragglers.contended_us(result, run, worker, start_us, end_us)
            found[worker] += [(start / 1e6, (end - start) / 1e6) for start, end in spells]
    return found


def _within(spans: Spans, origin_s: float, end_s: float) -> Spans:
    """The parts of spans from a moment on, for so many seconds, as seconds since that moment."""
    cut = [(max(0.0, start - origin_s), min(start + length - origin_s, end_s)) for start, length in spans]
    return [(start, end - start) for start, end in cut if end > start]


def _draw(axes: "Axes", bars: Mapping[str, Mapping[int, Spans]], end_s: float, unit_s: float) -> None:
    """Draws bars by label of the legend and row; bands behind stragglers. Args: unit_s: of the axis."""
    for key, colour in COLOURS.items():
        label: str | None = style.ACTIVITY_LABELS.get(key, key)
        for row, spans in sorted(bars[key].items()):
            if not spans:
                continue
            is_band = key == "straggler"
            is_work = key not in ("wait", "between", "straggler")
            gaps = is_work and sum(length for _, length in spans) / len(spans) > GAPS_FROM * end_s
            axes.broken_barh(
                [(start / unit_s, length / unit_s) for start, length in spans],
                (row - 0.5, 1.0) if is_band else (row - 0.31, 0.62),
                facecolor=colour,
                edgecolor="white" if gaps else "none",
                linewidth=0.35 if gaps else 0.0,
                hatch="//////" if key == CANCELLED else None,
                zorder=0 if is_band else 1,
                label=label,
            )
            label = None


def _steps(axes: "Axes", begins: Mapping[int, float], rows: tuple[int, int], end: float) -> None:
    """Draws lines where steps begin, with their numbers in the row of the heading as far as there is room.

    Args: begins, end: in the unit of the axis.
    """
    free = 0.0
    for step, at in begins.items():
        if not 0 <= at < 0.985 * end:
            continue
        axes.vlines(at, rows[0] + 0.4, rows[1] + 0.5, color=style.INK, lw=0.8)
        if at >= free:
            place = (at, rows[0] + 0.4)
            axes.annotate(str(step), place, (1, 1), textcoords="offset points", size="small", color=style.FAINT)
            free = at + APART * end
