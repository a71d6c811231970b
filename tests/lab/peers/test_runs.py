"""Runs of plans whose sums are another protocol's."""

from pathlib import Path
from typing import Any

import pytest
from helpers.plans import policies_of, small_plan

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.backends import local, simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import with_lanes
from sa_atp.lab.runs.progress import Progress

BOTH: dict[str, Any] = {"run": {"policies": ["atp", "switchml"], "steps": 3}, "topology": {"workers": 3}}


def test_it_waits_as_long_as_atp() -> None:
    """Both wait for the slowest, so that steps differ by what sums take. The same seed gives the same numbers."""
    straggler = {"pattern": "constant", "workers": [1], "slowdown": 3.0}
    found, _ = policies_of(small_plan(**BOTH, straggler=straggler))
    atp, switchml = found["atp"], found["switchml"]
    assert switchml["iteration_time_s"]["mean"] == pytest.approx(atp["iteration_time_s"]["mean"], rel=0.1)
    again, _ = policies_of(small_plan(**BOTH, straggler=straggler))
    assert again["switchml"] == switchml


def test_faults_of_the_network_delay_it() -> None:
    plan = small_plan(**BOTH, network={"loss": 0.02, "duplicate": 0.01, "reorder": 0.02})
    found, _ = policies_of(plan, "job.model_scale=0.001")
    clean, _ = policies_of(small_plan(**BOTH), "job.model_scale=0.001")
    assert found["switchml"]["iteration_time_s"]["mean"] > clean["switchml"]["iteration_time_s"]["mean"]


def test_its_time_out_is_twice_a_window_with_the_way_there_and_back() -> None:
    plans = [plan_files.parse(small_plan(**BOTH), "here", [f"topology.delay_us={delay}"]) for delay in (1000, 51_000)]
    near, far = (policies.peer_policy("switchml").timeout_us(plan) for plan in plans)
    assert far - near == 2 * 2 * 50_000


def test_slots_take_turns_so_that_a_delay_is_waited_for_once() -> None:
    """As long as the window is what a link carries in a round trip, or more."""
    keys = ("job.model_scale=0.0026", "switch.lanes=256", "switchml.slots=64", "topology.link_mbps=25")
    plan = small_plan(run={"policies": ["switchml"]})
    near, far = (policies_of(plan, *keys, f"topology.delay_us={delay}")[0] for delay in (0, 5000))
    mean_s = [found["switchml"]["iteration_time_s"]["mean"] for found in (near, far)]
    assert mean_s[1] - mean_s[0] == pytest.approx(2 * 0.005, rel=0.5)


def test_a_slow_link_and_congestion() -> None:
    """As for other policies: a worker's own rate, and a way up that is slow in some steps."""
    keys = ("job.model_scale=0.001", 'run.policies=["switchml"]')
    plain, _ = policies_of(small_plan(**BOTH), *keys)
    slow, _ = policies_of(small_plan(**BOTH), *keys, "topology.worker_mbps=[100, 100, 10]")
    congestion = {"pattern": "constant", "by": "congestion", "workers": [2], "slowdown": 8.0}
    congested, _ = policies_of(small_plan(**BOTH, straggler=congestion), *keys)
    for found in (slow, congested):
        assert found["switchml"]["iteration_time_s"]["mean"] > 1.1 * plain["switchml"]["iteration_time_s"]["mean"]


def test_real_processes_over_sockets(tmp_path: Path) -> None:
    """Two repetitions: each has a job of its own on the same switch."""
    plan = small_plan(**{**BOTH, "run": {**BOTH["run"], "repetitions": 2, "backend": "local"}})
    runs = local.run(with_lanes(plan_files.parse(plan, "here")), tmp_path, Progress())
    assert sorted(run.policy for run in runs) == ["atp", "atp", "switchml", "switchml"]
    assert {(run.sums_checked, run.sums_wrong) for run in runs} == {(9, 0)}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sim.network=flows", "switchml: simulated with packets alone, not as flows"),
        (
            "switch.program=tofino2-model",
            "switchml: switch.program = 'tofino2-model': simulated on 'embedded' switches",
        ),
    ],
)
def test_simulations_that_it_cannot_have(override: str, said: str) -> None:
    plan = plan_files.parse(small_plan(**BOTH), "here", ['run.backend="sim"', override])
    with pytest.raises(UserError, match=said):
        simulated.check(plan)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("topology.kind=two-level", "switchml: topology.kind = 'two-level': its program is for one switch, a star"),
        ("topology.workers=33", "switchml: topology.workers = 33: expected at most 32"),
        ("switch.lanes=32", "lanes 32: there is no such build of SwitchMl; there is 64 and 256"),
        ("job.bits=16", "job.bits = 16: policy switchml sends 32 bits"),
        ("switchml.slots=513", "switchml.slots = 513: expected 1 to 512"),
    ],
)
def test_plans_that_it_cannot_run(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_files.parse(small_plan(**BOTH), "here", [override])
    assert said in str(caught.value)
