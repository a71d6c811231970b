"""Plans with devices and stragglers: their effect in a run, and one-line errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files, traces
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import stats
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"
SHORT = ("run.warm_up=0", "job.model=resnet-50", "job.model_scale=0.0001", "switch.lanes=64")


def simulate(plan: Plan) -> RunResult:
    return RunResult(plan, "here", "sim", "embedded", {}, simulated.run(plan, Progress()))


def mean_s(result: RunResult, policy: str) -> float:
    return float(summarise(result)["policies"][policy]["iteration_time_s"]["mean"])


def test_devices_of_three_speeds() -> None:
    result = simulate(plan_files.load(TOPOLOGIES / "three-devices.toml", [*SHORT, "run.steps=6"]))
    summary = summarise(result)["policies"]
    shard_s = 64 * 1000e-6
    assert summary["atp"]["iteration_time_s"]["mean"] == pytest.approx(5 * shard_s, rel=0.02)
    assert summary["sync-opt"]["iteration_time_s"]["mean"] == pytest.approx(2 * shard_s, rel=0.03)
    bound_s = 3 * shard_s / 1.7
    assert summary["atp"]["fluid_bound_s"] == pytest.approx(bound_s)
    assert bound_s <= summary["sa-atp"]["iteration_time_s"]["p50"] < 1.15 * bound_s
    assert [worker["slowdown"] for worker in summary["atp"]["workers"]] == [1.0, 2.0, 5.0]
    assert all(each["sums_wrong"] == 0 and each["sums_checked"] == 18 for each in summary.values())


def test_pauses_at_random() -> None:
    plan = plan_files.load(TOPOLOGIES / "random-pauses.toml", [*SHORT, "run.steps=12", "straggler.probability=0.2"])
    result = simulate(plan)
    paused = {
        policy.policy: {(i.step, i.worker) for run in policy.runs for i in run.intervals if i.kind == "pause"}
        for policy in stats.policies(result)
    }
    assert 4 <= len(paused["atp"]) <= 16
    assert paused["sa-atp"] <= paused["atp"]  # who is told to stop before the middle of its shard does not pause there
    assert mean_s(result, "sa-atp") < mean_s(result, "atp")


def test_contention_comes_and_goes() -> None:
    """A worker's contribution takes longer during a spell of contention only."""
    kept = (
        "run.policies=['atp']", "run.steps=24", "run.warm_up=0", "straggler.workers=[3]", "job.model_scale=0.0005",
        "topology.link_mbps=25",
    )  # fmt: skip
    plan = plan_files.load(TOPOLOGIES / "contended-links.toml", kept)
    calm = plan_files.load(TOPOLOGIES / "contended-links.toml", [*kept, "straggler.pattern=none"])
    contended, usual = simulate(plan), simulate(calm)
    slowest = {n: stats.policies(result)[0].pooled_s for n, result in enumerate((contended, usual))}
    typical = float(slowest[1][5:].mean())
    assert slowest[0].max() > 1.5 * typical
    assert slowest[0].min() < 1.05 * typical
    assert summarise(contended)["policies"]["atp"]["sums_wrong"] == 0


@pytest.mark.needs("torch", "sklearn")
def test_contention_reaches_policies_whose_parameters_are_on_a_server() -> None:
    kept = (
        "run.policies=['ssp']", "run.steps=8", "run.warm_up=0", "straggler.workers=[3]", "ssp.bound=0",
        "job.model=digits-cnn", "topology.link_mbps=50", "topology.trunk_mbps=1000",  # the server's is not the narrow one
        "straggler.calm_s=[0.1, 0.2]",
    )  # fmt: skip
    plan = plan_files.load(TOPOLOGIES / "contended-links.toml", kept)
    calm = plan_files.load(TOPOLOGIES / "contended-links.toml", [*kept, "straggler.pattern=none"])
    assert mean_s(simulate(plan), "ssp") > 1.3 * mean_s(simulate(calm), "ssp")


def test_a_trace_is_the_same_for_all_policies_and_travels_with_the_plan() -> None:
    plan = plan_files.load(TOPOLOGIES / "trace.toml", [*SHORT, "run.steps=6"])
    assert plan.straggler.rows == traces.read(TOPOLOGIES / "trace.csv")
    again = plan_files.parse_tables(json.loads(json.dumps(plan.as_dict())), "a record")
    assert again == plan
    rows = {(step, worker): slow for step, worker, slow in plan.straggler.rows}
    result = simulate(again)
    for run in result.runs:
        for each in run.iterations:
            assert each.slowdown == rows.get((each.step, each.worker), 1.0)
    assert mean_s(result, "sa-atp") < mean_s(result, "atp")


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "", "line 1: expected one column 'step', found nothing"),
        ("a.csv", "step,worker\n1,2\n", "line 1: expected one column 'slowdown', found step, worker"),
        ("a.csv", "step,worker,slowdown,step\n", "line 1: expected one column 'step'"),
        ("a.csv", "step,worker,slowdown\n", "it has no rows"),
        ("a.csv", "step,worker,slowdown\n0,1,2\n\n1,1,fast\n", "line 4, column slowdown: 'fast': expected a number"),
        ("a.csv", "step,worker,slowdown\n0,1\n", "line 2: 2 columns where line 1 names 3"),
        ("a.csv", "step,worker,slowdown\n1.5,1,2\n", "line 2, column step: '1.5': expected a whole number"),
        ("a.csv", "step,worker,slowdown\n0,-1,2\n", "line 2, column worker: '-1': expected 0 to 1023"),
        ("a.csv", "step,worker,slowdown\n0,1,nan\n", "line 2, column slowdown: 'nan': expected 0.001 to 1000.0"),
        ("a.csv", "step,worker,slowdown\n0,1,0\n", "line 2, column slowdown: '0': expected 0.001 to 1000.0"),
        ("a.json", "{", "not JSON"),
        ("a.json", "{}", "expected a list of objects with step, worker, slowdown"),
        ("a.json", "[]", "it has no rows"),
        ("a.json", "[7]", "entry 1: expected an object with step, worker, slowdown"),
        ("a.json", '[{"step": 0, "worker": 1}]', "entry 1, column slowdown: None: expected a number"),
        ("a.json", '[{"step": true, "worker": 1, "slowdown": 2}]', "entry 1, column step: True: expected a whole number"),
        ("a.txt", "step", "expected a file whose name ends in .csv or .json"),
    ],
)  # fmt: skip
def test_bad_traces_are_refused_with_line_and_column(tmp_path: Path, name: str, content: str, problem: str) -> None:
    path = written(tmp_path, name, content)
    plan = written(tmp_path, "plan.toml", f'[straggler]\npattern = "trace"\ntrace = "{name}"\n')
    with pytest.raises(UserError, match=re.escape(problem)) as refused:
        plan_files.load(plan)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_traces_and_unknown_workers(tmp_path: Path) -> None:
    plan = written(tmp_path, "plan.toml", '[straggler]\npattern = "trace"\ntrace = "a.csv"\n')
    with pytest.raises(UserError, match=rf"plan\.toml: straggler\.trace = .a\.csv.: no such file in {tmp_path}"):
        plan_files.load(plan)
    written(tmp_path, "a.csv", "slowdown, step ,worker,why\n2,3,4,full moon\n")
    with pytest.raises(UserError, match=r"straggler\.trace = .a\.csv., row 1, worker: 4 of topology\.workers = 4"):
        plan_files.load(plan)
    assert plan_files.load(plan, ["topology.workers=5", "job.micro_batches=8"]).straggler.rows == ((3, 4, 2.0),)


def test_json_says_the_same_as_csv(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"step": 3, "worker": 1, "slowdown": 2.5}, {"step": 4, "worker": 0, "slowdown": 2}]
    made = written(tmp_path, "a.json", json.dumps(rows))
    assert traces.read(made) == ((3, 1, 2.5), (4, 0, 2.0))
    assert traces.read(written(tmp_path, "a.csv", "step,worker,slowdown\n3,1,2.5\n4,0,2\n")) == traces.read(made)


def test_helpers_resend_data_behind_a_congested_link_in_each_step() -> None:
    """Step times show no gain over the last step, but without the resends they would be three times as long."""
    path = TOPOLOGIES / "sweep-congestion.toml"
    overrides = (
        "run.backend=sim", "run.repetitions=1", "run.steps=5", "straggler.slowdown=8", "job.model_scale=0.001",
        "topology.link_mbps=10", "switch.lanes=64",
    )  # fmt: skip
    result = simulate(plan_files.load(path, overrides))
    assert mean_s(result, "sa-atp") < 0.5 * mean_s(result, "atp")
