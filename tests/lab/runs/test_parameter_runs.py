"""Policies with parameters on a server: simulated and over gRPC, with checks, errors and tuning."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sa_atp.basics.errors import UserError
from sa_atp.lab import policies
from sa_atp.lab.backends import simulated
from sa_atp.lab.parameters import client as parameter_client
from sa_atp.lab.parameters.service import ParameterService
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import Plan
from sa_atp.lab.report import archive, stats
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs import tuning
from sa_atp.lab.runs.collect import check_updates, collect
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun, RunResult

NAMES = [name for name in policies.names() if policies.find(name).family is policies.Family.PARAMETERS]

PLAN = """
[run]
steps = 4
warm_up = 0
backend = "sim"
policies = ["ssp"]
[topology]
workers = 3
link_mbps = 1000
[job]
model = "resnet-50"
model_scale = 0.0001
batch_size = 8
micro_batches = 4
compute_us_per_sample = 1000
[straggler]
pattern = "constant"
workers = [2]
slowdown = 5.0
"""


def plan_of(*overrides: str) -> Plan:
    return plan_files.parse(PLAN, "here", overrides)


def simulate(plan: Plan) -> list[PolicyRun]:
    return simulated.run(plan, Progress())


@pytest.fixture(scope="module")
def runs() -> dict[str, PolicyRun]:
    plan = plan_of(f"run.policies={NAMES}")
    return {run.policy: run for run in simulate(plan)}


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_takes_its_steps_and_every_update_is_checked(runs: dict[str, PolicyRun], name: str) -> None:
    run = runs[name]
    assert len(run.step_ends_s) == 4
    assert run.step_ends_s == sorted(run.step_ends_s)
    assert run.sums_checked >= 4 * 3 * (name != "falcon")
    assert run.sums_wrong == 0
    # a row's activities are its time, without a gap
    for each in run.iterations:
        covered = until = 0  # time in which several tasks are computed counts once
        of_step = [i for i in run.intervals if (i.worker, i.step) == (each.worker, each.step)]
        for i in sorted(of_step, key=lambda i: (i.start_us, i.end_us)):
            covered += max(0, i.end_us - max(until, i.start_us))
            until = max(until, i.end_us)
        assert covered == round(1e6 * each.iteration_s)


def test_step_times_of_each_policy_with_a_straggler(runs: dict[str, PolicyRun]) -> None:
    """The fluid bound is 11 ms a step: 24 samples of 1 ms at 2.2 times the speed of one. The straggler takes 40."""
    took = {name: run.step_ends_s[-1] / 4 for name, run in runs.items()}
    assert runs["asp"].fluid_bound_s == pytest.approx(0.0109, rel=0.01)
    for name in ("asp", "flexrr", "falcon"):
        assert took[name] < 0.025
        assert took[name] > 0.9 * runs[name].fluid_bound_s
    bound0 = simulate(plan_of("ssp.bound=0"))[0]
    assert np.diff(bound0.step_ends_s) == pytest.approx([0.04] * 3, rel=0.15)
    assert runs["flexrr"].help["micro_batches"] > 0
    assert {i.worker for i in runs["flexrr"].iterations if i.helped} <= {0, 1}


def test_equal_seeds_give_equal_runs(runs: dict[str, PolicyRun]) -> None:
    again = {run.policy: run for run in simulate(plan_of('run.policies=["falcon", "flexrr"]'))}
    for name, run in again.items():
        assert repr(run) == repr(runs[name])


def test_slack_and_racks() -> None:
    slack, *_ = simulate(plan_of('run.policies=["falcon"]', "falcon.sync=slack", "falcon.bound=2"))
    racks, *_ = simulate(plan_of('run.policies=["dynsgd"]', "topology.kind=two-level", "topology.trunk_mbps=10"))
    assert slack.sums_wrong == racks.sums_wrong == 0
    near, *_ = simulate(plan_of('run.policies=["dynsgd"]'))
    assert racks.step_ends_s[-1] > near.step_ends_s[-1]


def test_contended_links_and_devices_of_different_speeds() -> None:
    calm, *_ = simulate(plan_of("topology.link_mbps=20", "straggler.pattern=none"))
    busy, *_ = simulate(
        plan_of(
            "topology.link_mbps=20", "straggler.pattern=contention", "straggler.workers=[1]", "straggler.share=0.05",
            "straggler.calm_s=[0.001,0.002]", "straggler.spell_s=[1.0,1.0]", "ssp.bound=0",
        )
    )  # fmt: skip
    assert busy.step_ends_s[-1] > 2 * calm.step_ends_s[-1]
    fast, *_ = simulate(
        plan_of(
            "straggler.pattern=none", "job.speeds=[1,1,4]", 'run.policies=["falcon"]',
            "job.compute_us_per_sample=10000",  # so that it is no matter how late hosts are
        )
    )  # fmt: skip
    assert fast.step_ends_s[-1] / 4 < 0.080  # all speed is 6: 40 ms; the slow ones alone take 80


def test_records_are_kept_and_summarised(runs: dict[str, PolicyRun]) -> None:
    plan = plan_of(f"run.policies={NAMES}")
    result = RunResult(plan, "here", "sim", "embedded", {}, list(runs.values()))
    assert repr(archive.decode(archive.encode(result)).runs) == repr(result.runs)
    summary = summarise(result)
    for name, run in runs.items():
        assert summary["policies"][name]["iterations"] == 4
        assert summary["policies"][name]["iteration_time_s"]["mean"] == pytest.approx(run.step_ends_s[-1] / 4)
        assert list(stats.step_ends_s(run)) == [0, 1, 2, 3]


# --- over gRPC ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[ParameterService]:
    made = ParameterService("127.0.0.1:0")
    made.start()
    yield made
    made.stop()


def address(service: ParameterService) -> str:
    return "{}:{}".format(*service.address)


def train(service: ParameterService, plan: Plan, policy: str) -> list[dict[str, Any]]:
    task = {"plan": plan.as_dict(), "policy": policy, "repetition": 0, "job": policy, "key": "k"}
    tasks = [{**task, "rank": rank, "parameters": address(service)} for rank in range(plan.topology.workers)]
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(parameter_client.train, tasks))


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("name", ["ssp", "flexrr", "dynsgd", "falcon"])
def test_the_same_over_grpc(service: ParameterService, name: str, parallel: int) -> None:
    """With several tasks at a time a worker computes in threads."""
    plan = plan_of(f'run.policies=["{name}"]', f"job.parallel={parallel}")
    workers = train(service, plan, name)
    run = collect(plan, name, 0, workers)
    assert len(run.step_ends_s) == 4
    assert run.sums_checked >= 3
    assert run.sums_wrong == 0
    assert {i.worker for i in run.iterations} <= {0, 1, 2}


def test_a_wrong_update_is_counted(service: ParameterService) -> None:
    workers = train(service, plan_of(), "ssp")
    server = workers[0]["parameters"]
    checked, wrong = check_updates(workers, server)
    assert (checked, wrong) == (12, 0)
    workers[1]["pushed"][0] = (workers[1]["pushed"][0][0], "0" * 16)
    assert check_updates(workers, server) == (12, 1)
    assert check_updates(workers, {**server, "wrong": [3, 4]})[1] >= 2


def test_two_servers_do_not_share_an_address(service: ParameterService) -> None:
    with pytest.raises(UserError, match="not in use"):
        ParameterService(address(service))


# --- refusals and tuning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["packets", "flows"])
def test_sync_opt_computes_several_at_a_time(network: str) -> None:
    """Its steps are as much shorter as the device's gain says, with packets and with flows; the sums are the same."""
    plans = [
        plan_of(
            'run.policies=["sync-opt"]', f"sim.network={network}", f"job.parallel={n}", "job.parallel_gain=[1,1.6,2,2]"
        )
        for n in (1, 2, 4)
    ]
    one, two, four = (simulate(plan)[0] for plan in plans)
    assert (one.sums_wrong, two.sums_wrong, four.sums_wrong) == (0, 0, 0)
    ends = [max(i.end_s for i in run.iterations) for run in (one, two, four)]
    assert ends[1] == pytest.approx(ends[0] / 1.6, rel=0.05)
    assert ends[2] == pytest.approx(ends[0] / 2, rel=0.05)


def test_no_gain_changes_nothing() -> None:
    """With devices that gain nothing, results are those of one task at a time, byte for byte."""
    flat = plan_of(f"run.policies={NAMES}", "job.parallel_gain=[1,1,1,1]")
    rows = [[1, 1, 1, 1]] * 3
    same = plan_of(f"run.policies={NAMES}", f"job.worker_parallel_gain={rows}")
    assert [repr(run) for run in simulate(flat)] == [repr(run) for run in simulate(same)]


def test_a_rate_is_the_policys_own_or_the_jobs() -> None:
    assert tuning.with_rate(plan_of(), "ssp", 0.3).settings_of("ssp").learning_rate == 0.3
    assert tuning.with_rate(plan_of(), "atp", 0.3).job.learning_rate == 0.3
