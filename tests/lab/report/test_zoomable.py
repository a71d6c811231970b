"""The timeline that report.html draws in the browser: its data, and, in a real browser, zooming and moving."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import browser

from lab.report import synthetic
from lab.report.cases import CASES
from sa_atp.lab.report import html
from sa_atp.lab.report.drawing import zoomable
from sa_atp.lab.report.drawing.zoomable import CANCELLED, FIELDS, KINDS
from sa_atp.lab.runs.tasks import link_contention


def found(name: str) -> dict[str, Any]:
    timeline = zoomable.timeline(CASES[name]())
    assert timeline is not None
    return timeline


def bars(row: dict[str, Any]) -> list[list[int]]:
    return [row["bars"][n : n + FIELDS] for n in range(0, len(row["bars"]), FIELDS)]


@pytest.mark.parametrize("name", ["demo", "cancelled work", "gaps between steps", "pauses", "sixteen workers"])
def test_all_time_of_all_workers_is_there(name: str) -> None:
    result = CASES[name]()
    timeline = found(name)
    assert timeline["left_out"] == ""
    for panel, run in zip(timeline["panels"], result.runs, strict=True):
        origin = min(i.start_us for i in run.intervals)
        for row in panel["rows"]:
            at = 0
            for start, long, kind, _, _ in bars(row):
                assert (start, long > 0, kind % CANCELLED < len(KINDS)) == (at, True, True)
                at += long
            assert at == panel["end"]
            recorded = [i for i in run.intervals if i.worker == row["worker"] and i.end_us > i.start_us]
            drawn = {(start, long, step, timeline["labels"][label]) for start, long, _, step, label in bars(row)}
            assert {(i.start_us - origin, i.end_us - i.start_us, i.step, i.label) for i in recorded} <= drawn


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("demo", "4× slower"), ("slow link", "link"), ("links of a file", "link"), ("congested link", "link"),
        ("contended link", "link contended"), ("CPU quota", "CPU quota, "), ("CPU shared", "CPU shared, "),
    ],
)  # fmt: skip
def test_stragglers_are_marked_whatever_slows_them(name: str, why: str) -> None:
    for panel in found(name)["panels"]:
        marked = [row for row in panel["rows"] if row["why"]]
        assert marked
        assert all(why in row["why"] and row["slow"] for row in marked)
        assert not any(row["slow"] for row in panel["rows"] if not row["why"])


def test_a_contended_link_is_marked_while_it_is_contended() -> None:
    """The spells are those of the simulator's clock, of which a run's times are a part."""
    result = CASES["contended link"]()
    contention = link_contention(result.plan)
    assert contention is not None
    result.runs[0].origin_us = 30_000
    timeline = zoomable.timeline(result)
    assert timeline is not None
    end = timeline["panels"][0]["end"]
    found = [(start - 30_000, until - 30_000) for start, until, _ in itertools.islice(contention.spells(3), 1000)]
    expected = [[max(0, start), min(end, until)] for start, until in found if start < end and until > 0]
    assert len(expected) > 3
    assert timeline["panels"][0]["rows"][3]["slow"] == expected


def test_a_large_run_has_its_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoomable, "MOST_BARS", 400)
    monkeypatch.setattr(zoomable, "MOST_WORKERS", 2)
    timeline = found("demo")
    assert re.fullmatch(r"the first \d+ of \d+ steps, 2 of 4 workers, stragglers first", timeline["left_out"])
    assert all([row["worker"] for row in panel["rows"]] == [0, 3] for panel in timeline["panels"])  # 3 is the straggler
    assert 0 < sum(len(bars(row)) for panel in timeline["panels"] for row in panel["rows"]) <= 400


@pytest.mark.parametrize("name", ["nothing", "no intervals", "empty runs"])
def test_a_run_without_intervals_has_none(name: str) -> None:
    assert zoomable.timeline(CASES[name]()) is None
    assert "timeline-data" not in html.render(CASES[name]())


PLAY = """
<script>
const canvas = document.querySelector("#timeline canvas"), said = {}, tip = document.querySelector("#timeline .tip");
const note = (name) => { said[name] = [Number(canvas.dataset.from), Number(canvas.dataset.to)]; };
const place = canvas.getBoundingClientRect(), always = { pointerId: 1, bubbles: true, cancelable: true };
const point = (x, y) => ({ clientX: place.left + x, clientY: place.top + y, ...always });
const X = place.width / 2;
note("all");
canvas.dispatchEvent(new WheelEvent("wheel", { ...point(X, 60), deltaY: -300 }));
note("unfocused");
canvas.focus({ preventScroll: true });
canvas.dispatchEvent(new WheelEvent("wheel", { ...point(X, 60), deltaY: -300 }));
note("wheel");
canvas.dispatchEvent(new PointerEvent("pointerdown", point(X, 60)));
canvas.dispatchEvent(new PointerEvent("pointermove", point(X - 50, 60)));
canvas.dispatchEvent(new PointerEvent("pointerup", point(X - 50, 60)));
note("drag");
for (const [name, key] of [["left", "ArrowLeft"], ["plus", "+"]]) {
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  note(name);
}
document.querySelector("#timeline button[data-key='0']").click();
note("button");
canvas.dispatchEvent(new PointerEvent("pointermove", point(X, 50)));
said.tip = [tip.hidden, tip.textContent, tip.offsetLeft >= 0 && tip.offsetLeft + tip.offsetWidth <= place.width];
said.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.dataset.said = JSON.stringify(said);
</script>
"""


@browser.NEEDED
@pytest.mark.parametrize("width", [1400, 400])
def test_it_zooms_and_moves_in_a_browser(width: int, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html.render(synthetic.result(steps=5)).replace("</body>", f"{PLAY}</body>"), encoding="utf-8")
    match = re.search(r"data-said=\"([^\"]*)\"", browser.dom(page, tmp_path / "browser", width=width))
    assert match is not None  # the script has no error
    said = json.loads(match[1].replace("&quot;", '"'))
    spans = {name: said[name][1] - said[name][0] for name in said if name not in ("tip", "wide")}
    assert said["all"] == said["unfocused"] == said["button"]  # until then a wheel scrolls the page
    assert spans["wheel"] < 0.5 * spans["all"]
    assert said["all"][0] < said["wheel"][0]
    assert said["wheel"][1] < said["all"][1]  # about the pointer
    assert said["drag"][0] > said["wheel"][0]
    assert abs(spans["drag"] - spans["wheel"]) <= 2
    assert said["left"][0] < said["drag"][0]
    assert abs(spans["plus"] - 0.5 * spans["left"]) <= 2
    hidden, text, inside = said["tip"]
    assert (hidden, inside, said["wide"]) == (False, True, True)
    assert re.match(r"ATP, worker 0, step \d+: \w+.* for [\d.]+ m?s, from", text)
