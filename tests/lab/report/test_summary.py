"""The arithmetic of summary.json: examples by hand, and properties of any run."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.lab.plans.plan import JobPlan, Plan, RunPlan, TopologyPlan
from sa_atp.lab.report import findings, stats, sweep, table
from sa_atp.lab.report.drawing import gantt, training
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.collect import collect
from sa_atp.lab.runs.records import Interval, IntervalKind, PolicyRun, RunResult

from .cases import CASES, iteration, small


def overlapping() -> RunResult:
    """Two workers, steps of 2 s. In step 1 worker 1 pauses for 5 s; worker 0 does its work, and is in step 3 by then."""
    run = PolicyRun("sa-atp", 0)
    ends = {0: (2, 4, 6, 8, 10), 1: (2, 7, 7.5, 8.5, 10)}
    for worker, times in ends.items():
        for step, (start, end) in enumerate(itertools.pairwise((0, *times))):
            run.iterations.append(iteration(step, worker, float(end - start), end_s=float(end)))
            kind: IntervalKind = "pause" if (step, worker) == (1, 1) else "compute"
            run.intervals.append(Interval(worker, step, kind, round(start * 1e6), round(end * 1e6)))
    plan = Plan(run=RunPlan(steps=5, warm_up=0, policies=("sa-atp",)), topology=TopologyPlan(workers=2))
    return RunResult(plan, "plan.toml", "sim", "embedded", {}, [run])


def test_a_step_lasts_from_one_sum_to_the_next() -> None:
    """Times of the slowest worker would have a mean of 2.6 s, for 5 steps in 10 s."""
    found = summarise(overlapping())["policies"]["sa-atp"]
    assert (
        found["iteration_time_s"]["mean"] == found["iteration_time_s"]["p50"] == found["iteration_time_s"]["max"] == 2
    )
    # the workers' own times are listed separately
    assert found["worker_iteration_time_s"]["mean"] == pytest.approx(2.0)
    assert found["worker_iteration_time_s"]["max"] == 5
    assert [each["iteration_time_s"]["max"] for each in found["workers"]] == [2, 5]


def test_the_headline_is_as_long_as_the_bars_beside_it() -> None:
    result = overlapping()
    (policy,) = stats.policies(result)
    for worker in policy.workers():
        assert sum(worker.seconds.values()) == pytest.approx(policy.mean_s)
        assert worker.times_s.mean() == pytest.approx(policy.mean_s)


def test_figures_sweeps_and_the_table_have_the_same_steps() -> None:
    result = overlapping()
    (policy,) = stats.policies(result)
    assert sweep.ITERATION_TIME.of(policy, result.plan) == [policy.mean_s]
    ends = np.cumsum(policy.pooled_s).tolist()
    assert list(gantt.step_begins_s(result.runs[0]).values()) == [0.0, *ends[:-1]]
    assert gantt.window(result) == (1, 6.0)  # it begins with the pause
    assert [time for time, _ in training.training_loss(result.runs[0])] == ends
    steps, times = stats.times_by_step(policy)
    assert (steps, times.tolist()) == ([0, 1, 2, 3, 4], [policy.pooled_s.tolist()])
    assert findings.iteration_time(result).replace("\u00a0", " ").endswith(": SA-ATP 2.00 s")
    rows = {label: cell for _, lines in table.rows(summarise(result)) for label, cell in lines}
    numbers = table.numbers_of(summarise(result), "sa-atp")
    cells = {label: rows[label](numbers) for label in ("mean", "p50", "longest")}
    assert {label: cell.replace("\u00a0", " ") for label, cell in cells.items()} == dict.fromkeys(cells, "2.00 s")


def test_a_straggler_that_is_a_step_behind_is_marked_there_as_well() -> None:
    """Worker 0 begins step 2 at 4 s, worker 1 pauses in step 1 until 7 s."""
    result = overlapping()
    found = gantt.slow_spans(result, result.runs[0])
    assert (found[0], found[1]) == ([], [(2.0, 5.0)])


def test_evaluations_have_the_time_of_the_jobs_step() -> None:
    """Rank 0 may be late; all workers have the same weights."""
    plan = Plan(run=RunPlan(steps=2, policies=("atp",)), topology=TopologyPlan(workers=2))
    ends_us = {0: (9_000_000, 9_500_000), 1: (4_000_000, 8_000_000)}
    workers: list[dict[str, Any]] = [
        {"rank": rank, "contributed": [], "sums": [], "server": None,
         "evaluations": [(step, 1.0 - step / 4, step / 2) for step in range(2)] if rank == 0 else [],
         "stats": {"fragments_sent": 0, "retransmitted": 0, "on_behalf": 0, "results": 0},
         "records": [
             {"step": step, "start_us": 1_000_000, "end_us": ends_us[rank][step], "activities": [], "loss": None,
              "slowdown": 1.0, "pieces": [], "dropped": 0, "is_finished": True}
             for step in range(2)
         ]}
        for rank in range(2)
    ]  # fmt: skip
    run = collect(plan, "atp", 0, workers)
    assert [e.time_s for e in run.evaluations] == [3.0, 7.0], "when the first worker had it"
    assert list(stats.step_ends_s(run).values()) == [3.0, 8.5], "the last step ends with the run"
    assert [i.end_s for i in run.iterations if i.worker == 0] == [8.0, 8.5]


def test_iteration_times_after_the_warm_up_with_repetitions_pooled() -> None:
    atp = summarise(small())["policies"]["atp"]
    assert atp["iterations"] == 6
    assert atp["iterations_counted"] == 4
    assert atp["iteration_time_s"]["mean"] == pytest.approx((4 + 6 + 4 + 8) / 4)
    assert atp["iteration_time_s"]["p50"] == pytest.approx(5.0)
    assert atp["iteration_time_s"]["p90"] is atp["iteration_time_s"]["p99"] is None  # of 4, 4, 6, 8
    assert atp["iteration_time_s"]["max"] == 8.0
    assert atp["iteration_time_s"]["mean_of_repetitions"] == [5.0, 6.0]
    assert atp["iteration_time_s"]["mean_ci95"] == pytest.approx([5.5 - 12.706 * 0.5, 5.5 + 12.706 * 0.5])


def test_a_run_that_is_no_longer_than_the_warm_up_counts_as_a_whole() -> None:
    summary = summarise(small(warm_up=3))
    assert summary["policies"]["atp"]["iterations_counted"] == 6
    assert summary["policies"]["atp"]["iteration_time_s"]["mean"] == pytest.approx((9 + 4 + 6 + 9 + 4 + 8) / 6)


def test_comparison_with_the_first_policy_of_the_plan() -> None:
    comparison = summarise(small())["comparison"]
    assert comparison["baseline"] == "atp"
    assert comparison["iteration_time_reduction"] == {"sa-atp": pytest.approx(1 - 2.5 / 5.5)}
    assert comparison["speedup"] == {"sa-atp": pytest.approx(5.5 / 2.5)}
    low, high = comparison["speedup_ci95"]["sa-atp"]  # ratios 5/2 and 6/3
    assert (low + high) / 2 == pytest.approx(2.25)
    assert comparison["fluid_bound_s"] == pytest.approx(1.0)
    assert comparison["fluid_bound_reduction"] == pytest.approx(1 - 1.0 / 5.5)
    # 50 % accuracy is reached after the second step: 13 s and 7 s
    assert comparison["training_speedup"] == {"sa-atp": pytest.approx(13 / 7)}


def test_sums_and_final_values_over_repetitions() -> None:
    atp = summarise(small())["policies"]["atp"]
    assert (atp["sums_checked"], atp["sums_wrong"]) == (12, 0)
    assert atp["fragments"] == {"sent": 20, "retransmitted": 1, **dict.fromkeys(("in_switch", "at_ps", "collisions"))}
    assert atp["help"] == {"helped_steps": 4, "micro_batches": 0}
    assert (atp["final_loss"], atp["final_accuracy"]) == (1.0, 0.75)
    assert atp["final_training_loss"] == pytest.approx((3 * 1.0 + 1 * 4.0) / 4)  # weighted by micro-batches
    assert atp["time_to_accuracy_s"] == pytest.approx(13.0)
    assert atp["ratio_to_fluid_bound"] == pytest.approx(5.5)


def test_what_each_worker_did() -> None:
    first, second = summarise(small())["policies"]["atp"]["workers"]
    assert first["seconds_per_step"] == pytest.approx({"compute": 1, "help": 0, "send": 0, "wait": 3.5, "pause": 0})
    assert first["micro_batches_per_step"] == {"own": 2, "helped": 1, "unused": 0}
    assert second["seconds_per_step"]["compute"] == pytest.approx(5.5)
    assert second["slowdown"] == 2.0


def test_time_to_accuracy_is_null_unless_every_repetition_reached_it() -> None:
    found = small()
    found.runs[0].evaluations.pop()
    found.runs[0].evaluations.pop()
    atp = summarise(found)["policies"]["atp"]
    assert atp["time_to_accuracy_s"] is None
    assert atp["repetitions_that_reached_accuracy"] == 1
    assert summarise(found)["comparison"]["training_speedup"] == {"sa-atp": None}


def test_a_pause_is_told_apart_from_computing() -> None:
    shares = stats.policies(CASES["pauses"]())[0].shares()
    assert shares["pause"] > 0.05
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", CASES)
def test_every_summary_has_the_contracts_shape_and_no_nan(name: str) -> None:
    summary = summarise(CASES[name]())
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["schema"] == 1
    for key, kind in {"backend": str, "switch": str, "workers": int, "seed": int}.items():
        assert type(summary[key]) is kind
    for policy in summary["policies"].values():
        assert {"mean", "p50", "p99"} <= policy["iteration_time_s"].keys()
        assert {"final_loss", "final_accuracy", "time_to_accuracy_s", "sums_checked", "sums_wrong"} <= policy.keys()
        assert {"sent", "retransmitted", "in_switch", "at_ps", "collisions"} <= policy["fragments"].keys()
        assert {"helped_steps", "micro_batches"} <= policy["help"].keys()
    assert {"baseline", "iteration_time_reduction", "speedup", "fluid_bound_reduction"} <= summary["comparison"].keys()
    assert summary["comparison"]["speedup"].keys() == summary["comparison"]["iteration_time_reduction"].keys()
    assert summary["comparison"]["baseline"] not in summary["comparison"]["speedup"]


@pytest.mark.parametrize(("which", "count"), [(50, 2), (25, 4), (75, 4), (90, 10), (99, 100)])
def test_a_percentile_needs_a_value_beyond_it(which: int, count: int) -> None:
    assert stats.values_for(which) == count
    assert stats.percentile(np.arange(count - 1, dtype=np.float64), which) is None
    found = stats.percentile(np.arange(count, dtype=np.float64), which)
    assert found is not None
    assert 0 < found < count - 1
    summary = summarise(small())
    said = " ".join(table.of_few_values(summary)).replace("\u00a0", " ")
    assert "–: p99 needs 100 steps, and only 4 counted." in said
    assert table.of_few_values(summarise(CASES["many steps"]())) == []


@pytest.mark.parametrize(
    ("names", "momentum", "model", "says"),
    [
        (("sa-atp", "ssp", "falcon"), 0.8, "digits-cnn", "SA-ATP with momentum 0.8, SSP, Falcon without momentum"),
        (("dynsgd", "boa"), 0.9, "digits-cnn", "DynSGD without momentum, BOA with momentum 0.9"),
        (("atp", "asp"), 0.0, "digits-cnn", ""),
        (("atp", "boa"), 0.9, "digits-cnn", ""),
        (("atp", "asp"), 0.9, "vgg-16", ""),
    ],
)
def test_policies_that_train_with_other_momentum_are_told_apart(
    names: tuple[str, ...], momentum: float, model: str, says: str
) -> None:
    plan = Plan(run=RunPlan(policies=names), job=JobPlan(momentum=momentum, model=model))
    said = " ".join(table.notes(RunResult(plan, "plan.toml", "sim", "embedded", {}, []), summarise(small())))
    assert ("SGD differs" in said) is bool(says)
    assert says in said.replace(" and ", ", ")


@given(
    st.lists(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(0, 15),
    st.integers(-3, 3),
)
def test_means_leave_the_warm_up_out(times: list[list[float]], warm_up: int, first_step: int) -> None:
    """The warm-up is left out whatever the number of the first step, unless no step would be left."""
    run = PolicyRun("atp", 0)
    at = 0.0
    for step, row in enumerate(times):  # in step: all go on when the slowest is there
        at += max(row)
        run.iterations += [iteration(first_step + step, w, t, end_s=at) for w, t in enumerate(row)]
    steps = stats.counted_steps(run, warm_up)
    slowest = [max(row) for row in times]
    counted = slowest[warm_up:] or slowest
    assert len(steps) == len(counted)
    found = small(warm_up=warm_up)
    found.runs = [run]
    policy: dict[str, Any] = summarise(found)["policies"]["atp"]
    assert policy["iteration_time_s"]["mean"] == pytest.approx(np.mean(counted))
    assert policy["iteration_time_s"]["max"] == pytest.approx(max(counted))
    shares = policy["time_share"]
    assert sum(shares.values()) == pytest.approx(1.0)


@given(st.lists(st.lists(st.floats(1e-6, 1e4), min_size=3, max_size=3), min_size=1, max_size=12), st.booleans())
def test_times_add_up_to_what_the_run_took(times: list[list[float]], written_down: bool) -> None:
    """Times add up even if steps of workers overlap, and in older runs, which lack times of ends."""
    run = PolicyRun("atp", 0)
    ends = np.cumsum(times, axis=0)
    for step, row in enumerate(times):
        for worker, seconds in enumerate(row):
            end_s = float(ends[step, worker]) if written_down else math.nan
            run.iterations.append(iteration(step, worker, seconds, end_s=end_s))
    found = small(warm_up=0)
    found.runs = [run]
    (policy,) = stats.policies(found)
    assert len(policy.pooled_s) == len(times)
    assert policy.pooled_s.min() >= 0
    assert policy.pooled_s.sum() == pytest.approx(ends[-1].max())


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (10, 2.228), (11, 2.201), (30, 2.042), (1000, 1.962)])
def test_students_quantiles(freedom: int, quantile: float) -> None:
    values = [float(i % 2) for i in range(freedom + 1)]
    interval = stats.interval95(values)
    assert interval is not None
    half = np.std(values, ddof=1) / math.sqrt(len(values)) * quantile
    assert interval[1] - interval[0] == pytest.approx(2 * half, rel=1e-3)


def test_a_spread_by_rounding_is_none() -> None:
    low, high = stats.interval95([0.1 + 0.2, 0.3, 0.3]) or (0.0, 1.0)
    assert high - low == 0
    low, high = stats.interval95([1e-17, -2e-17]) or (0.0, 1.0)  # reductions of equal times
    assert high - low == 0
    low, high = stats.interval95([10.0, 10.000001]) or (0.0, 0.0)
    assert high - low > 1e-6


def test_one_value_has_no_interval() -> None:
    assert stats.interval95([1.0]) is None
