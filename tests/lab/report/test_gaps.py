"""Gaps between recorded intervals: every moment of a run has a named state."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sa_atp.lab.report.drawing.gaps import AFTER, BEFORE, BETWEEN, without_gaps
from sa_atp.lab.report.trace import trace
from sa_atp.lab.runs.records import Interval, PolicyRun

from .cases import CASES, gaps

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 50), st.integers(0, 9)), max_size=12)


def test_gaps_are_named() -> None:
    intervals = [
        Interval(0, 0, "compute", 0, 10),
        Interval(0, 0, "wait", 12, 20),
        Interval(0, 1, "compute", 25, 30),
        Interval(1, 0, "compute", 3, 20),
        Interval(1, 1, "compute", 20, 27),
    ]
    found = without_gaps(PolicyRun("atp", 0, intervals=list(intervals)))
    assert [i for i in found if i not in intervals] == [
        Interval(0, 0, "wait", 10, 12),
        Interval(0, 0, "between", 20, 25, BETWEEN),
        Interval(1, 0, "between", 0, 3, BEFORE),
        Interval(1, 1, "between", 27, 30, AFTER),
    ]


@given(SPANS)
def test_all_moments_are_covered_and_intervals_are_unchanged(spans: list[tuple[int, int, int, int]]) -> None:
    run = PolicyRun("atp", 0, intervals=[Interval(w, step, "compute", at, at + us) for w, step, at, us in spans])
    found = without_gaps(run)
    added = list(found)
    for each in run.intervals:
        added.remove(each)
    for worker in {i.worker for i in run.intervals}:
        moments = [at for i in found if i.worker == worker for at in range(i.start_us, i.end_us)]
        first, last = min(i.start_us for i in run.intervals), max(i.end_us for i in run.intervals)
        assert set(moments) == set(range(first, last))
    for each in added:
        assert each.end_us > each.start_us
        assert not any(
            i.worker == each.worker and i.start_us < each.end_us and each.start_us < i.end_us for i in run.intervals
        )


@pytest.mark.parametrize("name", ["demo", "pauses", "cancelled work"])
def test_runs_without_gaps_have_none(name: str) -> None:
    for run in CASES[name]().runs:
        assert sorted(map(repr, without_gaps(run))) == sorted(map(repr, run.intervals))


def test_gaps_are_in_timeline_json() -> None:
    events = [e for e in trace(gaps())["traceEvents"] if e.get("cat") == "between"]
    assert {e["name"] for e in events} == {"between steps"}
    assert {e["args"]["what"] for e in events} == {BEFORE, BETWEEN, AFTER}
