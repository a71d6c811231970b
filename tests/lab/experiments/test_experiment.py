"""Experiments from Python: the same runs as the command line's, with their results as records, tables and figures."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.plans import SMALL, small_plan_file

from sa_atp import experiment
from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError, UserError
from sa_atp.cli import main
from sa_atp.lab.experiments.prepared import prepare
from sa_atp.switches import artefacts

OVERRIDES: dict[str, Any] = {
    "run.steps": 3,
    "run.policies": ["atp", "sa-atp"],
    "straggler.pattern": "constant",
    "straggler.workers": (1,),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_plan_file(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def result(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> experiment.Result:
    out = tmp_path_factory.mktemp("result") / "out"
    return experiment.run(plan, OVERRIDES, backend="sim", out=out, progress=False)


def test_the_same_bytes_as_from_the_command_line(plan: Path, result: experiment.Result, tmp_path: Path) -> None:
    words = list(result.records.manifest["command"])
    assert words[:3] == ["sa-atp", "run", str(plan)]
    assert main([*words[1:], "--out", str(tmp_path)]) == 0
    for name in ("iterations.csv", "summary.json", "timeline.json"):
        assert (tmp_path / name).read_bytes() == (result.folder / name).read_bytes()


def test_a_result_has_what_its_folder_has(result: experiment.Result) -> None:
    assert result.summary == json.loads((result.folder / "summary.json").read_text())
    assert (result.folder / "report.html").is_file()
    assert result.problems == ()
    assert len(result.iterations) == 2 * 3 * 2  # policies, steps, workers
    assert {row.policy for row in result.iterations} == {"atp", "sa-atp"}
    assert all(row.counted for row in result.iterations)
    assert [run.policy for run in result.runs] == ["atp", "sa-atp"]
    assert result.plan.run.steps == 3
    assert "SA-ATP" in str(result)
    assert "sa-atp" in repr(result)


@pytest.mark.needs("pandas")
def test_rows_as_a_table_are_those_of_the_file(result: experiment.Result) -> None:
    import pandas as pd

    table = result.to_pandas()
    kept = pd.read_csv(result.folder / "iterations.csv")
    assert table.counted.dtype == bool
    pd.testing.assert_frame_equal(table.assign(counted=table.counted.astype(int)), kept, check_dtype=False)


def test_a_table_without_pandas(result: experiment.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else there(name))
    with pytest.raises(MissingPartError) as refused:
        result.to_pandas()
    said = f"to_pandas needs pandas, which is not installed: {needs.how_to_install('pandas')}"
    assert str(refused.value) == said
    assert " -m pip install " in said


@pytest.mark.needs("matplotlib")
def test_figures(result: experiment.Result, tmp_path: Path) -> None:
    assert list(result.figures) == ["iteration_time", "over_steps", "who_did_what", "timeline"]
    assert all(text.endswith(".") for text in result.figures.values())
    shown: Any = result.figure("iteration-time")
    assert shown._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    for_paper = result.figure("timeline.png", paper=True)
    assert for_paper.get_size_inches().tolist() == [3.3, 2.4]
    for_paper.axes[0].set_xlabel("changed")
    for_paper.savefig(tmp_path / "changed.pdf")
    assert b"/Type3" not in (tmp_path / "changed.pdf").read_bytes()  # the style's fonts, whoever saves it
    with pytest.raises(UserError, match="figure 'speed': expected one of iteration_time, over_steps, who_did_what"):
        result.figure("speed")


def test_a_figure_that_a_run_has_no_data_for(result: experiment.Result) -> None:
    records = dataclasses.replace(result.records, runs=[])
    with pytest.raises(UserError, match="figure 'timeline': no intervals were recorded"):
        experiment.Result(records, result.folder).figure("timeline")
    assert experiment.Result(records, result.folder).figures == {}


def test_a_finished_run_is_loaded(result: experiment.Result, tmp_path: Path) -> None:
    again = experiment.load(result.folder)
    assert again.summary == result.summary
    assert [str(row) for row in again.iterations] == [str(row) for row in result.iterations]  # NaN is not NaN
    with pytest.raises(UserError, match="not the folder of a finished run"):
        experiment.load(tmp_path)


# --- where it is called from --------------------------------------------------------------------------------------------


def test_a_loop_that_runs_and_another_thread_may_call_it(plan: Path, result: experiment.Result, tmp_path: Path) -> None:
    found: list[experiment.Result] = []

    def run(name: str) -> None:
        found.append(experiment.run(plan, OVERRIDES, backend="sim", out=tmp_path / name, draw=False, progress=False))

    async def notebook() -> None:
        run("in a loop")

    asyncio.run(notebook())
    thread = threading.Thread(target=run, args=("in a thread",))
    thread.start()
    thread.join()
    assert [each.summary["policies"] for each in found] == [result.summary["policies"]] * 2


def test_quiet_means_quiet(plan: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    experiment.run(plan, backend="sim", out=tmp_path / "quiet", draw=False, progress=False)
    assert capfd.readouterr() == ("", "")
    experiment.run(plan, backend="sim", out=tmp_path / "told", draw=False)
    out, err = capfd.readouterr()
    assert out == ""
    assert "atp, repetition 1 of 1" in err


@pytest.mark.parametrize("own", [True, False], ids=["in the run's folder", "in another one"])
def test_decisions_are_logged_where_they_are_wanted(plan: Path, tmp_path: Path, own: bool) -> None:
    out, apart = tmp_path / "out", tmp_path / "log"
    overrides = {**OVERRIDES, "run.policies": ["sa-atp"]}
    experiment.run(plan, overrides, backend="sim", out=out, progress=False, draw=False, log=True if own else apart)
    logs = sorted((out / "log" if own else apart).rglob("*.jsonl"))
    assert [path.stem for path in logs] == ["parameter-server", "rank-0", "rank-1"]
    assert all(path.stat().st_size for path in logs)


def test_each_run_has_a_folder_of_its_own(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of different plans, in one second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20261125-120000")
    folders = [
        experiment.run(plan, {"run.steps": steps}, backend="sim", draw=False, progress=False).folder for steps in (1, 2)
    ]
    assert folders == [Path("runs/plan-20261125-120000"), Path("runs/plan-20261125-120000-2")]


# --- plans --------------------------------------------------------------------------------------------------------------


def test_the_projects_own_plans_and_policies_say_what_they_are() -> None:
    assert list(experiment.plans()) == list(artefacts.plan_files())
    assert all(text.endswith((".", "?")) for text in experiment.plans().values())
    assert list(experiment.policies())[:2] == ["atp", "sa-atp"]


def test_a_plan_may_be_made_of_its_classes(result: experiment.Result, tmp_path: Path) -> None:
    tables = {name: dict(keys) for name, keys in SMALL.items()}
    made = experiment.Plan(
        run=experiment.RunPlan(**tables["run"]),
        topology=experiment.TopologyPlan(**tables["topology"]),
        switch=experiment.SwitchPlan(**tables["switch"]),
        job=experiment.JobPlan(**tables["job"]),
    )
    found = experiment.run(made, OVERRIDES, backend="sim", out=tmp_path, draw=False, progress=False)
    assert found.summary["policies"] == result.summary["policies"]
    assert found.records.manifest["command"] == []  # no command line has this plan
    assert experiment.load_plan(made, {**OVERRIDES, "run.steps": 9}).run.steps == 9
    assert made.run.steps == 2


def test_overrides_may_be_of_numpy() -> None:
    found = experiment.load_plan(
        "demo", {"run.steps": np.int64(7), "job.speeds": np.ones(4), "straggler.workers": range(2)}
    )
    assert (found.run.steps, found.job.speeds, found.straggler.workers) == (7, (1.0,) * 4, (0, 1))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dem",), "dem: no such file (did you mean demo?); the project's own plans are boa, "),
        ((3,), "plan = 3: expected a plan's name, a path of a plan file, or a Plan"),
        (("demo", {"run.steps": 0}), "run.steps = 0: expected 1 to 100000"),
        (("demo", {"run.step": 1}), "unknown key run.step"),
        (("demo", {"steps": 1}), """overrides: the key 'steps': expected "TABLE.KEY", for example "help.grade\""""),
        (("demo", {("run", "steps"): 1}), "overrides: the key ('run', 'steps'): expected"),
        (("demo", "run.steps=1"), "overrides = 'run.steps=1': expected a mapping"),
        (("demo", ["run.steps"]), "--set run.steps: expected TABLE.KEY=VALUE"),
        (("demo", {"ssp.bound": 1}), "ssp.bound = 1: has no effect: [ssp] is for ssp"),
        ((experiment.Plan(run={"steps": 1}),), "plan: a table is not of its class"),  # type: ignore[arg-type]
        ((experiment.Plan(run=experiment.RunPlan(steps=0)),), "plan: run.steps = 0: expected 1 to 100000"),
        (("sweep-slots",), "a sweep over switch.slots: run it with experiment.sweep"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: Any, says: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment.run(*arguments, backend="sim", progress=False)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "simulator"}, "backend = 'simulator': expected one of 'auto', 'local', 'sim', 'mininet'"),
        ({"switch": "tofino"}, "switch = 'tofino': expected one of 'auto', 'embedded', 'bmv2'"),
        ({"policies": "atp"}, """policies = 'atp': expected a list, such as ["atp", "sa-atp"]"""),
        ({"policies": [experiment]}, "expected a string"),
        ({"backend": "sim", "jobs": 0}, "--jobs 0: expected at least 1"),
    ],
)
def test_wrong_options(options: Mapping[str, Any], says: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment.run("demo", progress=False, **options)
    assert says in str(refused.value)


def test_a_command_that_runs_the_same() -> None:
    found = prepare("demo", {"run.policies": ["atp"], "help.grade": "clone"}, backend="sim", switch="embedded")
    assert found.command == (
        "sa-atp", "run", "demo", "--set", 'run.policies=["atp"]', "--set", 'help.grade="clone"', "--backend", "sim",
        "--switch", "embedded",
    )  # fmt: skip
    with contextlib.suppress(UserError):
        assert prepare("demo", found.command[4:5]).plan.run.policies == ("atp",)
