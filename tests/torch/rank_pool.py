"""Ranks as processes, and a switch with a parameter server: what all tests of this folder share."""

import itertools
import os
from pathlib import Path
from typing import Any

from sa_atp.testbed.cluster import LocalCluster
from sa_atp.testbed.processes import Group, Process

HERE = Path(__file__).parent
ANSWER_TIMEOUT_S = 120.0
MOST_RANKS = 4


class Ranks:
    """Runs functions of a module of this folder on several ranks at once."""

    def __init__(self, group: Group, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
        cluster = LocalCluster(group, folder, lanes=256, slots=1024)
        self._processes: list[Process] = [
            group.start(f"rank {rank}", ["rank_process"], folder / f"rank{rank}.log", environment)
            for rank in range(MOST_RANKS)
        ]
        self.server = "udp://{}:{}".format(*cluster.ready())
        for process in self._processes:
            process.answer(ANSWER_TIMEOUT_S)

    def run(
        self,
        function: str,
        world_size: int,
        *,
        module: str = "scenarios",
        backend: str = "gloo",
        environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> list[Any]:
        """Calls module.function(rank, world_size, **arguments) on each rank, in a process group of that backend.

        Returns: what each rank's call returned. Raises: AssertionError with the traceback of a rank that failed.
        """
        number = next(self._numbers)
        for rank, process in enumerate(self._processes[:world_size]):
            process.tell(
                {
                    "module": module,
                    "function": function,
                    "rank": rank,
                    "world_size": world_size,
                    "store": str(self._folder / f"store{number}"),
                    "backend": backend,
                    "environment": {
                        "SA_ATP_SERVER": self.server,
                        "SA_ATP_JOB": f"job{number}",
                        **(environment or {}),
                    },
                    "arguments": arguments,
                }
            )
        answers = [process.answer(ANSWER_TIMEOUT_S) for process in self._processes[:world_size]]
        failed = {rank: a["error"] for rank, a in enumerate(answers) if "error" in a}
        assert not failed, "\n".join(f"rank {rank}: {error}" for rank, error in failed.items())
        return [answer["result"] for answer in answers]
