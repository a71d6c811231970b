"""Figures of every kind of run: what they draw is what the records say, and everything fits."""

import base64
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies, report
from sa_atp.lab.plans.plan import Plan, RunPlan, StragglerPlan, TopologyPlan
from sa_atp.lab.report import stats
from sa_atp.lab.report.drawing import figures, gantt, style
from sa_atp.lab.report.drawing.figures import FIGURES
from sa_atp.lab.report.drawing.style import PAPER, SCREEN, NothingToDrawError, Style
from sa_atp.lab.runs.records import Interval, PolicyRun, RunResult
from sa_atp.lab.runs.tasks import link_contention

from . import synthetic
from .cases import CASES, gaps, iteration

pytest.importorskip("matplotlib")

WITHOUT = {
    "no intervals": {"timeline"}, "small": {"timeline"}, "repetitions are alike": {"timeline"},
    "no losses": {"timeline", "training", "loss"}, "no evaluations": {"training"},
    **{name: {kind.name for kind in FIGURES} for name in ("nothing", "empty runs")},
}  # fmt: skip
UNITS_S = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
SMALL = Style(width_in=2.0, height_in=1.5, font_size=12.0, line_width=1.0, dpi=50)


def axes_of(name: str, result: RunResult, look: Style = SCREEN) -> Any:
    return figures.draw(result, figures.find(name), look).axes[0]


def unit_s(label: str) -> float:
    """The unit of an axis, as its label says."""
    return UNITS_S[label.rpartition("(")[2].rstrip(")")]


def labels(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def bars(axes: Any, key: str) -> list[tuple[float, float]]:
    """(start, width) in seconds of each bar with a label of the legend."""
    found = [c for c in axes.containers if c.get_label() == key]
    unit = unit_s(axes.get_xlabel())
    return [(unit * bar.get_x(), unit * bar.get_width()) for each in found for bar in each]


def spans(axes: Any, colour: str) -> list[tuple[float, float, float]]:
    """(row, start, end) in seconds of each part of a broken bar of a colour, to the microsecond."""
    from matplotlib.colors import to_rgba

    found, unit = [], unit_s(axes.get_xlabel())
    for each in axes.collections:
        if len(each.get_facecolor()) and tuple(each.get_facecolor()[0]) == to_rgba(colour):
            boxes = [path.get_extents() for path in each.get_paths()]
            found += [(round((b.y0 + b.y1) / 2, 3), round(unit * b.x0, 6), round(unit * b.x1, 6)) for b in boxes]
    return sorted(found)


def shaded(axes: Any) -> list[tuple[float, float]]:
    return sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches)


@pytest.mark.parametrize("name", [name for name in CASES if name != "many steps"])
def test_every_run_has_its_figures(name: str) -> None:
    result = CASES[name]()
    for kind in FIGURES:
        if kind.name in WITHOUT.get(name, set()):
            with pytest.raises(NothingToDrawError):
                figures.draw(result, kind)
        else:
            assert figures.draw(result, kind).get_suptitle() == kind.title(result)


@pytest.mark.parametrize("name", ["demo", "ten policies, eight workers", "sixteen workers", "repetitions", "pauses"])
def test_figures_for_a_paper_fit_into_a_column(name: str, tmp_path: Path) -> None:
    written, left_out = figures.write(CASES[name](), tmp_path, FIGURES, PAPER, "pdf")
    assert len(written) == len(FIGURES)
    assert left_out == {}
    for each in written:
        data = each.path.read_bytes()
        assert b"/FontFile2" in data, "fonts are embedded"
        assert b"/Type3" not in data
        assert b"/MediaBox [ 0 0 237.6 172.8 ]" in data  # 3.3 x 2.4 inches
    for kind in FIGURES:
        made = figures.draw(CASES[name](), kind, PAPER)
        made.draw_without_rendering()
        assert made.get_suptitle() == ""
        for axes in made.axes:
            box: Any = axes.get_tightbbox()
            assert -1 <= box.x0 <= box.x1 <= made.bbox.width + 1, f"{kind.name} is cut off"
            assert -1 <= box.y0 <= box.y1 <= made.bbox.height + 1, f"{kind.name} is cut off"


@pytest.mark.parametrize("workers", [4, 8, 12, 16])
def test_numbers_of_steps_are_not_on_bars(workers: int) -> None:
    made = figures.draw(synthetic.result(workers=workers, steps=8), figures.find("timeline"), PAPER)
    made.draw_without_rendering()
    (axes,) = made.axes
    last_bar = axes.transData.transform((0, workers + 0.3))[1]  # of the first policy
    tops = [text.get_window_extent().y1 for text in axes.texts]
    assert min(tops) < last_bar
    assert not any(last_bar < top < axes.bbox.y0 + 0.9 * axes.bbox.height for top in tops)


def test_a_figure_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a figure of 2 x 1.5 inches has no room for its content"):
        figures.write(CASES["ten policies"](), tmp_path, [figures.find("who_did_what")], SMALL, "png")


@pytest.mark.parametrize("suffix", style.FORMATS)
def test_the_same_figure_gives_the_same_file_whatever_the_user_has_set(suffix: str, tmp_path: Path) -> None:
    import matplotlib

    kinds, result = [figures.find("iteration-time")], synthetic.result(steps=6)
    first, _ = figures.write(result, tmp_path / "a", kinds, SCREEN, suffix)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "pdf.fonttype": 3}):
        again, _ = figures.write(result, tmp_path / "b", kinds, SCREEN, suffix)
    assert first[0].path.read_bytes() == again[0].path.read_bytes()
    assert first[0].path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])


def test_many_steps_stay_a_small_picture(tmp_path: Path) -> None:
    written, left_out = figures.write(CASES["many steps"](), tmp_path, FIGURES)
    assert (len(written), left_out) == (len(FIGURES), {})
    assert all(each.path.stat().st_size < 400_000 and len(each.picture) < 500_000 for each in written)


def test_a_figure_that_can_no_longer_be_drawn_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "timeline.png").write_bytes(b"old")
    report.draw(CASES["no intervals"](), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {f"{kind.name}.png" for kind in FIGURES} - {"timeline.png"}
    page = (tmp_path / "report.html").read_text()
    assert "timeline.png is not drawn: no intervals were recorded" in page
    for svg in re.findall('data:image/svg.xml;base64,([^"]+)', page):  # text stays text
        assert re.search("SA-ATP.*sans-serif|sans-serif.*SA-ATP", base64.b64decode(svg).decode(), re.DOTALL)


# --- what each shows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "ten policies", "repetitions", "updates of unequal work"])
def test_iteration_time_shows_means_steps_and_bounds(name: str) -> None:
    result = CASES[name]()
    axes, found = axes_of("iteration_time", result), stats.policies(result)
    unit = unit_s(axes.get_xlabel())
    assert [unit * bar.get_width() for bar in axes.patches] == pytest.approx([each.mean_s for each in found])
    dots = [each.get_offsets()[:, 0] for each in axes.collections if len(each.get_offsets()) > 1]
    for shown, each in zip(dots, found, strict=True):
        assert sorted(unit * shown) == pytest.approx(sorted(each.pooled_s))
    drawn = {
        round(unit * x, 9)
        for each in axes.collections
        if hasattr(each, "get_segments")
        for s in each.get_segments()
        for x in s[:, 0]
    }
    assert {round(each.fluid_bound_s or 0.0, 9) for each in found} <= drawn


@pytest.mark.parametrize("name", ["demo", "random straggler", "repetitions", "late worker"])
def test_over_steps_shows_the_time_of_each_step(name: str) -> None:
    result = CASES[name]()
    axes = axes_of("over_steps", result)
    for line, each in zip(axes.lines, stats.policies(result), strict=True):
        took = np.mean([np.diff([0.0, *stats.step_ends_s(run).values()]) for run in each.runs], axis=0)
        assert list(line.get_xdata()) == list(stats.step_ends_s(each.runs[0]))
        assert unit_s(axes.get_ylabel()) * line.get_ydata() == pytest.approx(took)


def test_over_steps_shades_the_steps_in_which_a_worker_was_slow() -> None:
    """One that is slow from step 20 to 39 of 60, one that pauses, and none."""
    plan = Plan(run=RunPlan(steps=60, policies=("atp",)), topology=TopologyPlan(workers=2))
    rows = [
        iteration(step, worker, 1.0, slowdown=4.0 if worker == 1 and 20 <= step < 40 else 1.0)
        for step in range(60)
        for worker in range(2)
    ]
    result = RunResult(plan, "plan.toml", "sim", "embedded", {}, [PolicyRun("atp", 0, rows)])
    assert shaded(axes_of("over_steps", result)) == [(19.5, 39.5)]
    result.runs[0].intervals = [Interval(0, 50, "pause", 0, 5)]
    assert shaded(axes_of("over_steps", result)) == [(19.5, 39.5), (49.5, 50.5)]
    assert shaded(axes_of("over_steps", CASES["no straggler"]())) == []
    assert shaded(axes_of("over_steps", CASES["demo"]())) == [(-0.5, 39.5)]
    plan = replace(plan, straggler=StragglerPlan(workers=(1,), by="congestion", from_step=20, until_step=40))
    congested = RunResult(plan, "plan.toml", "sim", "embedded", {}, result.runs)
    congested.runs[0].iterations = [replace(each, slowdown=1.0) for each in rows]
    axes = axes_of("over_steps", congested)
    assert shaded(axes) == [(19.5, 39.5), (49.5, 50.5)]
    assert "straggler: workers 0 and 1" in axes.get_legend_handles_labels()[1]


def test_legends_are_read_by_rows() -> None:
    made = figures.draw(CASES["ten policies"](), figures.find("over_steps"), PAPER)
    made.draw_without_rendering()
    axes: Any = made.axes[0]
    boxes = [(text.get_window_extent(), text.get_text()) for text in axes.get_legend().get_texts()]
    read = [text for _, text in sorted(boxes, key=lambda each: (round(-each[0].y0), each[0].x0))]
    assert read == axes.get_legend_handles_labels()[1]


def test_who_did_what_adds_up_to_each_workers_step() -> None:
    result = synthetic.result(steps=12)
    axes = axes_of("who_did_what", result)
    found = [each.seconds for policy in stats.policies(result) for each in policy.workers()]
    for kind in ("compute", "help", "send", "wait"):
        drawn = [width for _, width in bars(axes, style.ACTIVITY_LABELS[kind])]
        assert drawn == pytest.approx([seconds[kind] for seconds in found])
    ends = [start + width for start, width in bars(axes, style.ACTIVITY_LABELS["wait"])]
    assert ends == pytest.approx([sum(seconds.values()) for seconds in found])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("demo", "worker 3 (4× slower)"),
        ("congested link", "worker 3 (link 4× slower)"),
        ("contended link", "worker 3 (link contended)"),
        ("slow link", "worker 3 (link 10× slower)"),
        ("links of a file", "worker 1 (link 2× slower)"),
        ("CPU quota", "worker 3 (CPU quota, 4× slower)"),
        ("CPU shared", "worker 3 (CPU shared, 4× slower)"),
        ("pauses", "worker 3 (pauses in 15 % of steps)"),
    ],
)
def test_stragglers_of_every_cause_are_marked(name: str, label: str) -> None:
    for figure in ("who_did_what", "timeline"):
        axes = axes_of(figure, CASES[name]())
        assert [text.replace("\u00a0", " ") for text in labels(axes)].count(label) == 2, figure
        assert "straggler" in [text.get_text() for text in axes.get_legend().get_texts()], figure


def test_a_worker_that_is_slow_at_times_is_not_called_slow() -> None:
    plan = Plan(run=RunPlan(steps=4, warm_up=0, policies=("atp",)), topology=TopologyPlan(workers=2))
    slow = {(step, 1): 4.0 for step in (1, 2, 3)}
    rows = [iteration(s, w, 1.0, slowdown=slow.get((s, w), 1.0)) for s in range(4) for w in range(2)]
    result = RunResult(plan, "plan.toml", "sim", "embedded", {}, [PolicyRun("atp", 0, rows)])
    assert labels(axes_of("who_did_what", result)) == ["ATP", "worker 0", "worker 1 (4× slower in 75\u00a0% of steps)"]


def test_a_worker_without_a_counted_step_is_named() -> None:
    assert "worker 3 (no counted step)" in labels(axes_of("who_did_what", CASES["late worker"]()))


def test_the_timeline_has_all_intervals_of_its_window() -> None:
    result = synthetic.result(steps=12)
    first, end_s = gantt.window(result)
    axes = axes_of("timeline", result)
    for heading, run in zip((0, 5), result.runs, strict=True):
        origin = gantt.step_begins_s(run)[first]
        for kind in ("compute", "help", "wait"):
            expected = [
                (heading + 1 + i.worker, max(0.0, i.start_us / 1e6 - origin), min(i.end_us / 1e6 - origin, end_s))
                for i in run.intervals
                if i.kind == kind and i.start_us / 1e6 < origin + end_s and i.end_us / 1e6 > origin
            ]
            drawn = [s for s in spans(axes, style.ACTIVITY_COLOURS[kind]) if heading < s[0] <= heading + 4]
            assert np.array(drawn) == pytest.approx(np.array(sorted(expected)), abs=2e-6), kind
    assert {row for row, _, _ in spans(axes, style.SLOW_COLOUR)} == {4, 9}


def test_the_timelines_title_counts_steps() -> None:
    def said(result: RunResult) -> str:
        return gantt.timeline_title(result).replace("\u00a0", " ")

    assert re.fullmatch(r"Steps in 1.0\d s: ATP 2, SA-ATP 5", said(synthetic.result(steps=12)))
    assert said(synthetic.result(steps=6)).endswith("ATP 2, SA-ATP 3 (no more were run)")
    assert said(CASES["extreme straggler"]()).endswith("ATP 0, SA-ATP 12")


def test_a_contended_link_is_marked_while_it_is_contended() -> None:
    """The spells are those of the simulator's clock, of which a run's times are a part."""
    result = CASES["contended link"]()
    contention = link_contention(result.plan)
    assert contention is not None
    run = result.runs[0]
    run.origin_us = 30_000
    end = max(i.end_us for i in run.intervals if i.worker == 3)
    wanted = [(a - 30_000, b - 30_000) for a, b, _ in itertools.islice(contention.spells(3), 1000)]
    expected = sum(min(end, until) - max(0, start) for start, until in wanted if start < end and until > 0)
    found = gantt.slow_spans(result, run)
    assert {worker for worker, parts in found.items() if parts} == {3}
    assert sum(length for _, length in found[3]) == pytest.approx(expected / 1e6)


def test_the_timeline_shows_gaps_between_steps() -> None:
    rows = {row for row, _, _ in spans(axes_of("timeline", gaps()), style.ACTIVITY_COLOURS["between"])}
    assert len(rows) > 1


@pytest.mark.parametrize("name", ["demo", "repetitions", "three policies"])
def test_curves_of_training_end_where_runs_end(name: str) -> None:
    result = CASES[name]()
    for figure, value in (("training", "accuracy"), ("loss", "loss")):
        axes = axes_of(figure, result)
        unit, scale = unit_s(axes.get_xlabel()), 100 if "(%)" in axes.get_ylabel() else 1
        lines = [line for line in axes.lines if len(line.get_xdata()) > 2]
        ordered = [run for each in stats.policies(result) for run in each.runs]
        for line, run in zip(
            [each for each in lines if each.get_marker() == "o" and each.get_markevery()], ordered, strict=True
        ):
            assert unit * line.get_xdata() == pytest.approx([each.time_s for each in run.evaluations])
            assert line.get_ydata() == pytest.approx([scale * getattr(each, value) for each in run.evaluations])
            assert unit * axes.get_xlim()[1] >= run.evaluations[-1].time_s


def test_every_activity_has_its_own_colour_and_so_has_every_policy() -> None:
    assert len(set(style.ACTIVITY_COLOURS.values())) == 6
    worn = [*policies.colours().values(), style.BOUND_COLOUR, *style.ACTIVITY_COLOURS.values()]
    assert len(set(worn)) == len(worn)
    assert style.policy_colour("unheard-of") == style.policy_colour("unheard-of")
