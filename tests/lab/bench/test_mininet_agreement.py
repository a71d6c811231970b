"""The comparison of the simulator with Mininet: its settings, and its page."""

from pathlib import Path

import pytest
from helpers.committed import DOCS
from helpers.needs import MININET

from sa_atp.basics.errors import UserError
from sa_atp.lab.agreement.mininet import SETTINGS, MininetAgreement, compare, lines, main
from sa_atp.lab.runs.progress import Progress

PLANS = DOCS.parent / "topologies"
PLAN = """
[run]
steps = 4
policies = ["gloo", "atp"]
backend = "mininet"
[topology]
workers = 2
link_mbps = 20
[job]
model = "resnet-50"
model_scale = 0.001
batch_size = 8
micro_batches = 4
compute_us_per_sample = 10000
[straggler]
pattern = "none"
"""


def test_the_document_has_all_settings_in_their_order() -> None:
    table = (DOCS / "simulator.md").read_text().split("<!-- agreement -->")[1].split("<!-- end")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if "%" in line]
    assert list(dict.fromkeys(rows)) == list(SETTINGS)


def test_a_row_says_the_median_and_the_spread() -> None:
    *_, line = lines([MininetAgreement("a plan", "atp", 0.11, (0.09, 0.1, 0.13))])
    assert line == "| a plan | atp | 110.0 | 100.0 (90 to 130) | +10.0 % |"


@pytest.mark.parametrize(("arguments", "problem"), [(["moon"], "'moon'"), (["--repeat", "0"], "--repeat 0")])
def test_bad_arguments_are_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        main(arguments)


@MININET
def test_a_plan_runs_on_both_with_the_policies_that_both_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(PLAN)
    monkeypatch.setitem(SETTINGS, "small, fewer steps", ("run.steps=3", "run.warm_up=1"))
    (row,) = compare(tmp_path, ["small, fewer steps"], 1, Progress())
    assert row.policy == "atp"
    computing_s = 8 * 0.01
    assert row.simulated_s > computing_s
    assert min(row.mininet_s) > computing_s


@pytest.mark.parametrize("name", SETTINGS)
def test_its_plans_are_there(name: str) -> None:
    assert (PLANS / f"{name.split(',', maxsplit=1)[0].split(maxsplit=1)[0]}.toml").exists()
