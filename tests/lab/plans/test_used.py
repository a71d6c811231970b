"""Keys that have no effect beside other keys' values: they are named, and no sweep or map is over one."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from sa_atp import experiment
from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.experiments.prepared import prepare
from sa_atp.lab.plans import plan_files, used
from sa_atp.lab.plans.plan import TABLES, Plan
from sa_atp.lab.plans.sweep import points
from sa_atp.switches import artefacts

KINDS = {**TABLES, **policies.settings()}
CONDITIONS = {
    f"{table}.{field.name}": used.conditions(field.metadata)
    for table, kind in KINDS.items()
    for field in dataclasses.fields(kind)
    if "used_with" in field.metadata
}


def field_of(key: str) -> dataclasses.Field[Any]:
    table, _, name = key.partition(".")
    return next(field for field in dataclasses.fields(KINDS[table]) if field.name == name)


@pytest.mark.parametrize("key", CONDITIONS)
def test_conditions_name_values_that_other_keys_take(key: str) -> None:
    for other, values in CONDITIONS[key].items():
        allowed = field_of(other).metadata.get("one_of", values)
        assert values
        assert set(values) <= set(allowed() if callable(allowed) else allowed)


@pytest.mark.parametrize("key", CONDITIONS)
def test_each_value_of_the_other_key_decides(key: str) -> None:
    """With `settings` of policies that do not run, so that all tables are there."""
    for other, values in CONDITIONS[key].items():
        table, _, name = other.partition(".")
        allowed = field_of(other).metadata.get("one_of", (*values, 7))
        for value in allowed() if callable(allowed) else allowed:
            of = (value,) if other == "run.policies" else value
            settings = {each: kind() for each, kind in policies.settings().items()}
            plan = Plan(settings=settings)
            if table in TABLES:
                plan = dataclasses.replace(plan, **{table: dataclasses.replace(getattr(plan, table), **{name: of})})
            else:
                changed = dataclasses.replace(settings[table], **{name: of})
                plan = dataclasses.replace(plan, settings={**settings, table: changed})
            assert (other in used.why_unused(plan, key)) == (value not in values)
            assert not used.why_unused(plan, key, CONDITIONS[key])


@pytest.mark.parametrize(
    ("overrides", "key", "values", "says"),
    [
        (["straggler.pattern=random"], "straggler.slowdown", "[2, 3]",
         'straggler.pattern = "random": straggler.slowdown is used with "constant"'),
        (["straggler.pattern=contention", "straggler.tail=2", "run.backend=sim"], "straggler.share", "[0.5, 0.6]",
         "straggler.tail = 2.0: straggler.share is used with 1.0"),
        (['run.policies=["atp", "ssp"]'], "help.grade", '["steal", "clone"]',
         'run.policies = ["atp", "ssp"]: help.grade is used with "sa-atp" or "sa-atp+boa"'),
        (['run.policies=["falcon"]'], "falcon.bound", "[1, 2]",
         'falcon.sync = "enforced": falcon.bound is used with "slack"'),
        (["job.model=vgg-16"], "job.momentum", "[0.1, 0.2]",
         'job.model = "vgg-16": job.momentum is used with "digits-cnn"'),
        ([], "topology.link_mbps", "[10, 20]", "the backend local does not use it"),
        (["run.backend=sim"], "topology.queue_packets", "[10, 20]", "the backend sim does not use it"),
    ],
)  # fmt: skip
def test_no_sweep_over_such_a_key(overrides: list[str], key: str, values: str, says: str) -> None:
    plan = plan_files.parse("", "here", [*overrides, f"sweep.key={key}", f"sweep.values={values}"])
    said = f"here: sweep.key: {key} has no effect, so all points would be the same: {says}"
    with pytest.raises(UserError, match=re.escape(said)):
        points(plan, "here")


def test_no_sweep_over_a_key_of_a_policy_that_does_not_run() -> None:
    plan = plan_files.parse("", "here", ["sweep.key=sync-opt.backups", "sweep.values=[1, 2]"])
    with pytest.raises(
        UserError, match=r"sync-opt\.backups = 1: has no effect: \[sync-opt\] is for sync-opt, and run\.p"
    ):
        points(plan, "here")


def test_no_map_over_such_a_key_unless_the_other_axis_uses_it() -> None:
    y, x = {"straggler.every": [2, 3]}, {"topology.workers": [4, 8]}
    said = 'straggler.every has no effect, so all points would be the same: straggler.pattern = "constant"'
    with pytest.raises(UserError, match=re.escape(said)):
        experiment.map("demo", x, y, progress=False)
    with pytest.raises(UserError, match="--jobs 0"):  # the axes are accepted
        experiment.map("demo", {"straggler.pattern": ["none", "pause"]}, y, progress=False, jobs=0)


def test_the_projects_plans_have_no_such_key() -> None:
    assert {name: prepare(path).remarks() for name, path in artefacts.plan_files().items()} == {
        name: [] for name in artefacts.plan_files()
    }


OTHERS = '[straggler]\npattern = "pause"\nevery = 3\npause_s = 0.25\nslowdown = 2.0\n'


def test_what_was_said_in_vain_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(OTHERS)
    in_vain = (
        'straggler.slowdown has no effect: straggler.pattern = "pause": straggler.slowdown is used with "constant"'
    )
    assert prepare(path).remarks() == [in_vain]
    assert prepare(path, ["straggler.pattern=none"]).remarks() == []  # the file's keys are for the file's pattern
    assert prepare(path, ["straggler.pattern=random"]).remarks() == []
    (both,) = prepare(path, {"straggler.pattern": "none", "straggler.every": 7}).remarks()
    assert both.startswith('straggler.every has no effect: straggler.pattern = "none"')
    assert prepare(path).remarks("straggler.pattern") == []  # a sweep or a map over the patterns
    rows = experiment.Plan(straggler=experiment.StragglerPlan(rows=((0, 1, 2.0),)))
    (said,) = prepare(rows).remarks()
    assert said == 'straggler.rows has no effect: straggler.pattern = "constant": straggler.rows is used with "trace"'
    small = {"run.steps": 1, "run.policies": ["atp"], "job.model": "resnet-50", "job.model_scale": 0.0001}
    experiment.run(rows, small, backend="sim", out=tmp_path / "out", draw=False, progress=True)
    assert capsys.readouterr().err.count(f"sa-atp: {said}\n") == 1


def test_stragglers_in_no_counted_step_are_named() -> None:
    late = {"run.steps": 12, "straggler.from_step": 12}
    count = "and steps 3 to 11 count (run.warm_up, run.steps)"
    said = f"no counted step has a straggler: straggler.from_step = 12, {count}"
    assert prepare("demo", late).remarks() == [said]
    assert prepare("demo", late | {"straggler.from_step": 11}).remarks() == []
    assert prepare("demo", late).remarks("run.steps") == []
    early = {"run.steps": 12, "run.warm_up": 3, "straggler.until_step": 3}
    said = f"no counted step has a straggler: straggler.until_step = 3, {count}"
    assert prepare("demo", early).remarks() == [said]
    assert prepare("demo", early | {"straggler.until_step": 4}).remarks() == []
    assert prepare("demo", early | {"run.steps": 3}).remarks() == [], "where there are no more, the warm-up counts"


def test_a_run_says_why_it_goes_to_flows() -> None:
    (said,) = prepare("demo", {"topology.workers": 65}, backend="sim").remarks()
    assert said.startswith(
        "atp and sa-atp run as flows, without packets (docs/flow-model.md): topology.workers = 65: a job "
    )
    (said,) = prepare("demo", {"topology.workers": 48, "run.policies": ["asp", "ps"]}, backend="sim").remarks()
    assert said.startswith(
        "ps runs as flows, without packets (docs/flow-model.md): topology.workers = 48 with job.micro_"
    )
    swept = {"sweep.key": "topology.workers", "sweep.values": [4, 80]}
    assert len(prepare("demo", swept, backend="sim").remarks()) == 1
    for chosen in (
        {},
        {"topology.workers": 65, "sim.network": "flows"},
        {"topology.workers": 65, "run.policies": ["asp"]},
    ):
        assert prepare("demo", chosen, backend="sim").remarks() == []


@pytest.mark.parametrize(
    ("key", "values", "which"),
    [
        ("run.policies", ["ssp", "atp", "ssp"], "'ssp'"), ("straggler.workers", [3, 3], "3"),
        ("straggler.among", [1, 2, 1], "1"), ("sweep.values", [1, 2, 1.0], "1.0"), ("sweep.values", [[1], [1]], r"\[1]"),
    ],
)  # fmt: skip
def test_a_policy_a_worker_or_a_point_is_named_once(key: str, values: list[Any], which: str) -> None:
    with pytest.raises(UserError, match=f"{key} names {which} more than once: expected each once"):
        experiment.load_plan("demo", {"sweep.key": "straggler.slowdown", "sweep.values": [1], key: values})
