"""BOA in the testbed: optimal sizes in virtual time, the gradient of the whole batch, and one-line errors."""

from collections import defaultdict

import numpy as np
import pytest
from helpers.cluster import Cluster
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab import policies
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans.plan_files import parse
from sa_atp.lab.policies.boa import Boa
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.protocol.batches.deal import Deal
from sa_atp.protocol.batches.orchestrator import Measured
from sa_atp.protocol.batches.program import Share, makespan_s, solve
from sa_atp.protocol.batches.speed import Speed
from sa_atp.steps.dealt import NUMBERS, MeasuringHost, measurements
from sa_atp.switches.embedded.pipeline import Pipeline

PLAN = """
[run]
steps = 8
warm_up = 0
policies = ["boa", "sa-atp+boa"]
backend = "sim"
[topology]
workers = 3
[job]
model = "resnet-50"
model_scale = 0.0001
batch_size = 34
micro_batches = 17
speeds = [1.0, 0.5, 0.2]
[straggler]
pattern = "none"
"""


def run(*overrides: str) -> dict[str, PolicyRun]:
    found = {each.policy: each for each in simulated.run(parse(PLAN, "a plan", overrides), Progress())}
    for each in found.values():
        steps = len({i.step for i in each.iterations})
        assert (each.sums_checked, each.sums_wrong) == (3 * steps, 0)
        assert all(sum(sizes) == 102 for sizes in sizes_of(each))
    return found


def sizes_of(run: PolicyRun) -> list[tuple[int, ...]]:
    """The batch sizes of each step."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for each in run.iterations:
        found[each.step][each.worker] = each.samples
    return [tuple(size for _, size in sorted(found[step].items())) for step in sorted(found)]


def step_s(run: PolicyRun, step: int) -> float:
    return max(each.iteration_s for each in run.iterations if each.step == step)


@pytest.fixture(scope="module")
def static() -> dict[str, PolicyRun]:
    return run("job.compute_us_per_pass=50")


def test_sizes_become_optimal(static: dict[str, PolicyRun]) -> None:
    shares = [Share(Speed(0.003 / speed), 1, 102) for speed in (1.0, 0.5, 0.2)]
    best = solve(shares, 102)
    found = sizes_of(static["boa"])
    assert found[:3] == [(34, 34, 34)] * 3
    assert found[-1] == best == (60, 30, 12)
    passes_s = 17 * 50e-6 / 0.2
    assert step_s(static["boa"], 0) == pytest.approx(34 * 0.015 + passes_s, rel=0.01)
    assert step_s(static["boa"], 7) == pytest.approx(makespan_s(shares, best), rel=0.05)
    assert not static["boa"].help["micro_batches"]


def test_with_help_too(static: dict[str, PolicyRun]) -> None:
    """Shards of 12 samples have 17 pieces, too, some of them empty."""
    found = sizes_of(static["sa-atp+boa"])
    assert found[0] == (34, 34, 34)
    assert found[-1] == pytest.approx((60, 30, 12), abs=1)
    assert step_s(static["sa-atp+boa"], 7) < 0.2


def test_a_device_that_costs_more_than_it_brings_is_left_out() -> None:
    """Its fixed time of a pass is longer than the others need for everything; with boa.least = 0 it has no samples, and its
    rank is still in every sum. With 1 each step waits for its one sample.
    """
    overrides = (
        'run.policies=["boa"]', "run.steps=6", "job.speeds=[1,1,0.02]", "job.compute_us_per_pass=2000",
        "job.micro_batches=2",
    )  # fmt: skip
    without, with_ = run(*overrides, "boa.least=0")["boa"], run(*overrides)["boa"]
    assert sizes_of(without)[-1] == (51, 51, 0)
    assert sizes_of(with_)[-1] == (51, 50, 1)
    assert step_s(without, 5) < 0.7 * step_s(with_, 5)


def test_helped_parts_count_at_the_workers_own_speed() -> None:
    told = np.array([10, 0, 20_000, 0, 0, 0, 4, 1, 0], np.float32)
    assert measurements(told, [20, 30, 4]) == [Measured(20, 0.04), None, Measured(4, 0.065536)]


def test_a_micro_batch_without_samples_has_no_time_of_the_step_before(pipeline: Pipeline) -> None:
    cluster = Cluster([pipeline])
    (worker,) = cluster.joined_job(1, micro_batches=2)
    host, found = MeasuringHost(worker), []
    for took_us, size in (((100, 900), 8), ((100,), 4)):
        sum_ = host.begin(64)
        for micro_batch, us in enumerate(took_us):
            host.note_measurement(1 << micro_batch, 4, us)
        host.contribute(sum_, [np.zeros(64, np.float32)] * 2, 0b11, on_behalf=False)
        cluster.run(sum_.future.done, 1.0)
        found += measurements(sum_.beside.future.result(), [size])
    assert found == [Measured(8, 0.001), Measured(4, 0.0001)]


def test_boa_takes_the_static_part_and_help_the_dynamic_part() -> None:
    """Another worker is slow in each step: batch sizes do not follow it, and helpers take its work."""
    found = run("straggler.pattern=random", "run.steps=16", "straggler.slowdown_range=[6.0, 6.0]")
    late = range(8, 16)
    for each in found.values():
        sizes = sizes_of(each)
        assert sizes[-1][0] > sizes[-1][1] > sizes[-1][2]
    alone, helped = (np.mean([step_s(each, step) for step in late]) for each in found.values())
    assert helped < 0.7 * alone
    assert found["sa-atp+boa"].help["micro_batches"] > 0


def test_a_paused_worker_delays_no_measurements() -> None:
    found = run(
        "run.policies=['sa-atp+boa']", "straggler.pattern=pause", "straggler.workers=[2]", "straggler.every=4",
        "straggler.pause_s=20.0", "job.speeds=[]",
    )["sa-atp+boa"]  # fmt: skip
    others = [each.iteration_s for each in found.iterations if each.worker != 2]
    assert max(others) < 2.0


@given(st.lists(st.tuples(st.integers(0, 65_535), st.integers(0, 2**31)), min_size=1, max_size=64))
def test_measurements_are_sent_exactly(told: list[tuple[int, int]]) -> None:
    values = np.array([[b, us >> 16, us & 0xFFFF] for b, us in told], np.float32).reshape(-1)
    assert len(values) == NUMBERS * len(told)
    assert measurements(values, [b for b, _ in told]) == [Measured(b, us / 1e6) if b and us else None for b, us in told]


@pytest.mark.needs("torch", "sklearn")
def test_gradient_is_that_of_the_whole_batch() -> None:
    from torch import nn

    from sa_atp.steps.workloads.digits import DigitsCnn

    workload = DigitsCnn(seed=1, world_size=3, batch_size=20, micro_batches=4, learning_rate=0.1)
    for layer in workload.model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # which units are dropped follows from (step, shard, micro-batch)
    step = 30  # in which an epoch ends
    whole, loss = workload.gradient_of(step, 0, 0, range(60))
    for deal in (Deal((37, 15, 8), 4), Deal((20, 20, 20), 4), Deal((58, 1, 1), 4)):
        parts = [
            workload.gradient_of(step, shard, m, deal.samples(shard, m))
            for shard in range(3)
            for m in range(deal.empty(shard), 4)
        ]
        assert np.abs(sum(part for part, _ in parts) - whole).max() < 2e-6 * np.abs(whole).max()
    equal = [workload.gradient(step, shard, m) for shard in range(3) for m in range(4)]
    assert np.abs(sum(part for part, _ in equal) - whole).max() < 2e-6 * np.abs(whole).max()
    assert np.mean([loss for _, loss in equal]) == pytest.approx(loss)


def test_both_policies_share_the_settings() -> None:
    plan = parse(PLAN, "a plan", ["boa.most=60", "boa.granularity=6"])
    for name in ("boa", "sa-atp+boa"):
        policy = policies.find(name)
        assert isinstance(policy, Boa)
        assert policy.orchestrator(plan).sizes == (36, 36, 30)


def test_lb_bsp_follows_at_once_where_boa_waits() -> None:
    """Worker 1 is three times slower from step 2 on."""
    rows = [[step, 1, 3.0] for step in range(2, 8)]
    found = run('run.policies=["boa","lb-bsp"]', "job.speeds=[]", "straggler.pattern=trace", f"straggler.rows={rows}")
    assert sizes_of(found["boa"])[3] == (34, 34, 34)
    before, after, later = (sizes_of(found["lb-bsp"])[step] for step in (2, 3, 7))
    assert before == (34, 34, 34)
    assert after == (39, 25, 38)  # the average of speeds 1 and 1/3 is 2/3
    assert abs(later[1] - 102 / 7) <= 2  # in proportion to 1, 1/3 and 1
    last = run('run.policies=["lb-bsp"]', "job.speeds=[1.0, 0.5, 0.2]", "lb-bsp.weight=1")["lb-bsp"]
    assert sizes_of(last)[1] == (60, 30, 12)
