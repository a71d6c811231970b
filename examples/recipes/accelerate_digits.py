"""Hugging Face Accelerate, with gradients averaged in the switch.

    sa-atp up -- torchrun --nproc-per-node 2 examples/recipes/accelerate_digits.py

Accelerate takes the names of backends from a list of its own, but uses a process group that is there already.
"""

import argparse
import json

import torch
import torch.distributed as dist
from accelerate import Accelerator
from digits import make_dataset, make_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import sa_atp.ddp  # noqa: F401  (registers the backend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("sa_atp")  # before there is an Accelerator
    accelerator = Accelerator(cpu=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(make_dataset(), 32, shuffle=True))
    losses = []
    for _ in range(options.epochs):
        total = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        losses.append(float(accelerator.reduce(total / len(loader), "mean")))
    if accelerator.is_main_process:
        print(json.dumps({"losses": losses, "ranks": accelerator.num_processes}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
