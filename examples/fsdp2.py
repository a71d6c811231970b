"""FSDP2: parameters, gradients and optimiser state are sharded; gradients are reduced in the switch.

sa-atp up -- torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import argparse
import json

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sa_atp.ddp import SaAtpState
from sa_atp.train.fsdp import reduce_in_switch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--json", action="store_true", help="end with the losses as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = SaAtpState.from_env()
    reduce_in_switch(model, state)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    digits = load_digits()
    images, labels = torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target)
    generator = torch.Generator().manual_seed(1 + rank)
    losses = []
    for step in range(options.steps):
        rows = torch.randint(len(labels), (options.batch_size,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(float(mean) / world_size)
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    if options.json and rank == 0:
        print(json.dumps({"losses": losses}), flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
