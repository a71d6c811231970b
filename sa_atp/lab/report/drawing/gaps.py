"""Fills the gaps between recorded intervals, so that a worker has a named state at every moment of a run.

Intervals cover a step (`steps.step_record.account`), but a worker is not always in a step: after each, the testbed copies
the sum and writes records; and workers begin their first and end their last step at different times.
"""

from sa_atp.lab.report.stats import grouped
from sa_atp.lab.runs.records import Interval, PolicyRun

BETWEEN = "the testbed copies the sum and writes records"
BEFORE, AFTER = "before its first step", "after its last step"


def without_gaps(run: PolicyRun) -> list[Interval]:
    """The intervals of a run with all gaps filled, for each worker from the run's first to its last moment, in order of
    worker and time. Gaps outside a worker's steps have the kind "between"; a gap within a step is waiting, as in the
    step's `wait_s`.
    """
    if not run.intervals:
        return []
    origin_us, end_us = min(i.start_us for i in run.intervals), max(i.end_us for i in run.intervals)
    found = []
    for worker, intervals in sorted(grouped((each.worker, each) for each in run.intervals).items()):
        intervals.sort(key=lambda i: (i.start_us, i.end_us))
        first, last = intervals[0], max(intervals, key=lambda i: i.end_us)
        found += _gap(Interval(worker, first.step, "between", origin_us, first.start_us, BEFORE))
        found.append(first)
        before = first
        for after in intervals[1:]:
            if before.step == after.step:
                found += _gap(Interval(worker, after.step, "wait", before.end_us, after.start_us))
            else:
                found += _gap(Interval(worker, before.step, "between", before.end_us, after.start_us, BETWEEN))
            found.append(after)
            before = max(before, after, key=lambda i: i.end_us)
        found += _gap(Interval(worker, last.step, "between", last.end_us, end_us, AFTER))
    return found


def _gap(gap: Interval) -> list[Interval]:
    return [gap] if gap.end_us > gap.start_us else []
