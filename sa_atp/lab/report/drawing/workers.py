"""who_did_what.png: where each worker's time goes in an average step."""

from typing import TYPE_CHECKING

import numpy as np

from sa_atp.lab.report import stats
from sa_atp.lab.report.drawing import stragglers, style
from sa_atp.lab.report.stats import WorkerShare
from sa_atp.lab.report.text import digits, policy_name
from sa_atp.lab.runs.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_IN = 0.27
ROOM_FOR_TEXT = 0.06  # share of the axis that a bar with a number in it has


def has_steps(result: RunResult) -> bool:
    """Whether any worker has a counted step."""
    return any(any(each.counted) for each in stats.policies(result))


def who_did_what(result: RunResult, axes: "Axes") -> float:
    """Draws the mean time of each activity in a step, a bar for each worker below the name of its policy; at the right, how
    many micro-batches it contributes.
    """
    labels: list[str] = []
    bold: set[int] = set()
    shares: dict[int, WorkerShare] = {}  # by row
    slow: set[int] = set()
    small = style.is_small(axes)
    for each in stats.policies(result):
        found = {worker.worker: worker for worker in each.workers()}
        if not found:
            continue
        why = stragglers.notes(result, list(found.values()))
        bold.add(len(labels))
        labels.append(policy_name(each.policy))
        for worker in sorted(found.keys() | {i.worker for run in each.runs for i in run.iterations}):
            if worker in found:
                shares[len(labels)] = found[worker]
            if worker in why:
                slow.add(len(labels))
            note = why.get(worker, "" if worker in found else "no counted step")
            labels.append(f"worker {worker}" + (f" ({note})" if note and not small else ""))
    rows = list(shares)
    ends = np.zeros(len(rows))
    longest_s = max(sum(worker.seconds.values()) for worker in shares.values())
    unit_s = style.time_axis(axes, "x", longest_s, "mean time per step")
    for kind in stats.ACTIVITIES:
        times = np.array([worker.seconds[kind] for worker in shares.values()]) / unit_s
        if not times.any():
            continue
        bars = axes.barh(
            rows,
            times,
            left=ends,
            height=0.62,
            color=style.ACTIVITY_COLOURS[kind],
            label=style.ACTIVITY_LABELS[kind],
        )
        if not small:
            texts = [_short(time) if time * unit_s > ROOM_FOR_TEXT * longest_s else "" for time in times]
            ink = "white" if kind in ("compute", "send") else style.INK
            axes.bar_label(bars, texts, label_type="center", color=ink, size="small")
        ends += times
    for row in slow:
        axes.axhspan(row - 0.5, row + 0.5, color=style.SLOW_COLOUR, lw=0, zorder=0, label="straggler")
    style.label_rows(axes, labels, bold)
    if not small:
        right = axes.secondary_yaxis("right")
        differ = len({round(worker.samples) for worker in shares.values()}) > 1
        right.set_yticks(rows, [_micro_batches(worker, differ) for worker in shares.values()], size="small")
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)
        right.set_ylabel("micro-batches per step", size="small")
    return ROW_IN * len(labels)


def _micro_batches(worker: WorkerShare, differ: bool) -> str:
    """A worker's micro-batches per step, and the samples of its shard if shards differ."""
    text = f"{worker.own:.1f} own" + (f" ({worker.samples:.0f} samples a shard)" if differ else "")
    text += f" + {worker.helped:.1f} helped" if worker.helped else ""
    return text + (f", {worker.unused:.1f} unused" if worker.unused else "")


def _short(value: float) -> str:
    """A label within a bar: tenths of small numbers alone."""
    return f"{value:.0f}" if value >= 9.95 else digits(value, 2)
