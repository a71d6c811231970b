"""`sa-atp reproduce`: determinism, resumption, and sentences on numbers that are not reached."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import Said

from sa_atp.basics.errors import SaAtpError
from sa_atp.lab.reproduce import page as reproduce_page
from sa_atp.lab.reproduce import protocols, reproduce
from sa_atp.lab.reproduce.points import (
    DIVERGED,
    Found,
    Sample,
    find,
    measure,
    policies_of,
    settings_of,
    tuning_points,
    values,
)
from sa_atp.lab.reproduce.settings import DIGITS, FALCON, Claim, Setting, headlines, implied, with_
from sa_atp.lab.runs import points, tuning
from sa_atp.lab.runs.points import Point

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = (reproduce.PAGE, reproduce.NUMBERS, reproduce.FIGURE)


def quick() -> reproduce.Wanted:
    """One headline, one setting, few steps."""
    asked = reproduce.wanted("trio-ml", seed=1, seeds=1, steps=4)
    headline = asked.headlines[0]
    claims = tuple(dataclasses.replace(claim, settings=claim.settings[:1]) for claim in headline.claims)
    return dataclasses.replace(asked, headlines=(dataclasses.replace(headline, claims=claims),))


def test_the_committed_numbers_are_those_of_this_version() -> None:
    """Where this fails: sa-atp reproduce --out docs, and the maps (docs/map.md) are outdated, too."""
    claim = json.loads((DOCS / reproduce.NUMBERS).read_text())["headlines"][0]["claims"][0]
    said = next(each for each in claim["settings"] if each["name"].startswith("another one of 4"))
    setting = next(each for each in settings_of(headlines()[0]) if each.name == said["name"] and not each.tuned)
    seed = said["runs"][0]["seed"]
    found = measure({"plan": setting.plan(["atp", "sa-atp"], seed, None).as_dict(), "where": "here"})
    for policy, numbers in found.items():
        assert said["runs"][0][policy]["helped"] == numbers["helped"]
        assert said["runs"][0][policy]["iteration_s"] == pytest.approx(numbers["iteration_s"], abs=1e-6)


def test_the_committed_table_of_protocols_is_that_of_this_version() -> None:
    """Where this fails: sa-atp reproduce --out docs, as above."""
    said = json.loads((DOCS / reproduce.NUMBERS).read_text())
    beside = said["protocols"]
    assert (DOCS / reproduce.PAGE).read_text().endswith("\n\n" + protocols.section(beside))
    slots = beside["memory"]["switchml"]["slots"]
    assert beside["memory"] == protocols.memory(slots)
    assert beside["memory"]["switchml"]["versions_of_a_slot"] == 2
    assert protocols.sums_wrong(beside) == said["sums_wrong"] == 0
    setting, there = protocols.settings(slots)[0], beside["stragglers"][0]
    found = measure({"plan": setting.plan(["switchml"], said["seeds"][0]).as_dict(), "where": "here"})["switchml"]
    assert there["name"] == setting.name
    assert there["switchml"]["iteration_s"][0] == pytest.approx(found["iteration_s"], abs=1e-6)


@pytest.mark.needs("matplotlib")
def test_protocols_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without headlines and figure, with the window that was best with the tuning seed."""
    first = protocols.settings(8)[:1]
    monkeypatch.setattr(protocols, "settings", lambda slots: first)
    monkeypatch.setattr(protocols, "REQUEST", dataclasses.replace(protocols.REQUEST, bytes=50_000))
    monkeypatch.setattr(protocols, "LOSSES", (0.0,))
    monkeypatch.setattr(protocols, "WINDOWS", (8, 128))
    asked = reproduce.wanted("protocols", seed=1, seeds=1, steps=4)
    numbers, written = reproduce.run(asked, tmp_path, Said())
    assert [path.name for path in written] == [reproduce.PAGE, reproduce.NUMBERS]
    assert numbers == json.loads(written[1].read_text())
    beside = numbers["protocols"]
    assert written[0].read_text() == protocols.section(beside)
    assert (numbers["headlines"], numbers["sums_wrong"]) == ([], 0)
    tuned = beside["tuning"]["goodput_mbps"]
    assert tuned["8"] > tuned["128"], "a window of 128 packets is empty: a tensor has 49"
    assert beside["memory"]["switchml"]["slots"] == 8
    slow = beside["stragglers"][0]
    times = {policy: slow[policy]["iteration_s"][0] for policy in protocols.POLICIES}
    assert times["sa-atp"] < 0.5 * times["atp"]
    assert times["switchml"] == pytest.approx(times["atp"], rel=0.05)


def measured(
    iteration: float, to_accuracy: float | None = None, steps: int | None = None, bound: float = 0.1
) -> dict[str, Any]:
    return {
        "iteration_s": iteration,
        "sample_s": iteration / 64,
        "fluid_bound_s": bound,
        "accuracy": 0.9,
        "time_to_accuracy_s": to_accuracy,
        "steps_to_accuracy": steps,
        "helped": 0,
        "sums_checked": 1,
        "sums_wrong": 0,
    }


SETTING = Setting("one is slow", {"job": {"model": "digits-cnn"}})


def claim_of(quantity: str = "iteration", *, paper: float | None = 0.57, is_speedup: bool = False) -> Claim:
    return Claim("sa-atp", "atp", paper, quantity, (SETTING,), is_speedup=is_speedup)


@pytest.mark.needs("matplotlib")
def test_the_same_seed_gives_the_same_bytes_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    for name, jobs in (("one", 1), ("two", 2)):
        reproduce.run(quick(), tmp_path / name, said, jobs=jobs)
    assert said.lines[:2] == ["trio-ml (1 of 1): 1 run", "1 of 1 runs"]
    contents = [[(tmp_path / name / page).read_bytes() for page in PAGES] for name in ("one", "two")]
    assert contents[0] == contents[1]

    def computes(*_: object, **__: object) -> None:
        raise AssertionError("it was there")

    monkeypatch.setattr(points, "run", computes)
    (tmp_path / "one" / reproduce.PAGE).unlink()
    numbers, _ = reproduce.run(quick(), tmp_path / "one", said)
    assert [(tmp_path / "one" / page).read_bytes() for page in PAGES] == contents[0]
    assert numbers == json.loads((tmp_path / "one" / reproduce.NUMBERS).read_text())
    assert numbers["sums_wrong"] == 0
    assert [claim["ours"]["runs"] for claim in numbers["headlines"][0]["claims"]] == [1, 1]


def test_a_run_that_fails_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_atp.lab.reproduce.points.WORK", "nowhere:nothing")
    with pytest.raises(SaAtpError, match="trio-ml: each of 4 workers pauses"):
        reproduce.run(quick(), tmp_path, Said())


def test_plans_of_all_headlines_are_good() -> None:
    asked = reproduce.wanted(None, 1, 2, None)
    for headline in asked.headlines:
        for setting in settings_of(headline):
            plan = setting.plan(policies_of(headline, setting), asked.seed)
            assert plan.run.backend == "sim"
    assert asked.seed not in asked.counted
    assert [round(100 * paper, 2) for paper in FALCON.values()] == [61.83, 55.19, 38.92, 23.68]


def test_each_policy_runs_with_the_rate_that_was_tuned_for_it() -> None:
    falcon = next(headline for headline in headlines() if headline.name == "falcon")
    best = {"falcon": 0.2, "flexrr": 0.05, "sync-opt": 0.1, "consgd": 0.4, "dynsgd": 0.025}
    asked: list[Point] = []

    def compute(wanted: Sequence[Point]) -> dict[str, Any]:
        """A policy takes longer with another rate than its best."""
        asked.extend(wanted)
        found = {}
        for point in wanted:
            plan = point.arguments["plan"]
            (policy,) = plan["run"]["policies"]
            rate = plan["job"]["learning_rate"] if policy == "sync-opt" else plan[policy]["learning_rate"]
            parallel = plan["job"]["parallel"]
            fit = {"consgd": {4: 0.5}, "sync-opt": {8: 0.25}}.get(policy, {}).get(parallel, float(parallel))
            steps = 8 if policy == "falcon" else 10
            found[point.name] = {policy: measured(0.1, fit + abs(rate - best[policy]), steps)}
        return found

    claims = find(falcon, [2, 3], 1, None, compute)
    assert len({point.name for point in asked}) == len(asked)
    tried = len(tuning_points(falcon, 1, None))
    assert tried == 2 * len(best) * len(tuning.GRID)
    parallel = 2 * (len(best) - 1) * 3
    assert {point.arguments["plan"]["run"]["seed"] for point in asked[: tried + parallel]} == {1}
    assert {point.arguments["plan"]["run"]["seed"] for point in asked[tried + parallel :]} == {2, 3}
    assert {point.arguments["plan"]["job"]["parallel"] for point in asked[:tried]} == {1}
    for claim, found in zip(falcon.claims, claims, strict=True):
        assert all(rate == best[policy] for each in found for policy, rate in each.rates.items())
        assert [sample.ratio("accuracy") for each in found for sample in each.samples] == [1.0] * 4
        assert {sample.fewest_steps for each in found for sample in each.samples} == {8}
        at_a_time, ratio = {"consgd": (4, 2.0), "sync-opt": (8, 4.0)}.get(claim.baseline, (1, 1.0))
        assert {each.parallel for each in found} == {at_a_time}
        assert [sample.ratio("accuracy") for each in found for sample in each.at_best] == [ratio] * 4


def test_the_spread_is_of_all_runs() -> None:
    samples = tuple(Sample(n, measured(0.1 * n), measured(1.0)) for n in (2, 3, 8))
    found = [Found(SETTING, samples, {})]
    assert values(claim_of(), found) == pytest.approx([0.8, 0.7, 0.2])
    said = reproduce_page.verdict(claim_of(), found)
    assert said.startswith("The paper's 57\u00a0% is reached in 2 of 3 runs (one is slow).")
    assert "Ours: 20\u00a0% to 80\u00a0%, median 70\u00a0%." in said
    assert reproduce_page.why(claim_of(), found[0]) is None


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (
            0.6,
            "No policy could reach 57\u00a0% here: at the fluid bound (all work shared by speed) it would be 40\u00a0%.",
        ),
        (0.2, "it would be 80\u00a0%, but a step takes 4.00 times the bound."),
    ],
)
def test_reasons_for_longer_steps(bound: float, says: str) -> None:
    found = Found(SETTING, (Sample(2, measured(0.8, bound=bound), measured(1.0)),), {})
    assert "not reached" in reproduce_page.verdict(claim_of(), [found])
    assert says in str(reproduce_page.why(claim_of(), found))


def test_reasons_for_longer_training() -> None:
    """A time to accuracy is bounded by the fewest steps of any policy, each as long as the fluid bound."""
    claim = claim_of("accuracy", paper=0.6)
    policy, baseline = measured(0.2, 4.0, 20), measured(1.0, 5.0, 5)
    possible = Found(SETTING, (Sample(2, policy, baseline, 5),), {})
    assert str(reproduce_page.why(claim, possible)).endswith(
        "in the fewest steps that any policy needed here (5), it would be 90\u00a0%, but a step takes 2.00 times the "
        "bound, and SA-ATP needs 20 steps."
    )
    impossible = Found(SETTING, (Sample(2, measured(0.2, 4.0, 20, bound=0.19), baseline, 12),), {})
    assert "No policy could reach 60\u00a0% here" in str(reproduce_page.why(claim, impossible))
    assert "it would be 54\u00a0%." in str(reproduce_page.why(claim, impossible))


def test_what_another_paper_implies() -> None:
    """(1 - 0.5746) / (1 - 0.115) of FlexRR's time, (1 - 0.248) / (1 - 0.115) of ConSGD's."""
    assert [round(implied(name), 4) for name in ("flexrr", "consgd")] == [0.5193, 0.1503]
    claim = dataclasses.replace(claim_of("accuracy", paper=implied("flexrr")), said_by="EP4DDL", at_best=True)
    sample = Sample(2, measured(0.2, 4.0, 20), measured(1.0, 5.0, 5), 5)
    fair = Sample(2, measured(0.2, 4.0, 20), measured(1.0, 4.0, 5), 5)
    said = reproduce_page.verdict(claim, [Found(SETTING, (sample,), {}, 8, (fair,))])
    assert said.startswith("EP4DDL's 51.93\u00a0% is not reached.")
    assert said.endswith("With ATP at its best (8 micro-batches at a time): 0\u00a0% to 0\u00a0%, median 0\u00a0%.")


def test_runs_that_miss_the_accuracy_are_named_and_not_counted() -> None:
    samples = (
        Sample(2, measured(0.2, 4.0, 20), measured(1.0)),
        Sample(3, measured(0.2, 1.0, 5), measured(1.0, 5.0, 5)),
    )
    claim = claim_of("accuracy", paper=1.8, is_speedup=True)
    said = reproduce_page.verdict(claim, [Found(SETTING, samples, {})])
    assert "in all runs" in said
    assert said.endswith("Of 2 runs, ATP in 1 did not reach the accuracy in its steps; the spread leaves these out.")
    assert reproduce_page.verdict(claim, [Found(SETTING, samples[:1], {})]).startswith("No run reached the accuracy.")


def test_a_training_that_diverges_is_a_result() -> None:
    """Its learning rate is not chosen; the other runs go on."""
    tables = with_(DIGITS, run={"steps": 6, "warm_up": 0}, job={"micro_batches": 1, "batch_size": 8})
    plan = tuning.with_rate(Setting("fast", tables).plan(["ssp"], 1), "ssp", 100.0)
    found = measure({"plan": plan.as_dict(), "where": "fast"})
    assert found == {"ssp": DIVERGED}
