"""One rank of the tests, as a process that stays: importing PyTorch takes longer than most tests.

Takes tasks on standard input, one JSON object a line: {"module", "function", "rank", "world_size", "backend", "store",
"environment", "arguments"}; answers {"result"} or {"error"}. An empty backend leaves the process group to the function.
"""

import importlib
import json
import os
import sys
import traceback
from datetime import timedelta
from typing import Any


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
        task["backend"], store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=30)
    )
    try:
        return function(rank, world_size, **task["arguments"])
    finally:
        dist.destroy_process_group()


def main() -> None:
    import torch

    import sa_atp.ddp  # noqa: F401

    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed is not an answer
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"result": run(json.loads(line))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
