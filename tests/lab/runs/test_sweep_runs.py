"""A small simulated sweep from the command line: it resumes where it stopped, and runs nothing twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import small_plan_file

from sa_atp.cli import main
from sa_atp.lab.backends import runner
from sa_atp.lab.runs.records import RunResult


def run(capsys: pytest.CaptureFixture[str], plan: Path, out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Returns: what the command printed, and what it said on standard error."""
    assert main(["run", str(plan), "--out", str(out), "--json", *arguments]) == 0
    printed, said = capsys.readouterr()
    return json.loads(printed), said


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp", "sa-atp"]},
        straggler={"pattern": "constant", "workers": [1]},
        sweep={"key": "straggler.slowdown", "values": [1.0, 3.0]},
    )
    out, beside = tmp_path / "out", tmp_path / "beside"
    run(capsys, plan, out, "--set", "sweep.values=[1.0]")
    before = (out / "points" / "0-1.0" / "run.json").stat().st_mtime_ns
    found, said = run(capsys, plan, out)
    assert "straggler.slowdown = 1.0: already run" in said
    assert (out / "points" / "0-1.0" / "run.json").stat().st_mtime_ns == before
    assert [point["value"] for point in found["points"]] == [1.0, 3.0]
    assert json.loads((out / "sweep.json").read_text())["points"] == found["points"]
    assert (out / "sweep.png").is_file()
    for point in found["points"]:
        for policy in point["policies"].values():
            assert (policy["sums_checked"], policy["sums_wrong"]) == (4, 0)
    normal, slow = (point["policies"]["atp"]["iteration_time_s"] for point in found["points"])
    assert slow > normal
    # concurrent points leave the same, and go on as well
    assert run(capsys, plan, beside, "--jobs", "2")[0]["points"] == found["points"]
    again, said = run(capsys, plan, beside, "--jobs", "2")
    assert said.count("already run") == 2
    assert again["points"] == found["points"]
    # points of another plan are not taken for this one's
    other = ("--set", "job.batch_size=8", "--set", "sweep.values=[1.0]")
    assert main(["run", str(plan), "--out", str(out), *other]) == 2
    assert "another plan (job.batch_size = 4, not 8)" in capsys.readouterr().err
    assert "already run" not in run(capsys, plan, out, *other, "--replace")[1]


def test_concurrent_policies_and_repetitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are byte for byte those of a sequential run."""
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp", "sa-atp", "ssp"], "repetitions": 2},
        straggler={"pattern": "constant", "workers": [1]},
    )
    alone, _ = run(capsys, plan, tmp_path / "alone")
    beside, said = run(capsys, plan, tmp_path / "beside", "--jobs", "2")
    assert "runs in virtual time" in said
    assert alone | {"folder": ""} == beside | {"folder": ""}
    for name in ("summary.json", "iterations.csv", "timeline.json"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "beside" / name).read_bytes()
    kept, other = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("alone", "beside"))
    assert kept["runs"] == other["runs"]


@pytest.mark.parametrize("finished", [0, 1])
def test_an_interrupted_sweep_reports_finished_points(
    tmp_path: Path, finished: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp"]},
        straggler={"pattern": "constant", "workers": [1]},
        sweep={"key": "straggler.slowdown", "values": [1.0, 2.0]},
    )
    out, left = tmp_path / "out", finished
    as_it_is = runner.run

    def run_until_ctrl_c(*arguments: Any) -> RunResult:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return as_it_is(*arguments)

    monkeypatch.setattr(runner, "run", run_until_ctrl_c)
    assert main(["run", str(plan), "--out", str(out)]) == 130
    said = capsys.readouterr().err.splitlines()[-2:]
    there = f"1 point of 2 finished, in {out}: `--out {out}` goes on" if finished else "no point is finished"
    assert said == [f"sa-atp: {there}", "sa-atp: interrupted"]
