"""torchft, with gradients of replicas averaged in the switch: a replica is killed, the others go on, it comes back.

    sa-atp up -- python examples/recipes/torchft_digits.py

torchft forms the process group anew, a "quorum", whenever a replica comes or goes. Here each quorum is a job of the
parameter server. The lighthouse, which says who is in a quorum, comes with torchft's wheel; this script starts one, and
the replicas.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from digits import make_dataset, make_model
from torch.nn.functional import cross_entropy
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupWrapper

from sa_atp.train.backend import SaAtpProcessGroup

HERE = "127.0.0.1"
TIMEOUT = timedelta(seconds=30)


class SwitchProcessGroup(ProcessGroupWrapper):
    """A process group with sums in the switch, made anew for each quorum."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> SaAtpProcessGroup:
        return SaAtpProcessGroup(store, rank, world_size, self._timeout, f"quorum {self._quorum_id}")

    def abort(self, errored: bool = True) -> None:
        group = self._pg
        super().abort(errored)
        if isinstance(group, SaAtpProcessGroup):
            group.shutdown()  # leaves the job

    def shutdown(self) -> None:
        self.abort(errored=False)

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        return "torchft-sa_atp"


def replica(number: int, steps: int, lighthouse: str, died: Path) -> None:
    """One replica of the model, in one process. Args: died: a file by which replica 1 remembers that it has died."""
    store = dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    model, dataset = make_model(), make_dataset()
    images, labels = dataset.tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=SwitchProcessGroup(TIMEOUT), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"digits{number}_", rank=0, world_size=1, store_addr=HERE, store_port=store.port, hostname=HERE,
        lighthouse_addr=lighthouse, timeout=TIMEOUT, quorum_timeout=2 * TIMEOUT, connect_timeout=TIMEOUT,
    )  # fmt: skip
    averaged, stepping = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    losses, together = [], []
    while (step := manager.current_step()) < steps:
        generator = torch.Generator().manual_seed(1000 * step + number)
        rows = torch.randint(len(images), (64,), generator=generator)
        stepping.zero_grad()
        loss = cross_entropy(averaged(images[rows]), labels[rows])
        loss.backward()
        if number == 1 and step >= steps // 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        stepping.step()
        losses.append(loss.item())
        together.append(manager.num_participants())
        time.sleep(0.1)  # a step of a larger model
    print(json.dumps({"replica": number, "losses": losses, "replicas": together}), flush=True)
    manager.shutdown(wait=False)
    os._exit(0)  # torchft's threads may still wait for dead replicas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lighthouse", help=argparse.SUPPRESS)
    parser.add_argument("--died", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.replica is not None:
        replica(options.replica, options.steps, options.lighthouse, options.died)
    lighthouse = LighthouseServer(bind=f"{HERE}:0", min_replicas=1, join_timeout_ms=2000)
    with TemporaryDirectory() as folder:
        shared = ["--steps", str(options.steps), "--lighthouse", lighthouse.address(), "--died", f"{folder}/died"]

        def start(number: int) -> "subprocess.Popen[bytes]":
            return subprocess.Popen([sys.executable, __file__, "--replica", str(number), *shared])

        replicas = [start(0), start(1)]
        while any(each.poll() is None for each in replicas):
            if replicas[1].poll() == -signal.SIGKILL:
                replicas[1] = start(1)
            time.sleep(0.1)
    lighthouse.shutdown()
    sys.exit(max(each.returncode for each in replicas))


if __name__ == "__main__":
    main()
