"""`sa-atp explain-help`: projections from a run's log beside its records."""

import itertools
import json
from pathlib import Path

import pytest

from sa_atp.cli import main
from sa_atp.lab import report
from sa_atp.lab.backends import simulated
from sa_atp.lab.plans import plan_files
from sa_atp.lab.report import help_step
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import RunResult

PLAN = """
[run]
steps = 4
backend = "sim"
policies = ["sa-atp"]
[topology]
workers = 3
[switch]
lanes = 64
[job]
model = "resnet-50"
model_scale = 0.0001
batch_size = 8
micro_batches = 8
compute_us_per_sample = 10000
[straggler]
pattern = "constant"
workers = [2]
slowdown = 4.0
"""
STEP = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    plan = plan_files.parse(PLAN, "here")
    runs = simulated.run(plan, Progress(), log=found / "log")
    report.write_data(RunResult(plan, "here", "sim", "embedded", {}, runs), found)
    return found


def explained(folder: Path, step: int = STEP) -> help_step.HelpStep:
    return help_step.explain(report.load(folder), folder, step, None, 0, None)


@pytest.mark.parametrize("step", range(4))
def test_every_piece_has_one_who_computed_it_first(folder: Path, step: int) -> None:
    found = explained(folder, step)
    for shard in found.shards:
        assert sorted(m for pieces in shard.computed_by.values() for m in pieces) == list(range(8))
    for rank in found.ranks:
        mine = [(shard.shard, shard.computed_by.get(rank.rank, [])) for shard in found.shards]
        assert rank.computed == sum(len(pieces) for shard, pieces in mine if shard == rank.rank)
        assert rank.helped == sum(len(pieces) for shard, pieces in mine if shard != rank.rank)


def test_lots_are_what_helpers_computed(folder: Path) -> None:
    found = explained(folder)
    for rank in found.ranks:
        given = sorted(
            (d.shard, m)
            for d in found.decisions
            if d.rank == rank.rank and d.shard not in (None, rank.rank)
            for m in d.micro_batches
        )
        computed = [s.computed_by.get(rank.rank, []) + s.copied_by.get(rank.rank, []) for s in found.shards]
        assert given == sorted(
            (shard, m) for shard, pieces in enumerate(computed) if shard != rank.rank for m in pieces
        )
    assert found.ranks[2].helped == 0 < found.ranks[0].helped


def test_projections_come_true_where_nothing_changes(folder: Path) -> None:
    found = explained(folder)
    for rank in found.ranks:
        assert rank.done_ms == pytest.approx(rank.real_ms, abs=2.0)
    assert found.ranks[2].first_done_ms < 8 * found.ranks[2].micro_batch_ms, (
        "it was advised to hold less than its shard"
    )
    last = found.decisions[-1]
    assert last.step_end_ms == pytest.approx(found.end_ms, abs=2.0)
    for rank in found.ranks:
        spans = rank.projected
        assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("step", range(4))
def test_the_best_plan_ends_when_the_step_does_where_nothing_is_left_to_plan(step: int, folder: Path) -> None:
    asked = [d for d in explained(folder, step).decisions if d.asked not in ("revocation", "call")]
    assert any(d.plan_end_ms == d.step_end_ms for d in asked)
    assert all(d.plan_end_ms > 0 for d in asked)


@pytest.mark.needs("matplotlib")
def test_what_is_printed_and_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-help", str(folder), str(STEP)]) == 0
    said = capsys.readouterr()
    assert f"Step {STEP} of sa-atp" in said.out
    assert "offers to help, gets" in said.out
    picture = folder / "figures" / f"help-sa-atp-{STEP}.png"
    assert said.err == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["explain-help", str(folder), str(STEP), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["9"], "step 9: the run of sa-atp has no such step: expected one from 0 to 3"),
        (["1", "--policy", "sa-apt"], "--policy sa-apt: expected one with help: sa-atp (did you mean sa-atp?)"),
        (["1", "--repetition", "1"], "--repetition 1: expected one from 0 to 0"),
        (["1", "--log", "NONE"], "there is no log of the parameter server"),
        (["1", "--picture", "a.gif"], "--picture a.gif: expected a name that ends in .png, .svg, .pdf"),
    ],
)
def test_what_is_not_there(words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-help", str(folder), *words]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
