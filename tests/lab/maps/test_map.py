"""Maps: axes, which policy is the shortest, the same bytes again, sentences and pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.plans import small_plan_file
from hypothesis import given
from hypothesis import strategies as st

from sa_atp import experiment
from sa_atp.basics.errors import UserError
from sa_atp.lab.experiments.prepared import prepare
from sa_atp.lab.maps import sentences as said
from sa_atp.lab.maps.axes import NAMED, gradient_bits, parse, placed
from sa_atp.lab.maps.numbers import judged
from sa_atp.lab.maps.points import Wanted
from sa_atp.lab.plans.plan import JobPlan, Plan, RunPlan, SimPlan, StragglerPlan, TopologyPlan
from sa_atp.lab.runs import points

DOCS = Path(__file__).resolve().parents[3] / "docs"
FILES = ("map.json", "map.csv", "map.png", "map.svg")
RANDOM = Plan(
    job=JobPlan(model="resnet-50", model_scale=0.0001, batch_size=8, micro_batches=2, compute_us_per_sample=1000),
    straggler=StragglerPlan(pattern="random", slowdown_range=(2.0, 8.0)),
)


def wanted(plan: Plan, x: str, y: str, quantity: str = "iteration") -> Wanted:
    return Wanted(prepare(plan, backend="sim"), parse(x, "--x"), parse(y, "--y"), 1, quantity)


# --- axes -------------------------------------------------------------------------------------------------------------


@given(st.floats(1, 100))
def test_severity_is_the_mean_of_what_is_drawn(severity: float) -> None:
    axis = parse({"severity": [severity, 0]}, "x")
    span = axis.changed(RANDOM, severity, "plan").straggler.slowdown_range
    assert sum(span) / 2 == pytest.approx(severity)
    assert 1 <= span[0] <= span[1]


@given(st.floats(1, 50), st.floats(0, 1))
def test_the_static_share_leaves_the_lost_time_as_it_is(severity: float, share: float) -> None:
    axes = [(parse({"static": [share, 2]}, "y"), share), (parse({"severity": [severity, 0]}, "x"), severity)]
    found = placed(RANDOM, axes, "plan")
    static = 1 / min(found.job.speeds) - 1
    drawn = sum(found.straggler.slowdown_range) / 2 - 1
    assert static + drawn == pytest.approx(severity - 1, abs=1e-9)
    assert static == pytest.approx(share * (severity - 1), abs=1e-9)


@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_computing_over_sending_is_what_a_step_takes(ratio: float, tmp_path: Path) -> None:
    """Without stragglers a step computes the shard and sends the gradient; results come back while it is sent."""
    plan = Plan(
        run=RunPlan(policies=("atp",), steps=3, warm_up=1),
        topology=TopologyPlan(workers=2, delay_us=0),
        job=JobPlan(model="resnet-50", model_scale=0.002, batch_size=64, micro_batches=1, compute_us_per_sample=1000),
        straggler=StragglerPlan(pattern="none"),
        sim=SimPlan(network="flows"),
    )
    found = parse({"compute-to-send": [ratio, 100]}, "x").changed(plan, ratio, "plan")
    assert found.topology.link_mbps == pytest.approx(gradient_bits(plan) * ratio / 64_000)
    result = experiment.run(found, backend="sim", draw=False, progress=False, out=tmp_path / "out")
    mean = result.summary["policies"]["atp"]["iteration_time_s"]["mean"]
    assert mean == pytest.approx(0.064 * (1 + 1 / ratio), rel=0.06)  # the first window is shorter than a link carries


def test_workers_bring_their_lists_with_them() -> None:
    plan = Plan(job=JobPlan(speeds=(1.0, 0.5)), topology=TopologyPlan(workers=2), straggler=StragglerPlan(workers=(1,)))
    more = parse("workers=1,5", "x").changed(plan, 5, "plan")
    assert (more.topology.workers, more.job.speeds) == (5, (1.0, 0.5, 1.0, 0.5, 1.0))
    assert parse("workers=1,5", "x").changed(plan, 1, "plan").straggler.workers == (0,)


def test_slots_are_those_of_both_protocols() -> None:
    axis = parse("slots=16,32", "x")
    found = axis.changed(Plan(run=RunPlan(policies=("atp", "switchml"))), 16, "plan")
    assert (found.switch.slots, found.settings_of("switchml").slots) == (16, 16)
    assert axis.changed(RANDOM, 16, "plan").switch.slots == 16, "nothing is said to SwitchML, which does not run"


@pytest.mark.parametrize(
    ("network", "x", "runs_on"),
    [
        ("auto", "loss=0,0.01", "packets"),
        ("auto", "help.grade=steal,clone", "flows"),
        ("packets", "help.grade=steal,clone", "packets"),
    ],
)
def test_a_map_is_of_one_network(network: str, x: str, runs_on: str) -> None:
    """With loss anywhere, or as its plan says, all of it is of packets."""
    tasks = wanted(replace(RANDOM, sim=SimPlan(network=network)), x, "severity=1,2").tasks()
    assert {point.arguments["plan"]["sim"]["network"] for point in tasks.values()} == {runs_on}


# --- who wins ---------------------------------------------------------------------------------------------------------

TIMES = st.dictionaries(
    st.sampled_from(["atp", "sa-atp", "boa", "ps"]),
    st.lists(st.none() | st.floats(0.001, 1000), min_size=3, max_size=3),
    min_size=2,
)


@given(TIMES)
def test_the_best_is_the_shortest_of_those_that_have_a_time(times: dict[str, list[float | None]]) -> None:
    found = judged(times, "iteration")
    whole = {name: np.mean(of) for name, of in times.items() if None not in of}  # type: ignore[arg-type]
    if not whole:
        assert found["best"] is None
        return
    assert whole[found["best"]] == pytest.approx(min(whole.values()), abs=1e-6)
    assert found["best"] not in found["rivals"]
    assert set(found["rivals"]) < set(whole)
    assert (found["next"] is None) == (len(found["rivals"]) == len(whole) - 1)
    if found["next"] is not None:
        assert 0 < found["lead"] < 1
        assert all(
            whole[found["next"]] <= whole[name] + 1e-6 for name in set(whole) - {found["best"], *found["rivals"]}
        )


def test_a_difference_within_the_spread_over_seeds_is_not_clear() -> None:
    clear = judged({"atp": [1.0, 1.2, 1.1], "sa-atp": [0.5, 0.6, 0.55]}, "iteration")
    assert (clear["best"], clear["rivals"], clear["lead"]) == ("sa-atp", [], 0.5)
    spread = judged({"atp": [1.0, 0.5, 1.1], "sa-atp": [0.5, 0.6, 0.55]}, "iteration")
    assert (spread["best"], spread["rivals"], spread["next"]) == ("sa-atp", ["atp"], None)
    two = judged({"atp": [1.0, 1.2, 1.1], "sa-atp": [0.5, 0.6, 0.55], "boa": [0.5, 0.6, 0.551]}, "iteration")
    assert (two["best"], two["rivals"], two["next"], two["lead"]) == ("sa-atp", ["boa"], "atp", 0.5)
    same = judged({"atp": [1.0, 1.0, 1.0], "sa-atp": [1.0, 1.0, 1.0]}, "iteration")
    assert (same["best"], same["rivals"], same["lead"]) == ("atp", ["sa-atp"], None)
    assert judged({"atp": [1.0, 1.0, 1.0], "sa-atp": [0.98, 0.98, 0.98]}, "iteration")["rivals"] == []
    assert judged({"atp": [1.0, 1.0, 1.0], "sa-atp": [0.98, 0.98, 0.98]}, "accuracy")["rivals"] == ["atp"]
    gone = judged({"atp": [1.0, None], "sa-atp": [2.0, 2.0]}, "accuracy")
    assert (gone["best"], gone["next"], gone["against_baseline"]) == ("sa-atp", None, None)


def synthetic(winners: list[str | None], quantity: str = "iteration") -> dict[str, Any]:
    """A map of four columns on which these policies are half as long as the others; None: all are equal."""
    names = ["atp", "sa-atp", "sync-opt"]
    of = [{name: [0.5 if name == winner else 1.0] * 2 for name in names} for winner in winners]
    rows = len(winners) // 4
    return {
        "plan": "demo", "quantity": quantity, "target_accuracy": 0.9, "policies": names, "seeds": [1, 2], "steps": 4,
        "x": {"name": "severity", "title": "severity", "labels": ["1", "2", "4", "8"]},
        "y": {"name": "workers", "title": "number of workers", "labels": [str(n) for n in range(rows)]},
        "incomplete": {"sync-opt": [3, 4]}, "settings": {}, "sums_wrong": 0,
        "points": [{"x": 0, "y": 0, "times_s": times, **judged(times, quantity)} for times in of],
    }  # fmt: skip


def test_sentences_are_worked_out_from_the_numbers() -> None:
    found = synthetic([None, None, "sa-atp", "sa-atp", None, "sync-opt", "sa-atp", "sa-atp"])
    lines = said.sentences(found)
    assert lines[0] == "SA-ATP clearly has the shortest step in 4 of 8 points, Sync-opt in 1."
    assert lines[1].startswith("In 3 the difference between the shortest and another is within the spread over seeds")
    assert lines[1].endswith(": ATP, SA-ATP and Sync-opt.")
    assert lines[2] == (
        "SA-ATP is the shortest, or not clearly longer, in 7; elsewhere it is up to 100\u00a0% longer than the shortest "
        "(at severity 2, workers 1)."
    )
    assert lines[3] == "Of its points, SA-ATP has 4 of 4 points with severity 4 or more, 0 of 4 with less."
    assert lines[4].startswith(
        "The largest differences to the next policy that is clearly longer: SA-ATP is 50\u00a0% shorter than ATP at"
    )
    assert lines[5].startswith("Against ATP the shortest step is 0\u00a0% to 50\u00a0% shorter")
    assert lines[6] == "An update of Sync-opt has 3 of 4 shards, so its step is less work."
    assert not any("is less work" in line for line in said.sentences({**found, "quantity": "accuracy"}))
    none = synthetic([None, None, None, None])
    assert said.sentences(none)[0] == "No single policy clearly has the shortest step in any of 4 points."
    none["points"] = [{**point, **judged({"atp": [None], "sa-atp": [None]}, "accuracy")} for point in none["points"]]
    assert said.sentences({**none, "quantity": "accuracy"}) == [
        "In 4 of 4 points no policy has a time to 90 % accuracy with every seed."
    ]


# --- runs -------------------------------------------------------------------------------------------------------------


def run(plan: Path, out: Path, jobs: int) -> experiment.Map:
    axes = ("severity=1,6", {"topology.link_mbps": (10, 1000)})
    return experiment.map(plan, *axes, seeds=2, out=out, jobs=jobs, progress=False)


@pytest.mark.needs("matplotlib")
def test_the_same_seeds_give_the_same_bytes_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan_file(
        tmp_path,
        run={"policies": ["atp", "sa-atp", "boa"], "steps": 3, "warm_up": 1},
        topology={"workers": 3},
        straggler={"pattern": "random"},
    )
    first = run(plan, tmp_path / "one", 1)
    again = run(plan, tmp_path / "two", 2)
    contents = [[(folder / name).read_bytes() for name in FILES] for folder in (tmp_path / "one", tmp_path / "two")]
    assert contents[0] == contents[1]
    assert first.numbers["points"] == again.numbers["points"]
    assert first.problems == []
    assert first.numbers["sums_wrong"] == 0
    still, slow = first.numbers["points"][2:]
    assert (still["x"], still["y"], slow["x"]) == (1, 1000, 6)
    assert (still["best"], still["rivals"]) == ("atp", ["sa-atp", "boa"])
    assert slow["best"] == "sa-atp"
    assert slow["times_s"]["atp"][0] != slow["times_s"]["atp"][1]  # other stragglers with another seed

    kept = sorted((tmp_path / "one" / "points").glob("*.json"))
    assert len(kept) == 2 * 2 * 3 * 2
    kept[0].unlink()
    asked: list[str] = []
    compute = points.run

    def counted(left: Any, *more: Any, **options: Any) -> Any:
        asked.extend(point.name for point in left)
        return compute(left, *more, **options)

    monkeypatch.setattr(points, "run", counted)
    (tmp_path / "one" / "map.png").unlink()
    run(plan, tmp_path / "one", 1)
    assert len(asked) == 1
    assert [(tmp_path / "one" / name).read_bytes() for name in FILES] == contents[0]

    loaded = experiment.load_map(tmp_path / "one")
    assert loaded.sentences == first.sentences
    assert "severity, topology.link_mbps; 4 points" in repr(loaded)
    head, *rows = (tmp_path / "one" / "map.csv").read_text().splitlines()
    assert (head, len(rows)) == ("severity,topology.link_mbps,policy,seed,iteration_s", len(kept))
    assert "severity: slow-down of the straggler" in (tmp_path / "one" / "map.svg").read_text()
    with pytest.raises(UserError, match=r"map\.json: No such file"):
        experiment.load_map(tmp_path)


@pytest.mark.needs("torch", "sklearn")
def test_a_map_of_times_to_an_accuracy(tmp_path: Path) -> None:
    small = {
        "run.policies": ["atp", "sa-atp"], "run.steps": 2, "run.warm_up": 0, "topology.workers": 3,
        "job.model": "digits-cnn", "job.model_scale": 1.0, "job.batch_size": 8, "job.micro_batches": 2,
    }  # fmt: skip
    axes = ("severity=1,4", "run.target_accuracy=0.05,1.0")
    found = experiment.map(
        "map", *axes, small, quantity="accuracy", seeds=1, jobs=1, out=tmp_path, draw=False, progress=False
    )
    reached, never = found.numbers["points"][:2], found.numbers["points"][2:]
    assert [point["best"] for point in never] == [None, None]
    assert all(point["times_s"]["atp"][0] > 0 for point in reached)
    assert reached[0]["rivals"] == ["sa-atp"]
    assert found.sentences[0] == "In 2 of 4 points no policy has a time to accuracy with every seed."


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("paper", [False, True])
def test_every_kind_of_point_is_drawn(paper: bool, tmp_path: Path) -> None:
    found = synthetic([None, "atp", "sa-atp", "sync-opt"] * 2)
    found["points"][1] |= judged({"atp": [None]}, "accuracy")
    shown: Any = experiment.Map(found, tmp_path).figure(paper=paper)
    shown.draw_without_rendering()
    legend = shown.axes[0].get_legend().get_window_extent()
    assert 0 <= legend.x0 <= legend.x1 <= shown.bbox.width, "the legend is cut off"
    drawn = [patch for patch in shown.axes[0].patches if patch.get_width()]
    assert len(drawn) == 8 + 2  # cells, and hatching where all are equal
    texts = [text.get_text() for text in shown.axes[0].texts]
    assert texts.count("≈") == 2
    assert texts.count("–") == 1
    assert "50" in texts


@pytest.mark.needs("pandas")
def test_a_table_of_times(tmp_path: Path) -> None:
    found = synthetic(["atp", "sa-atp", None, None])
    table = experiment.Map(found, tmp_path).to_pandas()
    assert list(table.columns) == ["severity", "workers", "policy", "seed", "iteration_s"]
    assert len(table) == 4 * 3 * 2


def test_named_axes_have_values_of_their_own() -> None:
    assert all(len(parse(name, "--x").values) == 8 for name in NAMED)
    assert parse("help.grade=steal,clone", "--x").values == ("steal", "clone")
    assert parse("straggler.slowdown_range=[1,2],[2,4]", "--x").values == ([1, 2], [2, 4])
    assert json.dumps(parse("loss=0,0.01", "--x").label(0.01), ensure_ascii=False) == '"1\u00a0%"'


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in (DOCS / "maps").glob("*.json")))
def test_the_sentences_of_the_page_are_those_of_its_numbers(name: str) -> None:
    page = (DOCS / "map.md").read_text()
    shown = page.partition(f"<!-- sentences: {name} -->")[2].partition(f"<!-- end of {name} -->")[0].strip()
    found = json.loads((DOCS / "maps" / f"{name}.json").read_text())
    assert shown.splitlines() == [f"- {sentence}" for sentence in said.sentences(found)]
    assert [{**point, **judged(point["times_s"], found["quantity"])} for point in found["points"]] == found["points"]
    assert found["sums_wrong"] == 0
    assert (DOCS / "maps" / f"{name}.png").stat().st_size < 60_000
