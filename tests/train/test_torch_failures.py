"""Ranks that die: the others learn it in time, and a restarted rank joins a new epoch. torchrun: test_torch_launch.py."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import Rank, RankEndedError, tell

from sa_atp.ddp import SaAtpState
from sa_atp.lab.runs.processes import Group
from sa_atp.net.connecting import connect
from sa_atp.protocol.job.errors import RefusedError

READY_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A parameter server that waits long for silent workers: only their hosts tell it that they have ended."""
    log = tmp_path_factory.mktemp("server") / "ps.log"
    with Group() as group:
        process = group.start("ps", ["sa_atp", "ps", "--listen", "127.0.0.1:0", "--dead-after", "600"], log)
        yield "udp://{}:{}".format(*process.answer(READY_TIMEOUT_S)["address"])


@pytest.mark.parametrize(
    ("module", "function", "arguments"),
    [("restarting", "train", {"directory": ""}), ("backup_scenarios", "victim", {})],
    ids=["hook", "help"],
)
def test_survivors_raise_and_name_the_dead(
    server: str, tmp_path: Path, module: str, function: str, arguments: dict[str, Any]
) -> None:
    """Without anyone to stop them: each survivor must notice by itself, within the bound of the parameter server."""
    environment = {"SA_ATP_SERVER": server, "SA_ATP_JOB": f"survivors, {module}", "VICTIM": "1", "KILLS": "1:3"}
    arguments = {name: str(tmp_path) for name in arguments}
    ranks = [Rank(tmp_path / f"rank{number}.log") for number in range(3)]
    try:
        tell(ranks, function, module, "gloo", tmp_path / "store", environment, arguments)
        with pytest.raises(RankEndedError) as victim:
            ranks[1].answer()
        errors = [ranks[survivor].answer()["error"] for survivor in (0, 2)]
    finally:
        for rank in ranks:
            rank.end()
    assert victim.value.status == -9
    for error in errors:
        assert "lost rank 1: process ended, or connection closed" in error


def test_elastic_restart_with_fewer_ranks(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of the run before have died unnoticed. An elastic restart waits until they are given up; others do not."""
    with ThreadPoolExecutor() as pool:
        before = list(pool.map(lambda rank: connect(server, job="elastic", rank=rank, world_size=2), range(2)))
    for communicator in before:
        communicator._driver.stop()  # as if killed: it does not say that it leaves
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(RefusedError, match="world_size is 1 for rank 0 and 2 for rank 1"):
        _ = SaAtpState(server, job="elastic", rank=0, world_size=1).communicator
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    with SaAtpState(server, job="elastic", rank=0, world_size=1) as state:
        assert state.communicator.membership.world_size == 1
        assert state.communicator.membership.job == before[0].membership.job
        assert state.communicator.membership.epoch != before[0].membership.epoch
        array = np.ones(3, np.float32)
        state.communicator.all_reduce(array)
        assert array.tolist() == [1, 1, 1]
