"""A DDP script of which one rank sleeps in each step; test_torch_stragglers.py runs it under `sa-atp up -- torchrun`."""

import json
import sys
import time

import torch
import torch.distributed as dist
from msgspec import to_builtins
from rank_process import destroy_groups_patiently
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState, sa_atp_hook

SLOW_RANK, STEPS, SLEEP_S = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

destroy_groups_patiently()
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 10))
model = DistributedDataParallel(layers, bucket_cap_mb=0.01)  # several buckets: one of them counts
with SaAtpState.from_env() as state:
    model.register_comm_hook(state, sa_atp_hook)
    for _ in range(STEPS):
        if dist.get_rank() == SLOW_RANK:
            time.sleep(SLEEP_S)
        model(torch.ones(8, 64)).sum().backward()
    if dist.get_rank() == 0:
        while state.stragglers().sums < STEPS:  # signs of life tell of the newest
            time.sleep(0.05)
        print(json.dumps(to_builtins(state.stragglers())), flush=True)
    dist.barrier()
dist.destroy_process_group()
