"""A small simulated sweep from the command line: it resumes where it stopped, and runs nothing twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import small_plan_file

from sa_atp.basics.errors import UserError
from sa_atp.cli import main
from sa_atp.lab.backends import runner
from sa_atp.lab.experiments import sweep_points as _sweep
from sa_atp.lab.plans import plan as plans
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.sweep import points
from sa_atp.lab.runs.records import RunResult


def run(plan: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sa_atp", "run", str(plan), "--out", str(out), "--json", *arguments],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp", "sa-atp"]},
        straggler={"pattern": "constant", "workers": [1]},
        sweep={"key": "straggler.slowdown", "values": [1.0, 3.0]},
    )
    out = tmp_path / "out"
    first = run(plan, out, "--set", "sweep.values=[1.0]")
    assert first.returncode == 0, first.stderr
    before = (out / "points" / "0-1.0" / "run.json").stat().st_mtime_ns

    second = run(plan, out)
    assert second.returncode == 0, second.stderr
    assert "straggler.slowdown = 1.0: already run" in second.stderr
    assert (out / "points" / "0-1.0" / "run.json").stat().st_mtime_ns == before
    found: dict[str, Any] = json.loads(second.stdout)
    assert [point["value"] for point in found["points"]] == [1.0, 3.0]
    assert json.loads((out / "sweep.json").read_text())["points"] == found["points"]
    assert (out / "sweep.png").is_file()
    for point in found["points"]:
        for policy in point["policies"].values():
            assert policy["sums_checked"] == 4
            assert policy["sums_wrong"] == 0
    slow = found["points"][1]["policies"]
    assert slow["atp"]["iteration_time_s"] > found["points"][0]["policies"]["atp"]["iteration_time_s"]

    point = points(plan_files.load(plan), str(plan))[0]
    assert _sweep._finished(out, point, False) is not None
    assert _sweep._finished(tmp_path / "nowhere", point, False) is None
    elsewhere = points(plans.placed(plan_files.load(plan), backend="mininet"), str(plan))[0]
    with pytest.raises(UserError, match=r"another plan \(run\.backend = 'sim', not 'mininet'\)"):
        _sweep._finished(out, elsewhere, False)
    other = points(plan_files.load(plan, ["job.batch_size=8"]), str(plan))[0]
    with pytest.raises(UserError, match=r"job\.batch_size = 4, not 8"):
        _sweep._finished(out, other, False)
    assert _sweep._finished(out, other, True) is None


def test_concurrent_points(tmp_path: Path) -> None:
    """Numbers and folder are those of a sequential sweep, which can resume from the folder."""
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp"]},
        straggler={"pattern": "constant", "workers": [1]},
        sweep={"key": "straggler.slowdown", "values": [1.0, 2.0, 3.0]},
    )
    alone, beside = run(plan, tmp_path / "alone"), run(plan, tmp_path / "beside", "--jobs", "2")
    assert (alone.returncode, beside.returncode) == (0, 0), beside.stderr
    numbers = [json.loads((tmp_path / name / "sweep.json").read_text())["points"] for name in ("alone", "beside")]
    assert numbers[0] == numbers[1]
    assert "already run" not in beside.stderr
    again = run(plan, tmp_path / "beside", "--jobs", "2")
    assert again.stderr.count("already run") == 3
    assert json.loads(again.stdout)["points"] == json.loads(beside.stdout)["points"]


@pytest.mark.parametrize(
    ("backend", "sweep", "arguments", "says"),
    [
        ("local", True, ["--jobs", "2"], "--jobs is for --backend sim"),
        ("local", True, ["--scheduler", "tcp://127.0.0.1:1"], "--scheduler is for --backend sim"),
        ("sim", True, ["--jobs", "0"], "--jobs 0: expected at least 1"),
        ("local", False, ["--jobs", "2"], "--jobs is for --backend sim"),
        ("sim", False, ["--jobs", "-1"], "--jobs -1: expected at least 1"),
    ],
)
def test_plans_that_cannot_run_concurrently(
    tmp_path: Path, backend: str, sweep: bool, arguments: list[str], says: str
) -> None:
    more = {"sweep": {"key": "topology.workers", "values": [2]}} if sweep else {}
    plan = small_plan_file(tmp_path, run={"backend": backend, "policies": ["atp"]}, **more)
    done = run(plan, tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_concurrent_policies_and_repetitions(tmp_path: Path) -> None:
    """The files are byte for byte those of a sequential run."""
    plan = small_plan_file(
        tmp_path,
        run={"backend": "sim", "policies": ["atp", "sa-atp", "ssp"], "repetitions": 2},
        straggler={"pattern": "constant", "workers": [1]},
    )
    alone, beside = run(plan, tmp_path / "alone"), run(plan, tmp_path / "beside", "--jobs", "2")
    assert (alone.returncode, beside.returncode) == (0, 0), beside.stderr
    assert "runs in virtual time" in beside.stderr
    found = [json.loads(done.stdout) for done in (alone, beside)]
    assert [each.pop("folder") for each in found] == [str(tmp_path / name) for name in ("alone", "beside")]
    assert found[0] == found[1]
    for name in ("summary.json", "iterations.csv", "timeline.json"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "beside" / name).read_bytes()
    kept = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("alone", "beside")]
    manifests = [each.pop("manifest") for each in kept]
    assert kept[0] == kept[1]
    assert manifests[1].pop("command")[-2:] == ["--jobs", "2"]
    assert manifests[0].pop("command")[:2] == ["sa-atp", "run"]
    assert manifests[0] == manifests[1]


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
