"""The program of examples/own_aggregation: its sums are right, and a run says so if they are not."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.peers import LANES, summed, world_of
from helpers.plans import small_plan
from hypothesis import given
from hypothesis import strategies as st

from sa_atp.basics.arrays import Values
from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import cache_folder
from sa_atp.lab import policies
from sa_atp.lab.backends import local, simulated
from sa_atp.lab.peers.peer import Peer
from sa_atp.lab.plans import plan_files
from sa_atp.lab.plans.plan import with_lanes
from sa_atp.lab.policies import PeerPolicy
from sa_atp.lab.runs.progress import Progress
from sa_atp.lab.runs.records import PolicyRun
from sa_atp.switches import artefacts
from sa_atp.switches.embedded.pipeline import Pipeline

FILE = Path(__file__).resolve().parents[3] / "examples/own_aggregation/own_aggregation.py"
BOTH: dict[str, Any] = {"run": {"policies": ["atp", "own"], "steps": 2}, "topology": {"workers": 3}}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[PeerPolicy]]:
    """The example's policy, registered as a user would, so that other processes find it."""
    monkeypatch.setenv(policies.OWN, "")  # restored after the test, whatever is registered
    found = type(policies.register(vars(policies._from_file(FILE))["OwnPolicy"]))
    assert issubclass(found, PeerPolicy)
    yield found
    policies.forget(found.name)


@pytest.fixture(scope="module")
def peer() -> Peer:
    found: Peer = vars(policies._from_file(FILE))["OwnAggregation"]()
    return found


@pytest.fixture(scope="module")
def pipeline(peer: Peer) -> Pipeline:
    return Pipeline.from_file(peer.program(LANES).json_path, cache=cache_folder())


@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 8),
    sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=3),
)
def test_sums_are_those_of_the_reference(
    peer: Peer, pipeline: Pipeline, seed: int, workers: int, sizes: list[int]
) -> None:
    world = world_of(peer, pipeline, workers, seed)
    for size in sizes:
        rng = np.random.default_rng(seed)
        parts: list[Values] = [rng.standard_normal(size).astype(np.float32) for _ in range(workers)]
        right = peer.reference(parts, LANES)
        assert all(np.array_equal(found, right) for found in summed(world, parts))
        assert np.allclose(right, np.sum(parts, axis=0, dtype=np.float64), atol=workers * 2.0**-20)


def test_values_that_do_not_fit(peer: Peer, pipeline: Pipeline) -> None:
    world = world_of(peer, pipeline, 2)
    for value in (1024.0, np.nan):
        with pytest.raises(UserError, match=r"^rank 0: a value of 2048 / 2 or more does not fit$"):
            world.workers[0].all_reduce(np.array([value], np.float32))


def run_simulated(*overrides: str) -> list[PolicyRun]:
    plan = plan_files.parse(small_plan(**BOTH), "here", ['run.backend="sim"', *overrides])
    return simulated.run(plan, Progress())


@pytest.mark.usefixtures("own")
def test_it_runs_beside_others_in_virtual_time() -> None:
    runs = run_simulated("network.loss=0.01")
    assert {(run.policy, run.sums_checked, run.sums_wrong) for run in runs} == {("atp", 6, 0), ("own", 6, 0)}
    (counted,) = [run.fragments for run in runs if run.policy == "own"]
    assert counted["sent"] > 100 > counted["retransmitted"] > 0


def test_a_source_that_was_not_compiled_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FILE.parent, tmp_path / "mine")
    source = tmp_path / "mine" / "own_aggregation.p4"
    for newer_by_s, said in ((10, ""), (100, "own_aggregation.p4 has changed since this was compiled")):
        folder = tmp_path / "mine" / "compiled"
        now_s = (folder / "own_aggregation.json").stat().st_mtime
        os.utime(source, (now_s + newer_by_s,) * 2)
        artefacts._source_beside.cache_clear()
        artefacts.from_folder(folder)
        found = capfd.readouterr().err
        assert said in found
        assert bool(found) == bool(said)


def test_a_run_counts_sums_that_are_not_the_reference(own: type[PeerPolicy], monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks have the same sum, and it is not the right one."""

    def half(self: Peer, parts: Sequence[Values], lanes: int) -> Values:
        return np.asarray(np.sum(parts, axis=0) / 2, np.float32)

    monkeypatch.setattr(type(own.peer), "reference", half)
    assert [run.sums_wrong for run in run_simulated() if run.policy == "own"] == [6]


@pytest.mark.usefixtures("own")
def test_it_runs_in_processes(tmp_path: Path) -> None:
    plan = with_lanes(plan_files.parse(small_plan(**BOTH), "here", ['run.backend="local"']))
    runs = local.run(plan, tmp_path, Progress())
    assert {(run.policy, run.sums_checked, run.sums_wrong) for run in runs} == {("atp", 6, 0), ("own", 6, 0)}
