"""Runs match their records: backends refuse settings that they would not apply."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import Said, small_plan

from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import local, runner
from sa_atp.lab.plans import plan as plans
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.plans.sweep import points
from sa_atp.lab.report import files, findings, summarise
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.processes import Group
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.net.connecting import connect


def small(*overrides: str) -> Plan:
    return plan_files.parse(small_plan(), "here", overrides)


def test_the_plan_of_a_run_says_where_it_ran(tmp_path: Path) -> None:
    plan = plans.placed(small(), backend="sim")
    result = runner.run(plan, "here", tmp_path, Progress())
    assert (result.plan.run.backend, result.plan.switch.program) == ("sim", "embedded")
    assert (result.backend, result.switch) == ("sim", "embedded")
    manifest = files.manifest(result)
    assert (manifest["backend"], manifest["plan"]["run"]["backend"]) == ("sim", "sim")
    assert (manifest["switch"], manifest["plan"]["switch"]["program"]) == ("embedded", "embedded")
    assert manifest["device_speed"] == "simulated"
    summary = summarise(result)
    assert (summary["backend"], summary["switch"]) == ("sim", "embedded")


def test_auto_leaves_what_the_plan_names() -> None:
    plan = small("run.backend=sim")
    assert plans.placed(plan) == plan
    assert plans.placed(plan, backend="local", switch="bmv2").run.backend == "local"
    assert plans.placed(plan, backend="local", switch="bmv2").switch.program == "bmv2"


def test_a_sweep_over_switches_runs_each_switch() -> None:
    """Each point runs its plan's program, and a backend that cannot refuses before the first point."""
    plan = small("run.backend=sim", "sweep.key=switch.program", 'sweep.values=["embedded","bmv2"]')
    first, second = points(plans.placed(plan), "here")
    runner.check(first.plan, "here")
    with pytest.raises(
        UserError, match=r"cannot do switch\.program = 'bmv2': use --switch embedded, or --backend mininet"
    ):
        runner.check(second.plan, "here")


@pytest.mark.parametrize(
    ("overrides", "backend", "devices", "says"),
    [
        ((), "local", "emulated", "emulated devices"),
        (("job.compute_us_per_sample=0",), "local", "real", "not emulated"),
        (('job.device="cpu"',), "mininet", "cpu", "CPU quotas"),
        ((), "sim", "simulated", "simulated"),
    ],
)
def test_names_of_devices(overrides: tuple[str, ...], backend: str, devices: str, says: str) -> None:
    result = RunResult(small(*overrides), "here", backend, "embedded", {})
    assert files.manifest(result)["device_speed"] == devices
    assert says in findings.what_ran(result) + findings.device_speed(result)


@pytest.mark.parametrize(
    ("networks", "is_by_flows"), [({"atp": "flows"}, True), ({"atp": "flows", "sa-atp": "packets"}, False), ({}, False)]
)
def test_no_switch_is_named_where_none_ran(networks: dict[str, str], is_by_flows: bool) -> None:
    said = findings.what_ran(RunResult(small(), "here", "sim", "embedded", {"networks": networks}))
    assert ("flows in place of packets" in said, "embedded switch" in said) == (is_by_flows, not is_by_flows)


def test_no_policy_is_always_the_first() -> None:
    turns = list(small("run.repetitions=3", 'run.policies=["atp", "sa-atp"]').run.turns())
    assert turns == [(0, "atp"), (0, "sa-atp"), (1, "sa-atp"), (1, "atp"), (2, "atp"), (2, "sa-atp")]


def test_records_are_in_the_plans_order_whatever_ran_first(tmp_path: Path) -> None:
    plan = plans.placed(small("run.repetitions=2", 'run.policies=["atp", "sa-atp"]'), backend="sim")
    said = Said()
    result = runner.run(plan, "here", tmp_path, said)
    assert [stage.partition(",")[0] for stage in said.lines if "repetition" in stage] == [
        "atp",
        "sa-atp",
        "sa-atp",
        "atp",
    ]
    assert [(r.repetition, r.policy) for r in result.runs] == [(0, "atp"), (0, "sa-atp"), (1, "atp"), (1, "sa-atp")]


def test_garbage_collection_skips_loaded_modules() -> None:
    """A full collection of PyTorch's objects would take as long as a step."""
    code = (
        "import gc, sys; from sa_atp.lab.backends import worker_process; from sa_atp.lab.plans import plan_files; "
        "worker_process.prepare({'plan': plan_files.parse(sys.argv[1], 'here').as_dict()}); "
        "print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    said = subprocess.run([sys.executable, "-c", code, small_plan()], capture_output=True, text=True, check=True).stdout
    frozen, watched = map(int, said.split())
    assert frozen > 10_000
    assert watched < 2_000


def test_missing_counts_are_not_zero() -> None:
    """Gloo has no fragments to count; its sums are compared."""
    record = {
        "step": 0, "start_us": 0, "end_us": 10, "activities": [], "loss": 1.0, "slowdown": 1.0,
        "pieces": [(0, 0, 0, 5), (0, 0, 1, 9)], "dropped": 0, "is_finished": True,
    }  # fmt: skip
    workers: list[dict[str, Any]] = [
        {"rank": rank, "records": [record], "contributed": [], "sums": [(0, 7)], "server": None, "evaluations": [],
         "stats": {"fragments_sent": 0, "retransmitted": 0, "on_behalf": 0}}
        for rank in range(2)
    ]  # fmt: skip
    plan = small('run.policies=["gloo"]')
    result = RunResult(plan, "here", "mininet", "embedded", {}, [collect(plan, "gloo", 0, workers)])
    assert set(summarise(result)["policies"]["gloo"]["fragments"].values()) == {None}


def test_a_job_has_the_slots_that_the_plan_gives_it(tmp_path: Path) -> None:
    """A job on the local backend has its quota of slots, not all of them."""
    plan = small("switch.slots=64", "switch.slots_per_job=16")
    with Group() as group:
        host, port = local.cluster(plan, group, tmp_path).ready()
        with connect(f"udp://{host}:{port}", job="one", rank=0, world_size=1) as comm:
            assert comm.membership.slot_count == 16
