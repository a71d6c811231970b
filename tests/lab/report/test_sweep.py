"""The numbers and the figure of a sweep."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sa_atp.cli.parts import sweep as _sweep
from sa_atp.lab.plans.plan import FIGURES, JobPlan, Plan, RunPlan, StragglerPlan, SweepPlan, TopologyPlan
from sa_atp.lab.report import stats, sweep, table
from sa_atp.lab.report.drawing import training
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.records import Evaluation, PolicyRun, RunResult

from . import synthetic
from .cases import iteration

VALUES: dict[str, tuple[Any, ...]] = {
    "straggler.slowdown": (1.0, 2.0, 4.0, 10.0),
    "straggler.workers": ((), (1,), (0, 1)),
    "network.loss": (0.0, 0.001, 0.01, 0.03),
    "switch.slots": (16, 64, 1024),
    "help.grade": ("steal", "clone"),
    "straggler.slowdown_range": ((1.0, 2.0), (2.0, 8.0)),
}


def results(repetitions: int = 3) -> RunResult:
    return synthetic.result(steps=6, repetitions=repetitions, micro_batches=4)


def numbers(key: str, figure: str, result: RunResult) -> tuple[Plan, dict[str, Any]]:
    plan = Plan(
        run=result.plan.run, topology=result.plan.topology, sweep=SweepPlan(key=key, values=VALUES[key], figure=figure)
    )
    return plan, sweep.table(plan, [(value, result) for value in VALUES[key]])


def by_hand(jobs: int) -> RunResult:
    """Two repetitions of concurrent jobs, with two steps each: job 0 takes 1 s and 3 s for a step, job 1 twice as long."""
    plan = Plan(
        run=RunPlan(steps=2, warm_up=0, repetitions=2, policies=("atp",)), topology=TopologyPlan(workers=1),
        job=JobPlan(jobs=jobs), straggler=StragglerPlan(pattern="none"),
    )  # fmt: skip
    runs = []
    for repetition, seconds in enumerate((1.0, 3.0)):
        for job in range(jobs):
            run = PolicyRun("atp", repetition, job=job)
            run.iterations = [iteration(step, 0, seconds * (job + 1)) for step in range(2)]
            run.fragments = {"sent": 10, "in_switch": 3, "at_ps": 1 + 4 * repetition * job, "collisions": job}
            runs.append(run)
    return RunResult(plan, "plan.toml", "mininet", "embedded", {}, runs)


def test_sweeps_over_seeds_have_a_mean(tmp_path: Path) -> None:
    plan = Plan(run=RunPlan(policies=("atp", "sa-atp")), sweep=SweepPlan(key="run.seed", values=(1, 2, 30)))
    results = [(seed, synthetic.result(steps=6 + seed % 3, micro_batches=4)) for seed in (1, 2, 30)]
    found = sweep.table(plan, results)
    assert found["all"].keys() == {"atp", "sa-atp"}
    for policy, numbers in found["all"].items():
        means = [point["policies"][policy]["mean"] for point in found["points"]]
        assert numbers["mean"] == pytest.approx(sum(means) / 3)
        assert tuple(numbers["ci95"]) == stats.interval95(means)
        assert numbers["ci95"][0] < numbers["mean"] < numbers["ci95"][1]
        assert numbers["seeds"] == 3
        assert numbers["quantities"]["mean iteration time"] == {k: numbers[k] for k in ("mean", "ci95", "seeds", "of")}
    printed = io.StringIO()
    _sweep.print_numbers(plan, found, tmp_path, Console(file=printed, width=80))
    (line,) = (line for line in printed.getvalue().splitlines() if line.startswith("all"))
    assert line.count("±") == 2
    pytest.importorskip("matplotlib")
    assert sweep.draw(plan, found, tmp_path).is_file()
    only = sweep.table(plan, results[:1])["all"]["atp"]
    assert (only["ci95"], only["seeds"]) == (None, 1)
    others = sweep.table(Plan(sweep=SweepPlan(key="straggler.slowdown", values=(1, 2, 30))), results)
    assert "all" not in others


def test_jobs_of_a_repetition_are_one_measurement() -> None:
    result = by_hand(2)
    plan = Plan(run=result.plan.run, sweep=SweepPlan(key="job.jobs", values=(2,), figure="fairness"))
    (point,) = sweep.table(plan, [(2, result)])["points"]
    found = point["policies"]["atp"]
    assert found["mean"] == pytest.approx((1 + 1 / 2) ** 2 / (2 * (1 + 1 / 4)))  # speeds 1 and 1/2
    assert found["repetitions"] == 2
    times = found["quantities"]["mean iteration time"]
    assert times["mean"] == pytest.approx((1.5 + 4.5) / 2)
    assert times["ci95"] == pytest.approx([3 - 12.706 * 1.5, 3 + 12.706 * 1.5])


def test_sums_and_collisions_are_counted_over_all_jobs() -> None:
    result = by_hand(2)
    plan = Plan(run=result.plan.run, sweep=SweepPlan(key="switch.slots", values=(16,), figure="aggregation"))
    (point,) = sweep.table(plan, [(16, result)])["points"]
    found = point["policies"]["atp"]
    assert found["mean"] == pytest.approx((6 / 8 + 6 / 12) / 2)
    assert found["quantities"]["packets added by the server, per fragment sent"]["mean"] == pytest.approx(1 / 20)
    assert found["sums_wrong"] == 0


@pytest.mark.parametrize(
    ("key", "figure"),
    [*((key, "iteration-time") for key in VALUES), *(("switch.slots", figure) for figure in FIGURES[1:])],
)
def test_every_figure_and_every_kind_of_value_is_drawn(tmp_path: Path, key: str, figure: str) -> None:
    pytest.importorskip("matplotlib")
    plan, found = numbers(key, figure, results(repetitions=2 if figure == "accuracy" else 1))
    assert sweep.draw(plan, found, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_labels_of_values_do_not_overlap() -> None:
    assert sweep._places((2, 4, 8), "topology.workers") == ([2.0, 4.0, 8.0], ["2", "4", "8"], False)
    assert sweep._places((16, 32, 512), "switch.slots") == ([16.0, 32.0, 512.0], ["16", "32", "512"], True)
    places, labels, is_log = sweep._places((0.0, 0.001, 0.01, 0.03), "network.loss")
    assert (places, is_log) == ([0.0, 1.0, 2.0, 3.0], False)
    assert [text.replace("\u00a0", " ") for text in labels] == ["0 %", "0.1 %", "1 %", "3 %"]
    assert sweep._places(((), (3,), (2, 3)), "straggler.workers")[1] == ["none", "3", "2, 3"]
    assert sweep._places(((1.0, 2.0),), "straggler.slowdown_range")[1] == ["1 to 2"]


def test_a_mean_over_some_repetitions_is_not_given(tmp_path: Path) -> None:
    """The times of those that did not reach the accuracy would be the longest."""
    runs = [PolicyRun("atp", repetition) for repetition in range(4)]
    for run in runs:
        run.evaluations = [Evaluation(0, 2.0 + run.repetition, loss=1.0, accuracy=0.9 if run.repetition else 0.1)]
    sweeps = SweepPlan(key="straggler.slowdown", values=(4,), figure="accuracy")
    plan = Plan(run=RunPlan(steps=1, repetitions=4, policies=("atp",)), sweep=sweeps)
    result = RunResult(plan, "plan.toml", "sim", "embedded", {}, runs)
    found = sweep.table(plan, [(4, result)])
    atp = found["points"][0]["policies"]["atp"]
    assert (atp["mean"], atp["ci95"], atp["repetitions"], atp["of"]) == (None, None, 3, 4)
    printed = io.StringIO()
    _sweep.print_numbers(plan, found, tmp_path, Console(file=printed, width=120))
    said = "straggler.slowdown = 4, ATP: time to the target accuracy: reached in 3 of 4 repetitions."
    assert f"–: {said}" in printed.getvalue()
    title = training.accuracy_title(result).replace("\u00a0", " ")
    assert title == "Time to 90 % accuracy: ATP reached in 3 of 4 repetitions"
    notes = [line.replace("\u00a0", " ") for line in table.of_few_values(summarise(result))]
    assert notes == ["–: 90 % accuracy was reached in 3 of 4 repetitions with ATP."]


def test_loopback_has_no_rate_in_the_title() -> None:
    topology = TopologyPlan(link_mbps=20.0)
    assert "20 Mbit/s links" in sweep.settings(Plan(run=RunPlan(backend="sim"), topology=topology))
    assert "Mbit/s" not in sweep.settings(Plan(run=RunPlan(backend="local"), topology=topology))
    of_each = TopologyPlan(link_mbps=20.0, worker_mbps=(10.0, 20.0, 20.0, 20.0))
    assert "Mbit/s" not in sweep.settings(Plan(run=RunPlan(backend="sim"), topology=of_each))


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("run.steps", "40 steps"), ("run.repetitions", "3 repetitions"), ("topology.kind", "star"),
        ("topology.workers", "4 workers"), ("topology.link_mbps", "20 Mbit/s"), ("topology.worker_mbps", "20 Mbit/s"),
        ("job.model", "digits-cnn"), ("job.jobs", "two jobs"),
    ],
)  # fmt: skip
def test_a_title_does_not_say_what_the_sweep_changes(key: str, part: str) -> None:
    def said(key: str) -> str:
        run, topology = RunPlan(backend="sim", repetitions=3), TopologyPlan(link_mbps=20.0)
        plan = Plan(run=run, topology=topology, job=JobPlan(jobs=2), sweep=SweepPlan(key=key, values=(1,)))
        return sweep.settings(plan).replace("\u00a0", " ")

    assert part in said("straggler.slowdown")
    assert part not in said(key)


def test_an_interrupted_sweep_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan, found = numbers("straggler.slowdown", "iteration-time", results())
    found["points"] = found["points"][:1]
    assert sweep.draw(plan, found, tmp_path).is_file()
