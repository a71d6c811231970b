"""The folder of a run: checked before the run, locked against others, and kept if drawing fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.limits import limited
from helpers.plans import small_plan_file

from sa_atp import cli
from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import runner
from sa_atp.lab.plans.plan import JobPlan, Plan, RunPlan
from sa_atp.lab.report.drawing import figures
from sa_atp.lab.runs import run_folder

BEGUN = "repetition 1"  # what a run says when it begins


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return str(small_plan_file(tmp_path, run={"backend": "sim"}))


# --- before it begins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sim", "local"])
def test_a_folder_that_cannot_be_written_is_noticed_before_the_run(
    backend: str, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", plan, "--backend", backend, "--out", f"{plan}/out"]) == cli.EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{plan}/out: cannot be written: Not a directory" in line
    assert "--out" in line


def test_a_disk_without_room_is_noticed_before_the_run(plan: str, tmp_path: Path) -> None:
    command = limited("RLIMIT_FSIZE", 1 << 16, sys.executable, "-m", "sa_atp", "run", plan, "--out", tmp_path / "out")
    done = subprocess.run(command, text=True, timeout=120, check=False, capture_output=True)
    assert done.returncode == cli.EXIT_BAD_INPUT
    assert "cannot be written" in done.stderr
    assert "this run needs about 5 MB" in done.stderr
    assert BEGUN not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_space_of_a_run_grows_with_its_records() -> None:
    small, large = Plan(), Plan(run=RunPlan(steps=4000), job=JobPlan(micro_batches=16))
    assert 1e6 < run_folder.bytes_needed(small) < 1e7
    # 40 steps of the demo, 2 policies, left 1.3 MB of records
    assert 1.3e8 < run_folder.bytes_needed(large) - run_folder.bytes_needed(small) < 4e8


def test_a_run_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    with (
        pytest.raises(UserError, match="No space left on device"),
        run_folder.claimed(tmp_path / "out", 2 * disk.f_blocks * disk.f_frsize),
    ):
        pass
    assert not (tmp_path / "out").exists()


def test_one_run_at_a_time_in_a_folder(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with run_folder.claimed(out, 1000):
        assert cli.main(["run", plan, "--out", str(out)]) == cli.EXIT_BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert "in use by another run" in line
    with run_folder.claimed(out, 1000):
        pass
    assert list(out.iterdir()) == []


# --- what is there already --------------------------------------------------------------------------------------------


def test_a_run_of_another_plan_is_replaced_only_when_told_to(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["run", plan, "--out", str(out)]) == 0
    assert cli.main(["run", plan, "--out", str(out)]) == 0  # the same again
    capsys.readouterr()
    other = ["run", plan, "--out", str(out), "--set", "run.steps=3", "--set", "topology.workers=3"]
    assert cli.main(other) == cli.EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "another plan (run.steps = 2, not 3; topology.workers = 2, not 3)" in line
    assert "--replace" in line
    assert json.loads((out / "summary.json").read_text())["steps"] == 2
    assert cli.main([*other, "--replace"]) == 0
    assert json.loads((out / "summary.json").read_text())["steps"] == 3


# --- when it is over --------------------------------------------------------------------------------------------------


def test_a_run_is_not_lost_with_its_figures(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def fails(*_: object) -> None:
        raise RuntimeError("no fonts")

    with monkeypatch.context() as broken:
        broken.setattr(figures, "write", fails)
        assert cli.main(["run", plan, "--out", str(out)]) == cli.EXIT_BAD_RESULT
    printed = capsys.readouterr()
    assert "Iteration time" in printed.out
    assert f"sa-atp: not drawn: RuntimeError: no fonts; the data is written, and `sa-atp plot {out}`" in printed.err
    assert "Traceback" not in printed.err
    assert cli.main(["plot", str(out)]) == 0
    assert (out / "timeline.png").is_file()


def test_a_run_whose_folder_is_removed_is_saved_elsewhere(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, refuge = tmp_path / "out", tmp_path / "tmp"
    refuge.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(refuge))
    real = runner.run

    def run(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        out.rmdir()
        out.write_text("a file now")
        return result

    monkeypatch.setattr(runner, "run", run)
    assert cli.main(["run", plan, "--out", str(out), "--json"]) == cli.EXIT_BAD_RESULT
    printed = capsys.readouterr()
    (kept,) = refuge.iterdir()
    assert json.loads(printed.out)["folder"] == str(kept)
    assert f"the data of the run is in {kept}" in printed.err
    assert cli.main(["plot", str(kept)]) == 0


def test_a_run_goes_on_when_its_progress_cannot_be_written(plan: str, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sa_atp", "run", plan, "--out", str(tmp_path / "out"), "--json"],
            text=True, timeout=120, check=False, stdout=subprocess.PIPE, stderr=full,
        )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)["policies"]["atp"]["iterations"] == 2
    assert (tmp_path / "out" / "report.html").is_file()
