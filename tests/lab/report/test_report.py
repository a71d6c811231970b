"""Whole reports: the folder, the page, the table, and `sa-atp plot`."""

import io
import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from sa_atp import cli
from sa_atp.basics import needs
from sa_atp.lab import report
from sa_atp.lab.report import files, html, table
from sa_atp.lab.report.summary import summarise

from . import synthetic
from .cases import CASES, small

ALL = [
    "iteration_time.png", "iterations.csv", "loss.png", "manifest.json", "over_steps.png", "report.html", "run.json",
    "summary.json", "timeline.json", "timeline.png", "training.png", "who_did_what.png",
]  # fmt: skip


class _Checker(HTMLParser):
    """Collects a page's references, and checks that its elements are closed in order."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    assert all(
        reference.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,"))
        for reference in checker.references
    )
    assert not re.search(r"url\(|@import|https?://", page)
    return checker


def printed(name: str, width: int = 80) -> str:
    file = io.StringIO()
    table.print_table(CASES[name](), Console(width=width, file=file))
    return file.getvalue().replace("\u00a0", " ")


def test_a_report_has_all_its_files(tmp_path: Path) -> None:
    written = report.write_report(synthetic.result(steps=8), tmp_path / "out")
    assert sorted(path.name for path in written) == ALL
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ALL
    page = (tmp_path / "out" / "report.html").read_text()
    assert len(check(page).references) == 6


@pytest.mark.parametrize("name", ["nothing", "empty runs", "no losses"])
def test_a_report_of_almost_nothing_is_written(name: str, tmp_path: Path) -> None:
    written = report.write_report(CASES[name](), tmp_path)
    assert {"summary.json", "report.html", "run.json"} <= {path.name for path in written}
    page = (tmp_path / "report.html").read_text()
    check(page)
    assert "timeline.png is not drawn" in page


def test_without_matplotlib_everything_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    written = report.write_report(synthetic.result(steps=4), tmp_path)
    assert sorted(p.name for p in written) == [name for name in ALL if not name.endswith(".png")]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert needs.how_to_install("matplotlib") in said.err
    check((tmp_path / "report.html").read_text())
    assert cli.main(["plot", str(tmp_path)]) == cli.EXIT_MISSING_PART
    assert needs.how_to_install("matplotlib") in capsys.readouterr().err


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_pages_of_all_runs_are_well_formed(name: str) -> None:
    page = html.render(CASES[name]())
    check(page)
    assert "nan" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)


def test_the_page_says_what_was_run_and_how_to_repeat_it() -> None:
    page = html.render(synthetic.result(steps=5)).replace("\u00a0", " ")
    for part in (
        "sa-atp run topologies/demo.toml --set help.grade=steal",
        "5c1ad0f3e2b14977a1c0d6c1a2f08a7b7b0f9f11",
        "numpy 2.4.6",
        "Device speed is emulated",
        "Fluid bound: 158 ms",
        "compute_us_per_sample",
    ):
        assert part in page
    assert page.index("In numbers") < page.index("–: p99 needs 100 steps") < page.index("What was run")


@pytest.mark.parametrize(("share", "is_clear"), [(0.93, False), (0.5, True)])
def test_the_main_numbers_have_no_training_time_that_may_be_chance(share: float, is_clear: bool) -> None:
    result = synthetic.result()
    base, other = result.runs
    other.evaluations = [replace(each, time_s=share * each.time_s) for each in base.evaluations]
    shown = [text for _, text in html._headlines(result, summarise(result))]
    assert any(text.startswith("shorter iterations of SA-ATP") for text in shown)
    assert any("as fast to 90" in text for text in shown) == is_clear


def test_wrong_sums_are_the_first_thing_on_the_page() -> None:
    found = small()
    found.runs[1].sums_wrong = 1
    page = html.render(found)
    main = page[page.index("<main>") + len("<main>") :]
    assert main.lstrip().startswith('<section class="remark wrong"')
    assert "WRONG" in main
    assert "WRONG" not in html.render(small())


def test_a_plan_whose_name_is_no_text_has_a_page(tmp_path: Path) -> None:
    """Names of files are bytes; Python shows those that are not UTF-8 as surrogates, which no file takes."""
    result = CASES["small"]()
    result.plan_path = os.fsdecode(b"pl\xe4n.toml")
    page = files.write_text(tmp_path / "report.html", html.render(result))
    assert "pl?n.toml" in page.read_text(encoding="utf-8")


def test_markup_in_the_data_stays_text() -> None:
    found = small()
    found.manifest["command"] = ["sa-atp", "<script>alert(1)</script>"]
    found.plan_path = "<b>.toml"
    found.runs[0].policy = "<i>"
    page = html.render(found, (), {"<u>": "<u>"})
    check(page)
    assert not re.search(r"<(script|i|u|b\.toml)>", page)


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [80, 40])
def test_the_table_fits(name: str, width: int) -> None:
    lines = printed(name, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_runs_without_training_have_no_rows_for_it() -> None:
    """A plan with gradients of a model's sizes trains nothing."""
    assert "Training, held out" in printed("demo")
    said = printed("no evaluations")
    assert "Sums" in said
    assert not re.search("Training|accuracy|loss", said)
    assert "final accuracy" not in html.render(CASES["no evaluations"]())


def test_the_table_says_what_matters() -> None:
    text = printed("demo")
    for part in (
        r"against baseline +63 % shorter", r"longest",
        r"speed-up +2\.7×", r"share of time waiting +56 % +13 %", r"baseline",
        r"time to 90 % accuracy +12\.3 s +4\.58 s", r"wrong +0 +0", r"Fluid bound: 158 ms", r"Device speed is emulated",
        r"fragments retransmitted +3 +3", r"steps with help +0 of 40 +40 of 40",
    ):  # fmt: skip
        assert re.search(part, text), part


def test_more_policies_than_fit_beside_each_other_follow_below() -> None:
    wide, narrow = printed("three policies", 120), printed("three policies", 60)
    assert wide.count("Iteration time") == 1
    assert narrow.count("Iteration time") == 2
    assert "unheard-of" in narrow


# --- sa-atp plot ------------------------------------------------------------------------------------------------------


def test_plot_redraws_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write_report(synthetic.result(steps=6), tmp_path)
    kept = {name: (tmp_path / name).read_bytes() for name in ALL}
    for name in ALL:
        if name.endswith((".png", ".html")):
            (tmp_path / name).unlink()
    assert cli.main(["plot", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert sorted(Path(path).name for path in drawn) == [n for n in ALL if n.endswith((".png", ".html"))]
    assert {name: (tmp_path / name).read_bytes() for name in ALL} == kept
