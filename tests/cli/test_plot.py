"""`sa-atp plot` with options: figures for use elsewhere, beside a report that stays as it is."""

import struct
from pathlib import Path

import pytest
from helpers.plans import small_plan_file
from lab.report import synthetic
from lab.report.cases import CASES

from sa_atp import experiment
from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.lab import report
from sa_atp.lab.report.drawing.figures import FIGURES

pytestmark = pytest.mark.needs("matplotlib")
NAMES = [kind.name for kind in FIGURES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    report.write_data(synthetic.result(policies=("atp", "sa-atp", "ps"), steps=6), found)
    return found


def test_another_format(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(folder), "--format", "pdf"]) == 0
    written = [folder / "figures" / f"{name}.pdf" for name in NAMES]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in written]
    assert not (folder / "report.html").exists()
    assert not list(folder.glob("*.png"))


def test_a_figure_for_a_paper(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name alone, and options that go together; what is said wins over what --paper says."""
    where = ["--out", str(tmp_path)]
    assert main(["plot", str(folder), "over_steps", "iteration-time", "--paper", *where]) == 0
    written = [tmp_path / "over_steps.pdf", tmp_path / "iteration_time.pdf"]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in written]
    assert all(b"/MediaBox [ 0 0 237.6 172.8 ]" in path.read_bytes() for path in written)
    words = ["over_steps", "--paper", "--size", "2.5x1.75", "--dpi", "200", "--format", "png", *where]
    assert main(["plot", str(folder), *words]) == 0
    assert (tmp_path / "over_steps.png").read_bytes()[16:24] == struct.pack(">II", 500, 350)
    assert main(["plot", str(folder), "over_steps", "--no-title", "--format", "svg", *where]) == 0
    assert "Time of each iteration" not in (tmp_path / "over_steps.svg").read_text(encoding="utf-8")


def test_the_help_names_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plot", "--help"])
    assert set(NAMES) <= set(capsys.readouterr().out.replace(",", "").split())


def test_a_figure_that_there_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(folder), "over_stps"]) == 2
    assert "figure 'over_stps': expected one of iteration_time, over_steps, " in capsys.readouterr().err


def test_some_policies(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plot", str(folder), "--policies", "sa-atp,atp", "--format", "svg", "--out", str(tmp_path / "figures")]
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(f"{name}.svg" for name in NAMES)
    text = (tmp_path / "figures" / "iteration_time.svg").read_text(encoding="utf-8")
    assert "Parameter server" not in text
    # the first one is the baseline, so the other takes longer
    assert "longer iterations than SA-ATP" in text.replace("\u00a0", " ")


def test_a_figure_without_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write_data(CASES["no intervals"](), tmp_path)
    assert main(["plot", str(tmp_path), "--format", "svg"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "sa-atp: timeline.svg is not drawn: no intervals were recorded"
    assert main(["plot", str(tmp_path), "timeline", "--format", "svg"]) == 1  # it was asked for


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "pdf", "--dpi", "200"], "--dpi 200: pdf has no pixels; it is for --format png"),
        (["--policies", "sa-apt"], "policy 'sa-apt': the run has atp, sa-atp, ps (did you mean sa-atp?)"),
        (["--policies", "atp,"], "--policies atp,: expected names of policies with commas between them, each once"),
        (
            ["--policies", "atp,atp"],
            "--policies atp,atp: expected names of policies with commas between them, each once",
        ),
    ],
)
def test_policies_that_are_not_there(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(folder), *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"sa-atp: {said}"


@pytest.mark.parametrize("size", ["", "x", "7x", "7xx5", "1", "7x1", "nan", "inf", "50"])
def test_sizes_that_are_none(size: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(folder), "--size", size]) == 2
    assert f"argument --size: {size!r}: expected a width in inches, or WIDTHxHEIGHT" in capsys.readouterr().err


def test_the_figure_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Again in its place, or for a paper; other quantities, some policies, and one of which no point has a value."""
    plan = small_plan_file(tmp_path, run={"policies": ["atp", "sa-atp"], "steps": 2})
    slow = {"straggler.pattern": "constant", "straggler.workers": [1]}
    done = experiment.sweep(
        plan, {"straggler.slowdown": [1, 2]}, slow, out=tmp_path / "out", jobs=1, draw=False, progress=False
    )
    folder = str(done.folder)
    for words, written in (
        ([], ["sweep.png"]),
        (["--paper"], ["figures/iteration-time.pdf"]),
        (["aggregation", "fairness", "--format", "svg"], ["figures/aggregation.svg", "figures/fairness.svg"]),
        (["iteration_time", "--policies", "sa-atp", "--format", "svg"], ["figures/iteration_time.svg"]),
    ):
        assert main(["plot", folder, *words]) == 0
        assert capsys.readouterr().out.splitlines() == [f"{folder}/{name}" for name in written]
    assert b"/MediaBox [ 0 0 237.6 172.8 ]" in (done.folder / "figures/iteration-time.pdf").read_bytes()
    text = (done.folder / "figures/iteration_time.svg").read_text(encoding="utf-8")
    assert ">SA-ATP</text>" in text
    assert ">ATP</text>" not in text
    for words, said in (
        ([""], "figure '': expected one of 'iteration-time', "),
        (["over_steps"], "figure 'over-steps': expected one of 'iteration-time', "),
        (["--policies", "boa"], "policy 'boa': the run has atp, sa-atp"),
    ):
        assert main(["plot", folder, *words]) == 2
        assert capsys.readouterr().err.startswith(f"sa-atp: {said}")
    assert main(["plot", folder, "accuracy", "fairness", "--format", "svg"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == (
        f"{folder}/figures/fairness.svg\n",
        "sa-atp: accuracy.svg is not drawn: no point of the sweep has its values\n",
    )
    with pytest.raises(UserError, match="figure 'accuracy': no point of the sweep has its values"):
        done.figure("accuracy")
