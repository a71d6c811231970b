"""The timeline that report.html draws in the browser: what it is made of. timeline.js draws it, and zooms."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sa_atp.basics.words import plural
from sa_atp.lab.report.drawing import gantt, style
from sa_atp.lab.report.drawing.gantt import Stretch, WorkerRow
from sa_atp.lab.report.drawing.gaps import without_gaps
from sa_atp.lab.report.text import policy_name
from sa_atp.lab.runs.records import Interval, RunResult

MOST_BARS = 20_000  # some 500 kB of the page
MOST_WORKERS = 48
KINDS = tuple(style.ACTIVITY_LABELS)
CANCELLED = 16  # is added to the kind of work that was cancelled
FIELDS = 5  # of a bar


def timeline(result: RunResult) -> dict[str, Any] | None:
    """The first repetition of each policy, from its first step on, as far as the size of a page allows.

    Returns: None if nothing was recorded.

    Times are microseconds since the policy's first step began. A bar is five numbers, one after another: start, duration,
    kind, step, and label.
    """
    stretches = gantt.stretches_of(result, first=0)
    found = [(s, _most_telling(gantt.rows_of(result, s, math.inf)), without_gaps(s.run)) for s in stretches]
    kept = [(stretch, rows, _of_rows(intervals, rows)) for stretch, rows, intervals in found]
    if not any(intervals for _, _, intervals in kept):
        return None
    steps = _steps([i for _, _, intervals in kept for i in intervals])
    labels: dict[str, int] = {}
    panels = [_panel(stretch, rows, [i for i in of if i.step < steps], labels) for stretch, rows, of in kept]
    return {
        "kinds": [[style.ACTIVITY_LABELS[kind], style.ACTIVITY_COLOURS[kind]] for kind in KINDS],
        "slow": style.SLOW_COLOUR,
        "legend": _legend(panels),
        "labels": list(labels),
        "panels": panels,
        "left_out": _left_out(result, found, kept, steps),
    }


def _most_telling(rows: list[WorkerRow]) -> list[WorkerRow]:
    """As many rows as have room, in order: stragglers before others."""
    chosen = sorted(rows, key=lambda row: (not row.why, not row.slow_s))[:MOST_WORKERS]
    return sorted(chosen, key=lambda row: row.worker)


def _of_rows(intervals: Sequence[Interval], rows: Sequence[WorkerRow]) -> list[Interval]:
    workers = {row.worker for row in rows}
    return [i for i in intervals if i.worker in workers and i.end_us > i.start_us]


def _steps(intervals: Sequence[Interval]) -> int:
    """How many steps are shown: at least one."""
    total = 0
    counts = Counter(i.step for i in intervals)
    for step in sorted(counts):
        total += counts[step]
        if total > MOST_BARS and step > 0:
            return step
    return max(counts) + 1


def _panel(
    stretch: Stretch, rows: Sequence[WorkerRow], intervals: Sequence[Interval], labels: dict[str, int]
) -> dict[str, Any]:
    origin_us = stretch.origin_us
    end_us = max((i.end_us for i in intervals), default=origin_us) - origin_us
    bars: dict[int, list[int]] = {row.worker: [] for row in rows}
    for i in intervals:
        kind = KINDS.index(i.kind) + (CANCELLED if gantt.is_cancelled(i) else 0)
        label = labels.setdefault(i.label, len(labels))
        bars[i.worker] += [i.start_us - origin_us, i.end_us - i.start_us, kind, i.step, label]
    return {
        "title": policy_name(stretch.policy.policy),
        "end": end_us,
        "steps": [[step, round(1e6 * at)] for step, at in stretch.starts_s.items() if 1e6 * at < end_us],
        "rows": [
            {
                "worker": row.worker,
                "why": row.why,
                "slow": [[round(1e6 * a), round(1e6 * min(b, end_us / 1e6))] for a, b in row.slow_s if 1e6 * a < end_us],
                "bars": bars[row.worker],
            }
            for row in rows
        ],
    }  # fmt: skip


def _legend(panels: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Labels and colours of what is drawn."""
    rows = [row for panel in panels for row in panel["rows"]]
    drawn = {kind for row in rows for kind in row["bars"][2::FIELDS]}
    keys = [(style.ACTIVITY_LABELS[kind], style.ACTIVITY_COLOURS[kind]) for n, kind in enumerate(KINDS) if n in drawn]
    if any(kind >= CANCELLED for kind in drawn):
        keys.append(("paler: work cancelled", style.ACTIVITY_COLOURS["help"] + "66"))
    if any(row["slow"] for row in rows):
        keys.append(("straggler", style.SLOW_COLOUR))
    return keys


def _left_out(result: RunResult, found: Sequence[Any], kept: Sequence[Any], steps: int) -> str:
    """What is only in timeline.json, in words; "": nothing."""
    all_steps = max(i.step for _, _, intervals in found for i in intervals) + 1
    parts = []
    if steps < all_steps:
        parts.append(f"the first {steps} of {all_steps} steps")
    workers, shown = (max(len({i.worker for i in of}) for _, _, of in each) for each in (found, kept))
    if shown < workers:
        parts.append(f"{shown} of {plural(workers, 'worker')}, stragglers first")
    if result.plan.run.repetitions > 1:
        parts.append("the first repetition")
    if result.plan.job.jobs > 1:
        parts.append("the first job")
    return ", ".join(parts)
