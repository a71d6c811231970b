"""Deadline: a sum has who was there in time, exactly, and everybody divides by their number."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.lab.backends import local, simulated
from sa_atp.lab.flow.cut_off import CutOff
from sa_atp.lab.flow.fabric import Fabric, FabricSettings
from sa_atp.lab.flow.flow_worker import FlowSum, FlowWorker
from sa_atp.lab.flow.job import FlowJob, JobSettings
from sa_atp.lab.plans.plan_files import load, parse
from sa_atp.lab.report import table
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult
from sa_atp.lab.simulator.network import Clock
from sa_atp.protocol.numbers.quantise import quantise

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"
VALUES = 300
MICRO_BATCHES = 2
PLAN = """
[run]
steps = 4
warm_up = 0
backend = "sim"
policies = ["deadline"]
[topology]
workers = 4
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.0001
micro_batches = 4
batch_size = 16
compute_us_per_sample = 1000
[straggler]
workers = [2]
"""
SHARD_S = 16 * 1000e-6


def run(*overrides: str) -> tuple[dict[str, Any], RunResult]:
    plan = parse(PLAN, "a plan", overrides)
    result = RunResult(plan, "a plan", "sim", "embedded", {}, simulated.run(plan, Progress()))
    found = summarise(result)["policies"]
    assert all(each["sums_wrong"] == 0 and each["sums_checked"] == 4 * 4 for each in found.values())
    return found, result


def sums_of(starts_us: list[int], rule: CutOff, parts: dict[int, list[Values]]) -> list[FlowSum]:
    """One sum of a job whose workers contribute at given times. Returns: what each worker gets."""
    clock = Clock()
    workers: list[FlowWorker] = []
    settings = JobSettings(world_size=len(starts_us), micro_batches=MICRO_BATCHES, lanes=64, cut_off=rule)
    fabric = Fabric(clock, FabricSettings(workers=len(starts_us), link_mbps=1000, delay_us=10))
    job = FlowJob(fabric, settings, lambda rank, operation: workers[rank].on_sum(operation))
    workers += [FlowWorker(job, rank) for rank in range(len(starts_us))]
    sums = [worker.begin(VALUES) for worker in workers]

    def contribute(rank: int) -> None:
        workers[rank].contribute(sums[rank], parts[rank], job.map.bits_of(rank), on_behalf=False)

    for rank, start_us in enumerate(starts_us):
        clock.at(start_us, lambda rank=rank: contribute(rank))  # type: ignore[misc]
    assert clock.run(lambda: all(sum_.future.done() for sum_ in sums), 10**8)
    return sums


@given(
    starts_us=st.lists(st.integers(0, 5_000), min_size=2, max_size=6),
    after_us=st.integers(0, 5_000),
    least=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_a_sum_of_a_known_subset_is_exactly_the_sum_of_that_subset(
    starts_us: list[int], after_us: int, least: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    workers, least = len(starts_us), min(least, len(starts_us))
    parts = {
        rank: [rng.normal(0, 10.0 ** rng.integers(-3, 3), VALUES).astype(np.float32) for _ in range(MICRO_BATCHES)]
        for rank in range(workers)
    }
    sums = sums_of(starts_us, CutOff(after_us=after_us, least=least), parts)
    closes_us = max(min(starts_us) + after_us, sorted(starts_us)[least - 1])
    bits = {sum_.bits for sum_ in sums}
    assert len(bits) == 1, "all workers know the same subset"
    found = bits.pop()
    there = [rank for rank in range(workers) if found >> rank * MICRO_BATCHES & 0b11 == 0b11]
    assert found == sum(0b11 << rank * MICRO_BATCHES for rank in there), "whole shards"
    assert {rank for rank in range(workers) if starts_us[rank] < closes_us} <= set(there)
    assert set(there) <= {rank for rank in range(workers) if starts_us[rank] <= closes_us}
    total = sums[0].finished
    assert total is not None
    (exponent,) = total.exponents.tolist()
    rounded = np.zeros(VALUES, np.int32)
    exact = np.zeros(VALUES, np.int64)
    for part in (part for rank in there for part in parts[rank]):
        quantise([part], exponent, workers * MICRO_BATCHES, rounded)
        exact += rounded
    assert (total.sums == exact).all()
    assert (sums[0].future.result() == (exact / 2.0**exponent).astype(np.float32)).all()
    assert all((sum_.future.result() == sums[0].future.result()).all() for sum_ in sums)


def test_a_late_worker_is_left_out_and_costs_the_deadline_only() -> None:
    found, result = run()
    assert found["deadline"]["iteration_time_s"]["mean"] == pytest.approx(1.25 * SHARD_S, rel=0.1)
    own = [worker["micro_batches_per_step"]["own"] for worker in found["deadline"]["workers"]]
    assert own == [4, 4, 0, 4]
    assert found["deadline"]["samples_per_update"] == 3 * 16
    cancelled = [i for i in result.runs[0].intervals if i.worker == 2 and i.label.endswith(", cancelled")]
    assert cancelled, "it stops, and begins the next step with the others"


def test_a_sum_waits_for_the_least_number_of_workers() -> None:
    found, _ = run("deadline.least=4")
    assert found["deadline"]["samples_per_update"] == 4 * 16
    assert found["deadline"]["iteration_time_s"]["mean"] > 4 * SHARD_S


def test_without_late_workers_training_is_that_of_atp() -> None:
    changed = (
        "straggler.pattern=none",
        "sim.network=flows",
        "job.model=digits-cnn",
        'run.policies=["atp", "deadline"]',
    )
    found, result = run(*changed)
    atp, deadline = result.runs
    assert [(e.loss, e.accuracy) for e in atp.evaluations] == [(e.loss, e.accuracy) for e in deadline.evaluations]
    assert found["deadline"]["iteration_time_s"] == found["atp"]["iteration_time_s"]


def test_the_update_is_the_mean_over_those_in_the_sum() -> None:
    """With another worker late in each step: samples of an update vary, and no step has a smaller weight for it."""
    found, result = run("straggler.pattern=random", "straggler.slowdown_range=[1.0, 2.0]", "deadline.after=0.3")
    of_step = [sum(i.micro_batches for i in result.runs[0].iterations if i.step == step) for step in range(4)]
    assert len(set(of_step)) == 2
    assert found["deadline"]["samples_per_update"] == round(Fraction(sum(of_step) * 16, 4 * 4))


def test_the_report_says_how_many_samples_and_that_it_was_the_flow_model() -> None:
    _, result = run('run.policies=["atp", "deadline"]')
    result.manifest["networks"] = {"atp": "packets", "deadline": "flows"}
    text = " ".join(table.notes(result, summarise(result))).replace("\u00a0", " ")
    assert "Deadline: an update has 48 samples, not 64" in text
    assert "The network of Deadline is simulated as flows" in text


def test_the_plan_compares_it_with_help_in_the_published_pattern() -> None:
    plan = load(TOPOLOGIES / "deadline.toml")
    assert {"sa-atp", "deadline"} <= set(plan.run.policies)
    assert plan.straggler == load(TOPOLOGIES / "stall-points.toml").straggler


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["deadline.least=5"], r"deadline\.least = 5: expected 0 to 4 \(topology\.workers\)"),
        (["topology.kind=two-level"], r"topology\.kind = 'two-level': expected 'star'"),
        (["sim.network=packets"], r"sim\.network = 'packets': no switch program has what deadline needs"),
        (["switch.program=tofino-model"], r"switch\.program = 'tofino-model': no switch program has what deadline"),
        (["network.loss=0.01"], r"deadline: simulated as flows, without packets that could be lost"),
    ],
)
def test_what_cannot_run_it_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulated.run(parse(PLAN, "a plan", overrides), Progress())


def test_other_backends_refuse_it_by_name() -> None:
    with pytest.raises(UserError, match=r"cannot do run\.policies = 'deadline': use --backend sim"):
        local.check(parse(PLAN, "a plan", ['run.backend="local"']))
