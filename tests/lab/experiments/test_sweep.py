"""Sweeps from Python: means with their intervals, as tables and figures, and the same from a folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.plans import small_plan_file

from sa_atp import experiment
from sa_atp.basics.errors import UserError


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> experiment.Sweep:
    """Seeds, which draw the stragglers of each step."""
    folder = tmp_path_factory.mktemp("sweep")
    plan = small_plan_file(folder, run={"policies": ["atp", "sa-atp"], "steps": 2})
    return experiment.sweep(
        plan,
        {"run.seed": range(1, 3)},
        {"straggler.pattern": "random"},
        repetitions=2,
        jobs=2,
        out=folder / "out",
        draw=False,
        progress=False,
    )


def test_means_have_intervals(swept: experiment.Sweep) -> None:
    assert (swept.key, len(swept.points), swept.problems) == ("run.seed", 2, [])
    means = swept.means()
    assert [(mean.value, mean.policy) for mean in means] == [
        (value, policy) for value in (1, 2, "all") for policy in ("atp", "sa-atp")
    ]
    assert {mean.repetitions for mean in means} == {2}
    first, second, over_all = (mean for mean in means if mean.policy == "atp")
    assert first.mean != second.mean
    assert over_all.mean == pytest.approx((first.mean + second.mean) / 2)  # type: ignore[operator]
    assert over_all.low < over_all.high  # type: ignore[operator]
    assert json.loads(json.dumps(swept.numbers)) == json.loads((swept.folder / "sweep.json").read_text())
    assert swept.points[0][1].plan.run.seed == 1
    assert not (swept.folder / "sweep.png").exists()  # nothing was to be drawn


@pytest.mark.needs("pandas")
def test_a_table_of_means(swept: experiment.Sweep) -> None:
    table = swept.to_pandas()
    assert list(table.columns) == ["value", "policy", "quantity", "mean", "low", "high", "repetitions"]
    assert len(table) == 6
    shares = swept.to_pandas("aggregation")
    assert set(shares.quantity) == {
        "share of sums that the switch completed", "packets added by the server, per fragment sent",
    }  # fmt: skip


@pytest.mark.needs("matplotlib")
def test_figures_over_the_values(swept: experiment.Sweep) -> None:
    shown: Any = swept.figure()
    assert shown._repr_png_().startswith(b"\x89PNG")
    assert len(swept.figure("aggregation").axes) == 2
    assert list(swept.figures) == ["iteration-time", "aggregation", "accuracy", "fairness"]
    with pytest.raises(UserError, match="figure 'speed': expected one of 'iteration-time'"):
        swept.figure("speed")


def test_a_sweep_is_loaded_from_its_folder(swept: experiment.Sweep, tmp_path: Path) -> None:
    again = experiment.load_sweep(swept.folder)
    assert again.means() == swept.means()
    assert repr(again) == repr(swept)
    assert experiment.load(swept.folder / "points" / "0-1").summary == swept.points[0][1].summary
    with pytest.raises(UserError, match=r"the folder of a sweep: experiment\.load_sweep reads it"):
        experiment.load(swept.folder)
    with pytest.raises(UserError, match=r"not the folder of a sweep: sweep\.json: No such file"):
        experiment.load_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(UserError, match="not what a sweep has written"):
        experiment.load_sweep(tmp_path)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (None, "the plan has no sweep: name a key and its values"),
        ({"straggler.slowdown": [1], "topology.workers": [2]}, "expected one key and its values"),
        ({"straggler.slowdown": 2}, "straggler.slowdown = 2: expected several values, in a list"),
        ({"straggler.slowdown": []}, "straggler.slowdown = []: expected at least one value"),
        ({"straggler.slow": [1]}, "sweep.key = 'straggler.slow': expected a key of this file"),
        ({"nothing.at_all": [1]}, "sweep.key = 'nothing.at_all'"),
        ({"sweep.figure": ["fairness"]}, "sweep.key = 'sweep.figure'"),
        ({"straggler.slowdown": [0.5]}, "straggler.slowdown = 0.5: expected 1.0 to 1000.0"),
    ],
)
def test_what_is_wrong_with_a_sweep(values: Any, says: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment.sweep("demo", values, progress=False)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
