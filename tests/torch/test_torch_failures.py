"""Ranks that die: the others are told in time; torchrun starts them again, and the job goes on in a new epoch."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import HERE, Ranks

from sa_atp.ddp import SaAtpState
from sa_atp.net.communicator import connect
from sa_atp.testbed.processes import Group
from sa_atp.transport.errors import RefusedError

SCRIPT = HERE / "restarting.py"
LIMIT_S = 120.0


def environment(server: str, job: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "SA_ATP_SERVER": server,
        "SA_ATP_JOB": job,
        "OMP_NUM_THREADS": "1",
        # torchrun's own store keeps the addresses of the ranks that are gone (PyTorch issue 135712)
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **more,
    }


def torchrun(folder: Path, ranks: int, environment: dict[str, str], *options: str) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", *options, str(SCRIPT), str(folder),
    ]  # fmt: skip
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks as well
            raise
    assert process.returncode == 0, errors[-4000:]


def results(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"done-{rank}").read_text()) for rank in range(ranks)]


def test_restart_goes_on_from_the_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = ranks.run("train", 2, module="restarting", directory=str(whole))
    torchrun(broken, 2, environment(ranks.server, "broken", VICTIM="1"), "--max-restarts", "1")
    found = results(broken, 2)
    assert (broken / "died").exists()
    assert [f["first"] for f in found] == [3, 3], "steps 0 to 2 were saved before the step that failed"
    assert found[0]["losses"] == pytest.approx(expected[0], rel=1e-6)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_survivors_raise_and_name_the_dead(tmp_path: Path) -> None:
    """Without anyone to stop them: each survivor must notice by itself, within the bound of the parameter server."""
    with Group() as group:
        server = group.start(
            "ps", ["sa_atp", "ps", "--listen", "127.0.0.1:0", "--dead-after", "1.5"], tmp_path / "ps.log"
        )
        host, port = server.answer(LIMIT_S)["address"]
        shared = environment(
            f"udp://{host}:{port}",
            "survivors",
            VICTIM="1",
            WORLD_SIZE="3",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
        )
        processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(tmp_path)],
                env={**shared, "RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(3)
        ]
        try:
            statuses = [process.wait(LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert statuses[1] == -9
    for rank in (0, 2):
        assert statuses[rank] == 1
        assert "lost rank 1: not heard of for 1.5 s" in (tmp_path / f"error-{rank}").read_text()


def test_elastic_restart_with_fewer_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of the run before have died unnoticed. An elastic restart waits until they are given up; others do not."""
    with Group() as group:
        ps = group.start("ps", ["sa_atp", "ps", "--listen", "127.0.0.1:0", "--dead-after", "1.5"], tmp_path / "ps.log")
        host, port = ps.answer(LIMIT_S)["address"]
        server = f"udp://{host}:{port}"
        with ThreadPoolExecutor() as pool:
            before = list(pool.map(lambda rank: connect(server, job="elastic", rank=rank, world_size=2), range(2)))
        for communicator in before:
            communicator._driver.stop()  # as if killed: it does not say that it leaves
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        with pytest.raises(RefusedError, match="job 'elastic' has 2 ranks"):
            _ = SaAtpState(server, job="elastic", rank=0, world_size=1).communicator
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
        with SaAtpState(server, job="elastic", rank=0, world_size=1) as state:
            assert state.communicator.membership.world_size == 1
            assert state.communicator.membership.job == before[0].membership.job
            assert state.communicator.membership.epoch != before[0].membership.epoch
            array = np.ones(3, np.float32)
            state.communicator.all_reduce(array)
            assert array.tolist() == [1, 1, 1]
