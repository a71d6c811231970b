"""Figures of every kind of run: nothing is cut off, and no texts overlap."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.plans.plan import Plan, RunPlan, TopologyPlan
from sa_atp.lab.report.drawing import figures, style
from sa_atp.lab.report.drawing.figures import FIGURES, FigureKind
from sa_atp.lab.report.drawing.style import NARROW, WIDE, FigureLayout, NothingToDrawError
from sa_atp.lab.runs.records import PolicyRun, RunResult

from . import synthetic
from .cases import CASES, iteration

pytest.importorskip("matplotlib")

NOT_DRAWN = {
    ("no intervals", "timeline.png"), ("small", "timeline.png"), ("no losses", "timeline.png"),
    ("repetitions are alike", "timeline.png"),
    ("no losses", "training.png"),
    *((name, kind.name) for name in ("nothing", "empty runs") for kind in FIGURES),
}  # fmt: skip


def drawn(kind: FigureKind, result: RunResult, layout: FigureLayout = WIDE) -> Any:
    """A figure on a canvas, laid out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style.applied(layout):
        made = kind.draw(result, layout)
        FigureCanvasAgg(made)
        made.draw_without_rendering()
    return made


def texts(made: Any) -> list[tuple[str, Any]]:
    """(text, its box in pixels) for all texts in a figure."""
    from matplotlib.text import Text

    hidden = set()
    for axes in made.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            hidden |= {id(t.label1) for t in ticks if not (low <= t.get_loc() <= high and t.label1.get_visible())}
    found = [t for t in made.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden]
    renderer = made.canvas.get_renderer()
    return [(t.get_text(), Text.get_window_extent(t, renderer)) for t in found]


NARROW_CASES = (
    "demo",
    "one step",
    "extreme straggler",
    "ten policies, eight workers",
    "sixteen workers",
    "repetitions",
)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(pytest.param(name, WIDE, id=f"{name}-wide") for name in CASES if name != "many steps"),
        *(pytest.param(name, NARROW, id=f"{name}-narrow") for name in NARROW_CASES),
    ],
)
def test_nothing_is_cut_off_and_nothing_overlaps(name: str, layout: FigureLayout) -> None:
    result = CASES[name]()
    for kind in FIGURES:
        if (name, kind.name) in NOT_DRAWN:
            with pytest.raises(NothingToDrawError):
                drawn(kind, result, layout)
            continue
        made = drawn(kind, result, layout)
        written = texts(made)
        for n, (text, box) in enumerate(written):
            inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= made.bbox.width and box.y1 <= made.bbox.height
            assert inside, f"{kind.name}: {text!r} is cut off"
            for other, there in written[:n]:
                wide = min(box.x1, there.x1) - max(box.x0, there.x0)
                high = min(box.y1, there.y1) - max(box.y0, there.y0)
                assert wide <= 1 or high <= 2, f"{kind.name}: {text!r} lies on {other!r}"


def test_many_steps_stay_a_small_picture(tmp_path: Path) -> None:
    written, left_out = figures.draw_all(CASES["many steps"](), tmp_path)
    assert len(written) == 4
    assert not left_out
    assert all(each.path.stat().st_size < 400_000 for each in written)
    assert all(len(uri) < 500_000 for each in written for uri in (each.wide, each.narrow))


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    result = synthetic.result(steps=6)
    kind = FIGURES[0]
    with style.applied():
        first = style.save(kind.draw(result, WIDE), tmp_path / "a.png").read_bytes()
        second = style.save(kind.draw(result, WIDE), tmp_path / "b.png").read_bytes()
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_a_figure_that_can_no_longer_be_drawn_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "timeline.png").write_bytes(b"old")
    written, left_out = figures.draw_all(CASES["no intervals"](), tmp_path)
    assert sorted(each.path.name for each in written) == ["iteration_time.png", "training.png", "who_did_what.png"]
    assert left_out == {"timeline.png": "no intervals were recorded"}
    assert not (tmp_path / "timeline.png").exists()


def title(result: RunResult, name: str) -> str:
    kind = next(kind for kind in FIGURES if kind.name == name)
    with style.applied():
        return str(kind.draw(result, WIDE).texts[0].get_text())


def test_the_timelines_title_counts_steps() -> None:
    assert title(synthetic.result(steps=12), "timeline.png") == "While ATP takes two steps, SA-ATP takes five"
    assert title(CASES["extreme straggler"](), "timeline.png").startswith("While ATP is in its first step")
    assert title(CASES["one step"](), "timeline.png").startswith("One step takes 53")


def test_figures_show_the_fluid_bound_and_the_reduction() -> None:
    written = [text.replace("\u00a0", " ") for text, _ in texts(drawn(FIGURES[0], synthetic.result()))]
    assert "fluid bound 158 ms (devices alone: all work / all speed)" in written
    assert any(text.startswith("63 % shorter") for text in written)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("demo", "worker 3 (4× slower)"),
        ("congested link", "worker 3 (link 4× slower)"),
        ("contended link", "worker 3 (link contended)"),
        ("slow link", "worker 3 (link 10× slower)"),
        ("links of a file", "worker 1 (link 2× slower)"),
        ("links of a file", "worker 3 (link 10× slower)"),
        ("CPU quota", "worker 3 (CPU quota, 4× slower)"),
        ("CPU shared", "worker 3 (CPU shared, 4× slower)"),
        ("pauses", "worker 3 (pauses at times)"),
    ],
)
def test_stragglers_of_every_cause_are_marked(name: str, label: str) -> None:
    """The label has the reason, and the legend the mark."""
    shown = ["who_did_what.png"] if name == "pauses" else ["who_did_what.png", "timeline.png"]
    for kind in (kind for kind in FIGURES if kind.name in shown):
        written = [text for text, _ in texts(drawn(kind, CASES[name]()))]
        assert written.count(label) == 2
        assert "straggler" in written


def test_a_worker_without_a_counted_step_is_named() -> None:
    written = [text for text, _ in texts(drawn(FIGURES[1], CASES["late worker"]()))]
    assert any(text.startswith("SA-ATP") and text.endswith("no counted step of worker 3") for text in written)


def test_the_timeline_says_where_a_run_is_over() -> None:
    found = synthetic.result(steps=5)
    assert [text for text, _ in texts(drawn(FIGURES[2], found))].count("the run is over") == 1


def test_embedded_figures_have_selectable_text(tmp_path: Path) -> None:
    written, _ = figures.draw_all(synthetic.result(steps=5), tmp_path)
    for each in written:
        for uri in (each.wide, each.narrow):
            svg = base64.b64decode(uri.removeprefix("data:image/svg+xml;base64,")).decode()
            assert "SA-ATP" in svg
            assert "DejaVu Sans" in svg
            assert "sans-serif" in svg


def test_link_settings_make_no_stragglers_on_a_backend_without_links() -> None:
    found = CASES["slow link"]()
    found.backend = "local"
    assert "straggler" not in [text for text, _ in texts(drawn(FIGURES[1], found))]


def test_every_activity_has_its_own_colour_and_so_has_every_policy() -> None:
    assert len(set(style.ACTIVITY_COLOURS.values())) == 6
    worn = [*policies.colours().values(), style.BOUND_COLOUR, *style.ACTIVITY_COLOURS.values()]
    assert len(set(worn)) == len(worn)
    assert style.policy_colour("unheard-of") == style.policy_colour("unheard-of")


def test_the_users_settings_do_not_matter() -> None:
    import matplotlib

    result = synthetic.result(steps=4)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}), style.applied():
        made = FIGURES[0].draw(result, WIDE)
        assert matplotlib.rcParams["font.size"] == 10
        assert made.axes[0].get_facecolor() == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("name", "width_in"), [("demo", 14.0), ("ten policies", 3.4), ("slow link", 3.4), ("sixteen workers", 6.0)]
)
def test_figures_of_another_size(name: str, width_in: float) -> None:
    """They are as wide as was said, and their titles and legends stay within them."""
    for kind in FIGURES:
        made = drawn(kind, CASES[name](), style.of_size(width_in))
        assert made.get_size_inches()[0] == width_in
        for each in (*made.texts, *(text for legend in made.legends for text in legend.get_texts())):
            box = each.get_window_extent()
            assert -1 <= box.x0 <= box.x1 <= made.bbox.width + 1, (kind.name, each.get_text())


def test_a_size_that_was_asked_for_is_that_of_all_figures(tmp_path: Path) -> None:
    written, left_out = figures.write(synthetic.result(steps=6), tmp_path, layout=style.of_size(7, 5), suffix="svg")
    assert left_out == {}
    assert sorted(path.name for path in written) == sorted(f"{Path(kind.name).stem}.svg" for kind in FIGURES)
    for path in written:
        assert re.search(r'<svg [^>]*width="504pt" height="360pt"', path.read_text(encoding="utf-8"))


def test_a_figure_that_is_too_low_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^iteration_time.png: a figure 2 inches high has no room .* at least 3\.\d$"):
        figures.write(synthetic.result(steps=6), tmp_path, layout=style.of_size(7, 2))


@pytest.mark.parametrize("suffix", style.FORMATS)
def test_the_same_figure_gives_the_same_file(suffix: str, tmp_path: Path) -> None:
    first, again = (figures.write(synthetic.result(steps=6), tmp_path / name, suffix=suffix)[0] for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert all(path.read_bytes().startswith(begins) for path in first)


def test_where_shards_differ_their_samples_are_shown() -> None:
    (kind,) = (each for each in FIGURES if each.name == "who_did_what.png")
    plan = Plan(run=RunPlan(policies=("atp", "boa"), steps=2, warm_up=0), topology=TopologyPlan(workers=2))
    runs = [
        PolicyRun(name, 0, [iteration(step, w, 1.0, samples=samples[w]) for step in range(2) for w in range(2)])
        for name, samples in (("atp", (64, 64)), ("boa", (96, 32)))
    ]
    result = RunResult(plan, "plan.toml", "sim", "embedded", {"cpus": 2}, runs)
    said = [text for text, _ in texts(drawn(kind, result)) if re.match(r"[0-9.]+ own", text)]
    assert said == ["2.0 own", "2.0 own", "2.0 own (96 samples a shard)", "2.0 own (32 samples a shard)"]
