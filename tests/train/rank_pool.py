"""Ranks as processes, and a switch with a parameter server: what all tests of this folder share.

Importing PyTorch takes longer than most tests. One process does it (Python's forkserver); all ranks are its forks, which
are there at once, so a test that kills ranks can have its own.
"""

import itertools
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import rank_process
import torch

from sa_atp.lab.backends.cluster import LocalCluster
from sa_atp.lab.runs.processes import Group

HERE = Path(__file__).parent
ANSWER_TIMEOUT_S = 120.0
MOST_RANKS = 4
GROUP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 20
STACKS_LINES = 80
WRITTEN_S = 1.0  # within which a process that still runs at all has written where it is

GPU = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no GPU that PyTorch can use: this needs an NVIDIA GPU, its driver, and a PyTorch that is built for CUDA",
)
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["sa_atp.ddp", "torch._dynamo", "torch.distributed.fsdp", "sklearn.datasets"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class RankEndedError(Exception):
    """A rank's process has ended; `status` is its exit status."""

    def __init__(self, status: int | None, log: Path) -> None:
        self.status = status
        super().__init__(f"a rank ended with status {status}; its log ends with:\n{tail(log, LOG_TAIL_LINES)}")


class SilentRankError(Exception):
    """A rank has not answered in time; the message says where its threads are."""

    def __init__(self, timeout_s: float, log: Path) -> None:
        super().__init__(f"a rank said nothing for {timeout_s:.0f} s; its log ends with:\n{tail(log, STACKS_LINES)}")


class Rank:
    """A process that runs functions of the modules of this folder."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=rank_process.serve, args=(theirs, str(log)), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, task: dict[str, Any]) -> None:
        self._pipe.send(task)

    def answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """{"result"} or {"error"}. Raises: RankEndedError, SilentRankError."""
        try:
            if not self._pipe.poll(timeout_s):
                assert self._process.pid is not None
                os.kill(self._process.pid, signal.SIGUSR1)
                time.sleep(WRITTEN_S)
                raise SilentRankError(timeout_s, self._log)
            found: dict[str, Any] = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise RankEndedError(self._process.exitcode, self._log) from None
        return found

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


class Ranks:
    """Runs functions on several ranks at once."""

    def __init__(self, group: Group, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        cluster = LocalCluster(group, folder, lanes=256, slots=1024)
        self._ranks = self._begin()
        self.server = "udp://{}:{}".format(*cluster.ready())

    def _begin(self) -> list[Rank]:
        return [Rank(self._folder / f"rank{rank}.log") for rank in range(MOST_RANKS)]

    def run(
        self,
        function: str,
        world_size: int,
        *,
        module: str = "scenarios",
        backend: str = "gloo",
        environment: dict[str, str] | None = None,
        group_timeout_s: float | None = None,
        **arguments: Any,
    ) -> list[Any]:
        """Calls module.function(rank, world_size, **arguments) on each rank, in a process group of that backend.

        Args: group_timeout_s: of the process group.
        Returns: what each rank's call returned. Raises: AssertionError with the traceback of a rank that failed.
        """
        number = next(self._numbers)
        whole = {
            "SA_ATP_SERVER": self.server,
            "SA_ATP_JOB": f"job{number}",
            "SA_ATP_SCATTER": "always",
            "SA_ATP_GATHER": "always",
            **(environment or {}),
        }
        store = self._folder / f"store{number}"
        tell(
            self._ranks[:world_size],
            function,
            module,
            backend,
            store,
            whole,
            arguments,
            group_timeout_s or GROUP_TIMEOUT_S,
        )
        try:
            answers = [rank.answer() for rank in self._ranks[:world_size]]
        except (RankEndedError, SilentRankError):
            self.end()  # what comes after begins with ranks that listen
            self._ranks = self._begin()
            raise
        failed = {rank: a["error"] for rank, a in enumerate(answers) if "error" in a}
        assert not failed, "\n".join(f"rank {rank}: {error}" for rank, error in failed.items())
        return [answer["result"] for answer in answers]

    def end(self) -> None:
        for rank in self._ranks:
            rank.end()


def tell(
    ranks: list[Rank],
    function: str,
    module: str,
    backend: str,
    store: Path,
    environment: dict[str, str],
    arguments: dict[str, Any],
    timeout_s: float = GROUP_TIMEOUT_S,
) -> None:
    """Has ranks call a function; see Ranks.run. Args: store: a new file by which they find each other."""
    for number, rank in enumerate(ranks):
        rank.tell(
            {
                "module": module, "function": function, "rank": number, "world_size": len(ranks), "store": str(store),
                "backend": backend, "environment": environment, "arguments": arguments, "timeout_s": timeout_s,
            }
        )  # fmt: skip
