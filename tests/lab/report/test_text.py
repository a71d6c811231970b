"""Numbers in words, and the titles of figures."""

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sa_atp.lab.plans.plan import JobPlan, Plan, RunPlan, StragglerPlan
from sa_atp.lab.report import findings, table, text
from sa_atp.lab.report.drawing import training
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.records import Evaluation, Interval, PolicyRun, RunResult

from . import synthetic
from .cases import CASES, small, timed


def plain(sentence: str) -> str:
    return sentence.replace(text.NBSP, " ")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.1574, "157 ms"), (1.5, "1.50 s"), (12.34, "12.3 s"), (1234.0, "1230 s"), (0.99996, "1.00 s"),
        (0.0009999, "1.00 ms"), (0.000999, "999 µs"), (2e-7, "0.200 µs"), (0.0, "0 s"), (None, "–"),
        (float("nan"), "–"), (-0.2, "-200 ms"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, expected: str) -> None:
    assert plain(text.duration(seconds)) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.683, "68 %"), (0.0341, "3.4 %"), (0.968, "96.8 %"), (0.9, "90 %"), (1.0, "100 %"), (0.0, "0 %"),
        (0.00069, "0.069 %"), (-0.125, "-12 %"), (-1.7, "-170 %"), (None, "–"), (1e-6, "0.0001 %"),
    ],
)  # fmt: skip
def test_percentages(share: float | None, expected: str) -> None:
    assert plain(text.percent(share)) == expected


@pytest.mark.parametrize(("value", "expected"), [(3.2456, "3.2×"), (1.024, "1.02×"), (16.1, "16.1×"), (123.4, "123×")])
def test_factors(value: float, expected: str) -> None:
    assert text.factor(value) == expected


@given(st.floats(1e-9, 1e9))
def test_digits_are_never_scientific_and_close(value: float) -> None:
    written = text.digits(value)
    assert "e" not in written
    assert float(written) == pytest.approx(value, rel=6e-3, abs=1e-9)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_anything_can_be_written(value: float) -> None:
    for write in (text.duration, text.percent, text.factor):
        assert write(value)


@pytest.mark.parametrize(
    ("straggler", "expected"),
    [
        (StragglerPlan(), "one worker 4× slower"),
        (StragglerPlan(slowdown=2.5, workers=(1, 2)), "two workers 2.5× slower"),
        (StragglerPlan(slowdown=1.0), "no straggler"),
        (StragglerPlan(workers=()), "no straggler"),
        (StragglerPlan(pattern="none"), "no straggler"),
        (StragglerPlan(by="congestion"), "one congested link, 4× slower"),
        (StragglerPlan(pattern="random"), "one worker in each step 2× to 8× slower, not always the same one"),
        (StragglerPlan(pattern="tail", tail=3.0), "all workers slower at times, p99 3× slower"),
        (StragglerPlan(pattern="trace", rows=((0, 2, 4.0),)), "the slow-downs of a trace"),
        (StragglerPlan(pattern="pause", pause_s=0.5), "one worker pausing for 500 ms in 1 of 10 steps"),
        (
            StragglerPlan(pattern="random-pause", among=(1, 2), points=3),
            "pauses of 0.5 to 2 iterations in 10 % of the steps of two workers, 3 times each",
        ),
        (StragglerPlan(pattern="contention"), "one link contended at times, 20 % left"),
        (StragglerPlan(from_step=5), "one worker 4× slower from step 5 on"),
        (StragglerPlan(from_step=5, until_step=6), "one worker 4× slower in step 5"),
        (StragglerPlan(from_step=5, until_step=7), "one worker 4× slower in steps 5 to 6"),
        (StragglerPlan(from_step=5, until_step=90), "one worker 4× slower from step 5 on"),
        (StragglerPlan(until_step=90), "one worker 4× slower"),
        (StragglerPlan(from_step=8), "no straggler"),
        (StragglerPlan(until_step=3), "no straggler"),  # the warm-up
        (StragglerPlan(from_step=2, until_step=4), "one worker 4× slower in step 3"),
    ],
)
def test_situations(straggler: StragglerPlan, expected: str) -> None:
    result = RunResult(Plan(run=RunPlan(steps=8), straggler=straggler), "plan.toml", "sim", "embedded", {})
    result.runs.append(PolicyRun("atp", 0, intervals=[Interval(0, 5, "pause", 0, 1)]))
    assert plain(text.situation(result)) == f"with {expected}"


def test_pauses_that_did_not_happen_are_not_said() -> None:
    plan = Plan(run=RunPlan(steps=8), straggler=StragglerPlan(pattern="pause"))
    assert text.situation(RunResult(plan, "plan.toml", "sim", "embedded", {})) == "with no straggler"


def test_situations_of_slow_links_and_devices() -> None:
    assert plain(text.situation(CASES["slow link"]())) == "with one link 10× slower"
    assert plain(text.situation(CASES["links of a file"]())) == "with two links 2× to 10× slower"
    plan = Plan(job=JobPlan(speeds=(1.0, 0.5, 0.25, 1.0)), straggler=StragglerPlan(workers=(0,)))
    found = text.situation(RunResult(plan, "plan.toml", "sim", "embedded", {}))
    assert found == "with two workers 2× to 4× slower and one worker 4× slower"


def test_a_slow_device_of_a_straggler_is_slower_by_both() -> None:
    def said(*speeds: float, **fields: Any) -> str:
        plan = Plan(run=RunPlan(steps=8), job=JobPlan(speeds=speeds), straggler=StragglerPlan(**fields))
        return text.situation(RunResult(plan, "plan.toml", "sim", "embedded", {}))

    assert said(1.0, 1.0, 1.0, 0.5) == "with one worker 8× slower"
    assert said(1.0, 1.0, 0.5, 0.5) == "with one worker 2× slower and one worker 8× slower"
    assert said(1.0, 1.0, 1.0, 2.0, workers=(2, 3)) == "with two workers 2× to 4× slower"
    assert said(1.0, 1.0, 1.0, 4.0) == "with no straggler"
    later = said(1.0, 1.0, 1.0, 0.5, from_step=5)
    assert later == "with one worker 2× slower and one worker 8× slower from step 5 on"
    congested = said(1.0, 1.0, 1.0, 0.5, by="congestion")
    assert congested == "with one worker 2× slower and one congested link, 4× slower"


def test_titles_say_what_is_in_the_data() -> None:
    found = small()
    for run in found.runs:  # no spread between repetitions, so that the difference is clear
        run.iterations = [i for i in run.iterations if i.step < 2]
    assert plain(findings.iteration_time(found)) == "SA-ATP: 50 % shorter iterations than ATP with one worker 2× slower"
    assert plain(training.accuracy_title(found)) == "Time to 50 % accuracy: ATP 13.0 s, SA-ATP 7.00 s"
    # of 1 + 2 + 4 seconds of ATP and 1 + 0 + 2 of SA-ATP
    assert plain(findings.who_did_what(found)) == "Time in a step: waiting 29 % with ATP, 0 % with SA-ATP"


def test_a_difference_within_the_spread_of_repetitions_is_not_claimed() -> None:
    assert findings.iteration_time(small()).startswith("SA-ATP: no clear difference")


def with_means(*means: tuple[float, float]) -> RunResult:
    """A run with two policies. Args: the mean iteration times of both in each repetition."""
    took = zip(*means, strict=True)
    return timed(
        {name: [[mean, mean] for mean in each] for name, each in zip(("atp", "sa-atp"), took, strict=True)}, "local"
    )


def test_repetitions_are_compared_in_pairs() -> None:
    """Both policies are slow in the same repetitions, so the difference is clear all the same."""
    found = with_means((1.0, 1.1), (2.0, 2.21), (4.0, 4.38))
    assert plain(findings.iteration_time(found)).startswith("SA-ATP: 9.9 % longer iterations than ATP")
    low, high = summarise(found)["comparison"]["iteration_time_reduction_ci95"]["sa-atp"]
    mean, spread = np.mean([-0.1, -0.105, -0.095]), 4.303 * 0.005 / np.sqrt(3)
    assert (low, high) == pytest.approx((mean - spread, mean + spread))
    printed = Console(width=80, record=True, file=io.StringIO())
    table.print_table(found, printed)
    assert re.search(
        r"against baseline +9\.9 % longer *\n +± \(95 %, repetitions\) +1\.2 %", plain(printed.export_text())
    )


def test_policies_that_are_alike_are_not_called_unclear() -> None:
    assert "iterations as long as ATP's" in findings.iteration_time(with_means((1.0, 1.0), (2.0, 2.001), (3.0, 2.999)))
    assert findings.iteration_time(with_means((1.0, 1.1), (1.0, 0.95))).startswith("SA-ATP: no clear difference")
    nearly = with_means((1.0, 1.142), (1.0, 1.1), (1.0, 1.058))  # from 20 % longer to 0.4 % shorter
    assert findings.iteration_time(nearly).startswith("SA-ATP: no clear difference")


def test_a_small_difference_of_single_runs_may_be_chance() -> None:
    def remarks(found: RunResult) -> str:
        return " ".join(plain(remark.text) for remark in findings.remarks(found, summarise(found)))

    assert "One repetition: a difference of less than 10 % may be chance" in remarks(with_means((1.0, 1.05)))
    assert "chance" not in remarks(with_means((1.0, 0.4)))
    assert "chance" not in remarks(with_means((1.0, 1.05), (1.0, 1.06)))
    simulated = with_means((1.0, 1.05))
    simulated.backend = "sim"
    assert "chance" not in remarks(simulated)


def test_devices_that_want_most_of_the_cores_are_named() -> None:
    found = with_means((1.0, 0.5))
    found.plan = replace(found.plan, job=JobPlan(compute_us_per_sample=1_000))
    found.manifest["cpus"] = 2

    def remarks() -> str:
        return " ".join(plain(remark.text) for remark in findings.remarks(found, summarise(found)))

    found.runs[0].device_cores, found.runs[1].device_cores = 0.6, 1.0
    assert "cores" not in remarks()
    found.runs[1].device_cores = 1.33
    assert "When all emulated devices compute, they need 1.3 of this machine's 2 cores" in remarks()
    found.runs.append(replace(found.runs[1], job=1))
    assert "they need 2.7 of this machine's 2 cores" in remarks(), "jobs run at once"
    found.backend = "sim"
    assert "cores" not in remarks()


def test_titles_do_not_exaggerate() -> None:
    assert "171 % longer" in plain(findings.iteration_time(CASES["baseline is faster"]()))
    assert "iterations as long as ATP's" in findings.iteration_time(CASES["no straggler"]())
    short = synthetic.result(steps=4)
    assert training.accuracy_title(short).endswith("accuracy: ATP not reached, SA-ATP not reached")
    short.runs = short.runs[:1]
    assert re.search(r"with one worker 4× slower: ATP 53\d ms$", plain(findings.iteration_time(short)))


def test_the_title_if_one_policy_misses_the_target() -> None:
    found = small()
    for run in (found.runs[0], found.runs[2]):
        run.evaluations = [Evaluation(e.step, e.time_s, e.loss, 0.1) for e in run.evaluations]
    assert plain(training.accuracy_title(found)) == "Time to 50 % accuracy: ATP not reached, SA-ATP 7.00 s"


def test_remarks_put_wrong_sums_first() -> None:
    found = small()
    found.manifest["commit"] = "abc+changes"
    found.runs[1].sums_wrong = 2
    found.runs[0].fluid_bound_s = found.runs[2].fluid_bound_s = 100.0
    remarks = findings.remarks(found, summarise(found))
    assert [remark.level for remark in remarks] == ["wrong", "doubt", "doubt"]
    assert plain(remarks[0].text).startswith("SA-ATP: 2 of 12 sums were WRONG")
    assert "fluid bound" in remarks[1].text
    assert "uncommitted changes" in remarks[2].text


def test_unsynchronised_policies_may_beat_the_fluid_bound() -> None:
    found = with_means((1.0, 1.0))
    for run, policy in zip(found.runs, ("atp", "ssp"), strict=True):
        run.policy, run.fluid_bound_s = policy, 1.1
    atp, ssp = (plain(r.text) for r in findings.remarks(found, summarise(found)) if "fluid bound" in r.text)
    assert atp == "ATP: faster than the fluid bound, which is impossible: the emulation was inaccurate."
    assert ssp.startswith("SSP: faster than the fluid bound, as a short run can be")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("baseline is missing", "No data of ATP"),
        ("nothing", "No data of ATP and SA-ATP"),
        ("empty runs", "no iteration was recorded"),
        ("one step", "no steps after the warm-up"),
    ],
)
def test_remarks_on_incomplete_runs(name: str, part: str) -> None:
    found = CASES[name]()
    assert any(part in remark.text for remark in findings.remarks(found, summarise(found)))


def test_a_good_run_needs_no_remarks() -> None:
    found = synthetic.result()
    assert findings.remarks(found, summarise(found)) == []


def test_a_program_that_differs_from_its_sources_is_remarked() -> None:
    found = small()
    found.manifest["program"] = {"name": "v1model-64", "made_from_these_sources": False}
    (remark,) = (each for each in findings.remarks(found, summarise(found)) if "p4src" in each.text)
    assert remark.text.startswith("The compiled P4 program v1model-64 differs from its sources")
    for known in ({"name": "v1model-64", "made_from_these_sources": True}, None):
        found.manifest["program"] = known
        assert not any("p4src" in each.text for each in findings.remarks(found, summarise(found)))
