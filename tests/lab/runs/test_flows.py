"""Runs on flows: times as on packets, the same training, and determinism."""

import json

import pytest
from helpers.committed import flow_page

from sa_atp.lab.agreement.flow import compare
from sa_atp.lab.agreement.flow_settings import SETTINGS
from sa_atp.lab.backends import flows, simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.capabilities import network_of
from sa_atp.lab.report import archive, stats
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun, RunResult
from sa_atp.lab.runs.virtual_run import fabric_of
from sa_atp.lab.simulator.network import Clock

PLAN = """
[run]
steps = 3
warm_up = 0
backend = "sim"
policies = ["atp", "sa-atp"]
[switch]
lanes = 64
[job]
micro_batches = 4
batch_size = 16
compute_us_per_sample = 1000
[sim]
network = "flows"
"""

EACH_KIND = (
    "star of 4, one slow", "star of 8, one slow at random", "star of 4, 20 Mbit/s, one much slower", "star of 4, clones",
    "star of 4, 2 ms a link, 16 slots", "star of 4, pauses", "star of 4, unequal links", "two racks of 4, one slow",
    "four racks of 4, trunks of 40 Mbit/s",
)  # fmt: skip
"""Settings that are compared each time. The others, in which several of these things come together, take minutes."""


def simulate(*overrides: str) -> list[PolicyRun]:
    return simulated.run(plan_files.parse(PLAN, "here", overrides), Progress())


@pytest.mark.parametrize(
    "setting", [pytest.param(name, marks=[] if name in EACH_KIND else [pytest.mark.minutes]) for name in SETTINGS]
)
def test_both_simulators_agree(setting: str) -> None:
    for row in compare({setting: SETTINGS[setting]}):
        assert abs(row.difference) < 0.05, f"{row.policy}: {row.packets_s} s with packets, {row.flows_s} s with flows"


def test_the_document_has_all_settings_in_their_order() -> None:
    table = flow_page().split("<!-- agreement -->")[1].split("<!-- end")[0]
    rows = [line.split("|") for line in table.splitlines() if "%" in line]
    assert [row[1].strip() for row in rows[::2]] == list(SETTINGS)
    for row in rows:
        assert abs(float(row[5].split("%")[0])) < 5


def test_training_is_the_same_bit_for_bit() -> None:
    """Samples, exponents and sums are equal, not only approximately the losses."""
    flows, packets = simulate(), simulate("sim.network=packets")
    for one, other in zip(flows, packets, strict=True):
        assert [(e.step, e.loss, e.accuracy) for e in one.evaluations] == [
            (e.step, e.loss, e.accuracy) for e in other.evaluations
        ]
        assert one.sums_checked == other.sums_checked == 12
        assert one.sums_wrong == 0
    assert flows[1].help["micro_batches"] > 0
    assert [e.loss for e in flows[0].evaluations] == [e.loss for e in flows[1].evaluations]


def test_steps_without_records_end_when_those_of_a_run_do() -> None:
    sizes = ("job.model=resnet-50", "job.model_scale=0.001", "topology.worker_mbps=[100, 100, 100, 10]")
    plan = plan_files.parse(PLAN, "here", ['run.policies=["atp"]', *sizes])
    (found,) = simulated.run(plan, Progress())
    ends_us = flows.step_ends_us(plan, "atp", Progress(), fabric_of(plan, Clock()))
    assert [us / 1e6 for us in ends_us] == pytest.approx(list(stats.step_ends_s(found).values()), abs=1e-5)


def test_equal_seeds_give_equal_bytes() -> None:
    def run() -> bytes:
        plan = plan_files.parse(PLAN, "here", ["straggler.pattern=random", "topology.workers=6"])
        result = RunResult(plan, "here", "sim", "embedded", {}, simulated.run(plan, Progress()))
        return json.dumps(archive.encode(result)).encode()

    assert run() == run()


def test_more_workers_than_a_packet_has_bits_for() -> None:
    many = (
        "job.model=resnet-50", "job.model_scale=0.001", "topology.kind=two-level", "topology.workers=96",
        "topology.racks=3", "job.micro_batches=8",
        "straggler.workers=[3,40]", "sim.network=auto",
    )  # fmt: skip
    atp, helped = simulate(*many)
    assert atp.sums_checked == helped.sums_checked == 0  # only sizes are on their way
    assert atp.fragments == {}
    slowest = [max(i.iteration_s for i in run.iterations) for run in (atp, helped)]
    assert slowest[1] < 0.8 * slowest[0]
    helpers = {i.worker for i in helped.iterations if i.helped}
    groups = {*range(0, 24, 3), *range(25, 49, 3)}  # of workers 3 and 40: 8 below a leaf
    assert helpers
    assert helpers <= groups - {3, 40}


def test_workers_that_wait_for_other_groups_ask_for_no_work() -> None:
    """80 of 96 workers have no slow worker in their group."""
    asked = []
    for steps in (2, 6):
        (found,) = simulate(
            'run.policies=["sa-atp"]', "job.model=resnet-50", "job.model_scale=0.001", "topology.kind=two-level",
            "topology.workers=96", "topology.racks=3", "straggler.workers=[3]", "straggler.slowdown=100",
            f"run.steps={steps}",
        )  # fmt: skip
        assert found.help["micro_batches"] > 0
        asked.append(found.help["questions"])
    # in each step all workers report that they are idle, and 16 ask for work; in the first steps, before the time of
    # sending is known, all ask more often
    assert asked[0] < 8 * 96 * 2
    assert asked[1] - asked[0] < (96 + 8 * 16) * 4


@pytest.mark.parametrize(
    ("overrides", "bits", "network"),
    [
        ((), 64, "packets"),
        (("switch.lanes=256",), 64, "packets"),
        (("switch.lanes=256", "topology.workers=17"), 512, "packets"),
        (("switch.lanes=256", "topology.workers=64", "job.micro_batches=8"), 512, "packets"),
        (("switch.lanes=256", "topology.workers=64", "job.micro_batches=16"), 64, "flows"),
        (("switch.lanes=256", "topology.workers=65", "job.micro_batches=1"), 64, "flows"),
        (("switch.lanes=256", "switch.contributions=512"), 512, "packets"),
        (("switch.lanes=256", "switch.contributions=64", "topology.workers=17"), 64, "flows"),
        (("topology.workers=17",), 64, "flows"),
        (("switch.lanes=32", "switch.program=tofino-model", "topology.workers=17"), 64, "flows"),
    ],
)
def test_a_plan_takes_the_build_that_its_contributions_fit_in(
    overrides: tuple[str, ...], bits: int, network: str
) -> None:
    plan = plan_files.parse(PLAN, "here", ("sim.network=auto", *overrides))
    assert (plan.contribution_bits, network_of(plan, "atp")) == (bits, network)


@pytest.mark.parametrize("policy", ["ps", "sync-opt", "boa"])
def test_other_synchronous_policies(policy: str) -> None:
    (found,) = simulate(f'run.policies=["{policy}"]')
    assert found.sums_checked > 0
    assert found.sums_wrong == 0
