"""Runs side by side: what differs, which is faster and whether that is clear, the page, and folders that are no runs."""

import json
import re
from pathlib import Path

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.lab import report
from sa_atp.lab.experiments import compare, compare_output
from sa_atp.lab.plans.plan import StragglerPlan
from sa_atp.lab.report.drawing.figures import FIGURES

from ..report import synthetic
from ..report.cases import CASES, timed

FASTER = StragglerPlan(workers=(3,), slowdown=2.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs: a worker 4 times slower, 2 times slower, and a run of three policies on another machine."""
    place = tmp_path_factory.mktemp("runs")
    other = synthetic.result(policies=("atp", "sa-atp", "ps"), evaluate=False)
    other.manifest["cpus"] = 64
    other.manifest["versions"] = {"numpy": "0.1"}
    results = {
        "slow-4": synthetic.result(repetitions=3),
        "slow-2": synthetic.result(repetitions=3, straggler=FASTER),
        "other": other,
    }
    for name, result in results.items():
        report.write_data(result, place / name)
    return [place / name for name in results]


def test_what_differs(folders: list[Path]) -> None:
    runs = compare.load_runs(folders)
    assert [run.name for run in runs] == ["slow-4", "slow-2", "other"]
    assert compare.plan_differences(runs[:2]) == {"straggler.slowdown": [4.0, 2.0]}
    assert compare.plan_differences(runs) == {
        "run.repetitions": [3, 3, 1],
        "run.policies": [("atp", "sa-atp"), ("atp", "sa-atp"), ("atp", "sa-atp", "ps")],
        "straggler.slowdown": [4.0, 2.0, 4.0],
    }
    assert compare.machine_differences(runs[:2]) == {}
    found = compare.machine_differences(runs)
    assert found["cpus"][2] == 64
    assert found["numpy"][2] == "0.1"


def test_numbers(folders: list[Path]) -> None:
    runs = compare.load_runs(folders)
    said = json.loads(json.dumps(compare.as_json(runs)))
    assert list(said["policies"]) == ["atp", "sa-atp", "ps"]
    slow, fast, other = said["policies"]["atp"]
    for run, numbers in zip(runs, (slow, fast, other), strict=True):
        mine = run.result.summary["policies"]["atp"]
        assert numbers["iteration_time_s"] == mine["iteration_time_s"]["mean"]
        assert numbers["final_loss"] == mine["final_loss"]
    assert (slow["verdict"], fast["verdict"], other["verdict"]) == (None, "shorter", "same")
    assert fast["iteration_time_reduction"] == pytest.approx(1 - fast["iteration_time_s"] / slow["iteration_time_s"])
    assert [each["run"] for each in said["policies"]["ps"]] == ["other"]
    assert said["policies"]["ps"][0]["verdict"] is None


def test_the_order_decides_what_is_compared_with_what(folders: list[Path]) -> None:
    runs = compare.load_runs([folders[1], folders[0]])
    assert compare.as_json(runs)["policies"]["atp"][1]["verdict"] == "longer"


def test_a_small_difference_may_be_chance_if_one_of_the_runs_is_not_simulated(tmp_path: Path) -> None:
    for backend, mean_s in (("sim", 1.0), ("local", 1.05)):
        report.write_data(timed({"atp": [[mean_s, mean_s]]}, backend), tmp_path / backend)
    for names in (("sim", "local"), ("local", "sim")):
        runs = compare.load_runs([tmp_path / name for name in names])
        comparison = compare.against_first(runs, runs[1], "atp")
        assert comparison is not None
        assert comparison.verdict == "unclear"


def test_names_are_as_long_as_they_have_to_be(folders: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again" / "slow-4"
    report.write_data(synthetic.result(steps=6), again)
    names = [run.name for run in compare.load_runs([folders[0], again])]
    assert names == [f"{folders[0].parent.name}/slow-4", "again/slow-4"]


def test_the_table(folders: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *map(str, folders[:2])]) == 0
    out = capsys.readouterr().out.replace("\u00a0", " ")
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"^  straggler\.slowdown +4 +2 *$", out, re.M)
    assert re.search(r"^ATP *\n  slow-4 +533 ms .*\n  slow-2 +269 ms .* 49 % shorter .* 0 *\nSA-ATP *\n", out, re.M)


def test_the_same_run_elsewhere(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write_data(synthetic.result(repetitions=3), tmp_path)
    assert main(["compare", str(folders[0]), str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The plans are the same.\n")
    assert "the same" in out.splitlines()[-2]


def test_wrong_sums_are_said(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = synthetic.result(steps=6)
    wrong.runs[1].sums_wrong = 2
    report.write_data(wrong, tmp_path / "wrong")
    assert main(["compare", str(folders[0]), str(tmp_path / "wrong")]) == 0
    assert "wrong: SA-ATP: 2 of" in capsys.readouterr().out


@pytest.mark.needs("matplotlib", "jinja2")
def test_the_page(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "below" / "compared.html"
    assert main(["compare", *map(str, folders), "--html", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(path)
    text = path.read_text(encoding="utf-8")
    assert "<h1>slow-4, slow-2 and other differ in run.repetitions, run.policies and straggler.slowdown</h1>" in text
    named = re.findall(r"""(?:src|href|srcset)=["']?([^"'>\s]+)""", text)
    assert [name for name in named if not name.startswith("data:image/")] == []
    pictures = re.findall(r"<img src=\"data:image/", text)
    # one of all means; each figure of each run, but accuracy of the run in which nothing was evaluated
    assert len(pictures) == 1 + len(FIGURES) * len(folders) - 1
    assert '<meta name="viewport"' in text


@pytest.mark.needs("matplotlib", "jinja2")
def test_a_run_without_the_data_of_a_figure_says_so(folders: list[Path], tmp_path: Path) -> None:
    report.write_data(CASES["no intervals"](), tmp_path / "bare")
    page = compare_output.write_page(compare.load_runs([folders[0], tmp_path / "bare"]), tmp_path / "page.html")
    assert "not drawn: no intervals were recorded" in page.read_text(encoding="utf-8")


def test_folders_that_cannot_be_compared(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "summary.json").write_text("{}")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    (tmp_path / "link").symlink_to(folders[0])
    for wanted, said in (
        ([folders[0]], "slow-4: expected two or more runs to compare"),
        ([folders[0], folders[1], tmp_path / "link"], "link: given twice"),
        ([folders[0], tmp_path / "nowhere"], "nowhere: not the folder of a finished run: there is no such folder"),
        ([folders[0], tmp_path / "unfinished"], "unfinished: not the folder of a finished run: it has no run.json"),
        ([tmp_path / "sweep", folders[0]], f"name its points, which are in {tmp_path / 'sweep' / 'points'}"),
    ):
        with pytest.raises(UserError, match=f"{re.escape(said)}$"):
            compare.load_runs(wanted)
