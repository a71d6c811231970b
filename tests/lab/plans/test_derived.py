"""Values of plans that follow from others' values: they are derived again whenever their source is replaced, however."""

import dataclasses
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sa_atp import experiment
from sa_atp.basics.errors import UserError
from sa_atp.lab import policies, report
from sa_atp.lab.maps.axes import parse, placed
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import DERIVED, TABLES, Plan
from sa_atp.lab.plans.sweep import points
from sa_atp.switches import artefacts

TEXT = """
[run]
steps = 4
warm_up = 0
policies = ["atp"]
[topology]
workers = 2
[job]
model = "resnet-50"
model_scale = 0.0001
batch_size = 4
micro_batches = 2
[straggler]
pattern = "trace"
trace = "twice.csv"
"""
TIMES = {"twice": 2.0, "thrice": 3.0, "some/fifth": 5.0}
FOLLOWS: dict[str, dict[str, Any]] = {
    "straggler.rows": {f"{name}.csv": ((1, 0, times),) for name, times in TIMES.items()},
}
"""By derived key: values of its source, each with what follows from it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "some").mkdir()
    for name, times in TIMES.items():
        (tmp_path / f"{name}.csv").write_text(f"step,worker,slowdown\n1,0,{times}\n")
    (tmp_path / "plan.toml").write_text(TEXT)
    return tmp_path / "plan.toml"


def of(plan: Plan, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(plan, table), name)


def replaced(plan: Plan, key: str, value: Any) -> Plan:
    """As a program replaces a value."""
    table, _, name = key.partition(".")
    return dataclasses.replace(plan, **{table: dataclasses.replace(getattr(plan, table), **{name: value})})


def test_every_derived_key_has_its_cases() -> None:
    assert set(FOLLOWS) == set(DERIVED)


@pytest.mark.parametrize("key", DERIVED)
def test_another_source_has_another_value_by_whatever_way_it_comes(
    key: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cases = DERIVED[key], FOLLOWS[key]
    base = plan_files.load(path)
    swept = plan_files.changed(base, {"sweep.key": source, "sweep.values": list(cases)}, str(path))
    at_points = {point.value: point.plan for point in points(swept, str(path))}
    axis = parse({source: list(cases)}, "--x")
    monkeypatch.chdir(path.parent)
    for value, expected in cases.items():
        ways = {
            "--set": plan_files.load(path, [f"{source}={value}"]),
            "an override": plan_files.changed(base, {source: value}, str(path)),
            "a sweep": at_points[value],
            "a map": placed(base, [(axis, value)], str(path)),
            "dataclasses.replace": experiment.load_plan(replaced(base, source, value)),
            "twice": experiment.load_plan(replaced(base, source, "twice.csv"), {source: value}),
            "another process": experiment.load_plan(replaced(pickle.loads(pickle.dumps(base)), source, value)),
        }
        assert {way: of(plan, key) for way, plan in ways.items()} == dict.fromkeys(ways, expected)


@pytest.mark.parametrize("key", DERIVED)
def test_without_its_source_a_value_is_gone(key: str, path: Path) -> None:
    base = plan_files.load(path)
    no_source = {DERIVED[key]: "", "straggler.pattern": "none"}
    assert of(plan_files.changed(base, no_source, str(path)), key) == ()
    assert of(experiment.load_plan(replaced(replaced(base, DERIVED[key], ""), "straggler.pattern", "none")), key) == ()


@pytest.mark.parametrize("key", DERIVED)
def test_a_plan_that_has_the_value_does_not_need_its_source(key: str, path: Path) -> None:
    base = plan_files.load(path)
    for file in path.parent.rglob("*.csv"):
        file.unlink()
    assert experiment.load_plan(base, {"run.steps": 9}) == replaced(base, "run.steps", 9)
    assert plan_files.parse_tables(base.as_dict(), "a record") == base


@pytest.mark.parametrize("key", DERIVED)
def test_a_value_and_its_source_are_not_both_said(key: str, path: Path) -> None:
    base, (other, *_) = plan_files.load(path), FOLLOWS[key].values()
    problem = re.escape(f"plan.toml: {key} is what {DERIVED[key]} = 'twice.csv' has: expected one of the two keys")
    with pytest.raises(UserError, match=problem):
        plan_files.load(path, {key: other})
    with pytest.raises(UserError, match=problem):
        plan_files.changed(base, {key: other}, str(path))
    with pytest.raises(UserError, match=problem):
        plan_files.changed(replaced(base, key, tuple(other)), {}, str(path))
    said = plan_files.load(path, {key: other, DERIVED[key]: ""})
    assert of(said, key) == other


def test_points_without_a_file_and_points_of_a_changed_file_are_noticed(path: Path, tmp_path: Path) -> None:
    values = ["twice.csv", "some/fifth.csv"]
    quiet: dict[str, Any] = {"out": tmp_path / "out", "draw": False, "progress": False, "jobs": 1}
    missing = f"plan.toml, sweep.values[{len(values)}]: straggler.trace = 'none.csv': no such file in "
    with pytest.raises(UserError, match=re.escape(missing)):
        experiment.sweep(path, {"straggler.trace": [*values, "none.csv"]}, **quiet)
    assert not (tmp_path / "out").exists()
    found = experiment.sweep(path, {"straggler.trace": values}, **quiet)
    alone = [experiment.run(path, {"straggler.trace": value}, backend="sim", progress=False, draw=False,
                            out=tmp_path / f"alone{n}") for n, value in enumerate(values)]  # fmt: skip
    means = [result.summary["policies"]["atp"]["iteration_time_s"]["mean"] for result in alone]
    assert [result.summary["policies"]["atp"]["iteration_time_s"]["mean"] for _, result in found.points] == means
    assert means[0] < means[1]
    ran = [result.records.manifest["plan"]["straggler"] for _, result in found.points]
    assert [(each["trace"], each["rows"]) for each in ran] == [(v, FOLLOWS["straggler.rows"][v]) for v in values]
    (tmp_path / "some" / "fifth.csv").write_text("step,worker,slowdown\n1,0,9\n")
    with pytest.raises(UserError, match=r"1-some-fifth\.csv holds a run of another plan \(straggler\.rows = \[\["):
        experiment.sweep(path, {"straggler.trace": values}, **quiet)


def test_lanes_of_a_run_do_not_stay_when_its_plan_is_changed(path: Path, tmp_path: Path) -> None:
    """A run's plan keeps what was said; its records have the lanes."""
    result = experiment.run(path, backend="sim", out=tmp_path / "out", progress=False, draw=False)
    for each in (result, experiment.load(tmp_path / "out")):
        assert each.plan.switch.lanes == 0
        assert each.summary["lanes"] == each.records.manifest["plan"]["switch"]["lanes"] == 256
        assert experiment.load_plan(each.plan, {"topology.mtu": 9000}).lanes == 2048
    assert report.finished(tmp_path / "out", plan_files.load(path, {"run.backend": "sim", "switch.lanes": 256}))


# --- plans from Python --------------------------------------------------------------------------------------------------

MORE = """
[traffic]
udp_mbps = 10
[topology]
kind = "dumbbell"
"""


def made_of_classes(tables: dict[str, Any]) -> experiment.Plan:
    kinds = {**TABLES, **policies.settings()}
    made = {name: kinds[name](**table) for name, table in tables.items()}
    own = {name: made.pop(name) for name in list(made) if name not in TABLES}
    return experiment.Plan(**made, settings=own)


def test_a_plan_means_the_same_from_a_file_and_from_python(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    (path.parent / "more.toml").write_text(MORE)
    for file in [*artefacts.plan_files().values(), path, path.parent / "more.toml"]:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        monkeypatch.chdir(file.parent)
        assert experiment.load_plan(made_of_classes(tables)) == plan_files.load(file), file.name
        used |= set(tables)
    assert used >= set(TABLES)
    classes = {getattr(experiment, name) for name in experiment.__all__ if name.endswith("Plan") and name != "Plan"}
    assert classes == set(TABLES.values())


def test_a_trace_in_python_is_read_and_missed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    made = experiment.Plan(straggler=experiment.StragglerPlan(pattern="trace", trace="thrice.csv"))
    assert experiment.load_plan(made).straggler.rows == ((1, 0, 3.0),)
    missing = experiment.Plan(straggler=experiment.StragglerPlan(pattern="trace", trace="fourth.csv"))
    with pytest.raises(UserError, match=rf"plan: straggler\.trace = 'fourth\.csv': no such file in {path.parent}"):
        experiment.load_plan(missing)
    moved = dataclasses.replace(experiment.load_plan("demo"), straggler=plan_files.load(path).straggler)
    monkeypatch.chdir("/")
    assert experiment.load_plan(moved).straggler.rows == ((1, 0, 2.0),)
