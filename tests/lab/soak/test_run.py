"""The soak command: a quick run, in one process and in several, and its reports of failures."""

import gc
import json
from typing import Any

import pytest

from sa_atp.cli import main
from sa_atp.lab.soak import run as soak
from sa_atp.lab.soak.run import WARM_LOTS, SoakResult
from sa_atp.protocol.server.sums import SumStore

from .worlds import small

QUICK = 40  # worlds
FAILING = ["soak", "--first", "17", "--seeds", "2"]  # see the mutant below


def test_a_quick_soak() -> None:
    """The first worlds that `sa-atp soak` runs; a failure prints the command that repeats it."""
    told: list[int] = []
    result = soak.soak(0, QUICK, on_progress=lambda found: told.append(found.seeds))
    assert not result.is_bad, json.dumps(result.as_dict(), indent=1)
    assert (result.seeds, told) == (QUICK, [20, 40])
    assert result.counts["sums"] > 100
    assert result.worlds_alive == 0


def test_it_ends_when_the_time_is_up() -> None:
    result = soak.soak(0, 10_000, minutes=1e-6)
    assert result.seeds < 20


def test_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "LOT", 2)
    one, two = (soak.soak(40, 5, jobs=jobs).as_dict() for jobs in (1, 2))
    for found in (one, two):
        for name in ("elapsed_s", "memory_mb"):  # which depend on the machine
            del found[name]
    assert one == two
    assert one["seeds"] == 5


def test_memory_that_grows_is_bad() -> None:
    result = SoakResult(0)
    for lot in range(3 * WARM_LOTS):
        result.take(SoakResult(0, 20, memory_mb={1: [100.0 + 20.0 * max(0, lot - WARM_LOTS + 1)]}))
    assert result.growth_mb == pytest.approx(20.0 * 2 * WARM_LOTS)
    assert result.is_bad
    assert result.problems == ["memory has grown by 400 MB, more than 150"]


def test_worlds_that_stay_in_memory_are_bad() -> None:
    result = SoakResult(0)
    result.take(SoakResult(0, 20, worlds_alive=2))
    assert result.problems == ["2 worlds are still in memory after they ended"]


# --- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter server that adds 1 to every sum that it completes."""
    merge = SumStore._merge

    def off_by_one(self: SumStore, page: Any, at: Any, *arguments: Any) -> Any:
        found = merge(self, page, at, *arguments)
        page.lanes[at[found == 1], 0] += 1
        return found

    monkeypatch.setattr(SumStore, "_merge", off_by_one)
    monkeypatch.setattr(soak, "draw", lambda seed: small(ranks=2, seed=seed, aggregates=False))


def test_repeated_worlds_take_no_more_memory() -> None:
    """The memory of a run does not grow with the number of worlds."""
    objects = []
    for _ in range(3):
        soak.run_lot(0, 6, None, shrinks=False)
        objects.append(len(gc.get_objects()))
    assert objects[2] <= objects[1] + 50  # the first time loads what is then kept; pytest has some of its own


def test_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seeds", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 worlds in ")
    assert out.endswith("nothing failed\n")
    assert "running worlds" in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seeds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"], found["problems"]) == (3, [], [])
    assert found["memory_mb"]["last"] > 0
    assert len(found["longest"]) == 3


def test_worlds_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--list", "--first", "5", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("seed")] == ["seed 5", "seed 6"]
    assert main(["soak", "--list", "--first", "5", "--seeds", "2", "--json"]) == 0
    assert [world["seed"] for world in json.loads(capsys.readouterr().out)["worlds"]] == [5, 6]


@pytest.mark.usefixtures("mutant")
def test_a_world_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the shrunk world and its last packets; the printed command repeats this output exactly."""
    assert main(FAILING) == 1
    out = capsys.readouterr().out
    assert out.startswith("seed 17 FAILED: sum: job 0, sum 0, rank ")
    assert "  again: sa-atp soak --first 17 --seeds 1\n" in out
    assert "  the smallest world found that fails in this way:\n    network: one switch" in out
    assert "1 rank with 1 contribution each; 1 sum of values: 1 " in out
    assert "  its last packets:\n" in out
    assert "RESULT" in out.partition("its last packets")[2]
    assert main(["soak", "--first", "17", "--seeds", "1"]) == 1
    again = capsys.readouterr().out
    assert again.partition("1 world in ")[0] == out.partition("seed 18 FAILED")[0]


@pytest.mark.usefixtures("mutant")
def test_a_world_that_fails_as_json_and_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAILING, "--json", "--no-shrink"]) == 1
    found = json.loads(capsys.readouterr().out)
    failure = found["failures"][0]
    assert failure["what"] == "sum"
    assert failure["shrunk"]["seed"] == failure["seed"]
    assert failure["transcript"]
