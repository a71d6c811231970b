"""One rank of the tests, as a process that stays.

Takes tasks from a pipe: {"module", "function", "rank", "world_size", "backend", "store", "environment", "arguments"};
answers {"result"} or {"error"}. An empty backend leaves the process group to the function.
"""

import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

GLOO_COMES_TO_REST_S = 0.02


def run(task: dict[str, Any]) -> Any:
    import torch.distributed as dist

    os.environ.update(task["environment"])
    rank, world_size = task["rank"], task["world_size"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    module = importlib.import_module(task["module"])
    function = getattr(module, task["function"])
    if not task["backend"]:
        return function(rank, world_size, **task["arguments"])
    store = dist.FileStore(task["store"], world_size)
    dist.init_process_group(
        task["backend"], store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=task["timeout_s"])
    )
    try:
        return function(rank, world_size, **task["arguments"])
    finally:
        dist.destroy_process_group()


def destroy_groups_patiently() -> None:
    """PyTorch (2.13) frees a Gloo group with the interpreter's lock held, and waits for its threads meanwhile. If one of
    them needs the lock just then, to let go of a tensor, the process hangs: one in some dozen runs of a script without
    anything of ours. So they are given time to come to rest.
    """
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def patiently(group: Any = None) -> None:
        time.sleep(GLOO_COMES_TO_REST_S)
        destroy(group)
        time.sleep(GLOO_COMES_TO_REST_S)

    dist.destroy_process_group = patiently


def serve(tasks: Connection, log: str) -> None:
    """Until the other end of the pipe is closed. Args: log: file for what is printed."""
    import torch

    import sa_atp.ddp  # noqa: F401

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    faulthandler.register(signal.SIGUSR1, file=file)  # where its threads are; the pool asks one that is silent
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    destroy_groups_patiently()
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        try:
            answer = {"result": run(task)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        tasks.send(answer)
