"""Titles, tables and remarks of random runs agree with the records; the tests parse the sentences."""

import math
import re

from hypothesis import example, given
from hypothesis import strategies as st

from sa_atp.lab.plans.plan import JobPlan, NetworkPlan, Plan, RunPlan, TopologyPlan
from sa_atp.lab.report import comparing, findings, html, stats, table, text
from sa_atp.lab.report.drawing import training
from sa_atp.lab.report.summary import summarise
from sa_atp.lab.runs.records import Evaluation, PolicyRun, RunResult

from .cases import iteration, timed

POLICIES = ("atp", "sa-atp", "falcon", "sync-opt", "unheard-of")
times = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.001, 1.05, 1.2, 2.0, 2.1, 30.0])
accuracies = st.sampled_from([0.1, 0.5, 0.9, 0.95, math.nan])
losses = st.sampled_from([0.5, 0.6, math.nan, math.inf])


@st.composite
def results(draw: st.DrawFn) -> RunResult:
    names = POLICIES[: draw(st.integers(1, len(POLICIES)))]
    repetitions, steps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    plan = Plan(
        run=RunPlan(policies=names, steps=steps, warm_up=draw(st.integers(0, 1)), repetitions=repetitions),
        topology=TopologyPlan(workers=draw(st.integers(3, 4))),
        job=JobPlan(compute_us_per_sample=draw(st.sampled_from([0, 1000]))),
        network=NetworkPlan(loss=draw(st.sampled_from([0.0, 0.01]))),
    )
    runs = []
    for repetition in range(repetitions):
        for name in names:
            took, at = draw(times), 0.0
            run = PolicyRun(name, repetition, fluid_bound_s=draw(st.sampled_from([0.0, 0.2])))
            for step in range(draw(st.integers(0, steps)) if draw(st.integers(0, 9)) == 0 else steps):
                at += took
                for worker in range(plan.topology.workers):
                    slow = draw(st.sampled_from([1.0, 1.0, 4.0]))
                    run.iterations.append(iteration(step, worker, took, end_s=at, slowdown=slow))
                if draw(st.integers(0, 3)):
                    run.evaluations.append(Evaluation(step, at, draw(losses), draw(accuracies)))
            run.sums_checked = draw(st.integers(0, 1))
            runs.append(run)
    return RunResult(plan, "plan.toml", draw(st.sampled_from(["local", "sim"])), "embedded", {"cpus": 2}, runs)


def plain(sentence: str) -> str:
    return sentence.replace(text.NBSP, " ")


def named(sentence: str, result: RunResult) -> set[str]:
    """Policies that a sentence names."""
    titles = {text.policy_name(name): name for name in result.plan.run.policies}
    longest_first = sorted(titles, key=len, reverse=True)
    return {titles[t] for t in re.findall("|".join(map(re.escape, longest_first)), sentence)}


@given(results())
def test_the_title_is_the_verdict_on_the_fastest_other_policy(result: RunResult) -> None:
    found = [each for each in stats.policies(result) if each.mean_s is not None]
    said = plain(findings.iteration_time(result))
    base, other = stats.baseline(result, found), findings.headline(result, found)
    if not found:
        assert said == "No iterations were recorded"
    if base is None or other is None or (how := comparing.iterations(result, base, other)) is None:
        return
    assert other.mean_s == min(each.mean_s or 0.0 for each in found if each is not base)
    assert named(said, result) == {base.policy, other.policy}
    assert (plain(how.in_words()) in said) == how.is_clear
    assert ("no clear difference" in said) == (how.verdict == "unclear")


@given(results())
def test_titles_remarks_and_tables_have_one_verdict(result: RunResult) -> None:
    summary = summarise(result)
    said, remarks = plain(findings.iteration_time(result)), findings.remarks(result, summary)
    rows = {label: cell for _, lines in table.rows(summary) for label, cell in lines}
    comparison = summary["comparison"]
    for name, policy in summary["policies"].items():
        cell = plain(rows[table.AGAINST](table.numbers_of(summary, name)))
        verdict = comparison["verdict"].get(name)
        assert not cell.startswith("-"), "a sign and a word say it twice"
        if verdict in ("shorter", "longer"):
            assert cell.endswith(verdict)
            mean, base = (
                summary["policies"][each]["iteration_time_s"]["mean"] for each in (name, comparison["baseline"])
            )
            assert (mean < base) == (verdict == "shorter")
        for which, key in (("p50", "p50"), ("p99", "p99")):
            count = policy["iterations_counted"]
            assert (policy["iteration_time_s"][key] is None) == (count < stats.values_for(int(which[1:])))
    by_chance = any("may be chance" in remark.text for remark in remarks)
    amounts = [float(a) for a in re.findall(r"([\d.]+) % (?:shorter|longer)", said)]
    assert not (by_chance and any(a < 9.95 for a in amounts)), said
    page = plain(html.render(result))
    cards = page[page.index("<section class=cards>") : page.index("</section>", page.index("<section class=cards>"))]
    card = re.search(r"([\d.]+) %</b><span>(shorter|longer)", cards)
    if card is not None:
        assert f"{card[1]} % {card[2]}" in said
    elif amounts and "shorter" in said:
        raise AssertionError(f"the title says {said}, and no card does")


@given(results())
def test_the_title_of_training_has_the_time_of_each_policy(result: RunResult) -> None:
    said = plain(training.accuracy_title(result))
    for each in stats.policies(result):
        if any(run.evaluations for run in each.runs):
            time = each.time_to_accuracy_s(result.plan.run.target_accuracy)
            told = "not reached" if time is None else plain(text.duration(time))
            assert f"{text.policy_name(each.policy)} {told}" in said


@given(results())
@example(RunResult(Plan(), "plan.toml", "local", "embedded", {}, []))
def test_waiting_shares_are_true(result: RunResult) -> None:
    said = plain(findings.who_did_what(result))
    for share, title in re.findall(r"([\d.]+) % (?:of the time )?with ([^,]+)", said):
        policy = next(p for p in stats.policies(result) if text.policy_name(p.policy) == title)
        assert abs(policy.shares()["wait"] - float(share) / 100) < 0.006


def test_a_median_that_says_the_opposite_of_the_mean_is_told() -> None:
    result = timed({"atp": [[0.1] * 9 + [2.0]], "sa-atp": [[0.12] * 10], "boa": [[0.1] * 10]})
    said = [plain(each.text) for each in findings.remarks(result, summarise(result)) if "median" in each.text]
    assert said == [
        "SA-ATP: its mean iteration is shorter than ATP's, but its median is 20 % longer: few iterations decide the mean.",
    ]


def test_a_policy_that_is_better_than_sa_atp_is_named() -> None:
    result = timed({"atp": [[1.0, 1.0]], "sa-atp": [[0.5, 0.5]], "falcon": [[0.3, 0.3]]})
    assert plain(findings.iteration_time(result)) == "Falcon: 70 % shorter iterations than ATP with no straggler"
    assert "of Falcon" in html.render(result)
    result = timed({"atp": [[0.1, 0.1]], "sa-atp": [[0.301, 0.301]], "falcon": [[0.3, 0.3]]})
    assert plain(findings.iteration_time(result)).startswith("Falcon: 200 % longer iterations than ATP")
