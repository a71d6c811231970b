"""A normal DistributedDataParallel script, without anything of this project: the README shows what to change in it.

torchrun --nproc-per-node 4 examples/ddp_normal.py
"""

import argparse
import json

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="end with the losses as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    digits = load_digits()
    images, labels = torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target)
    dataset = data.TensorDataset(images, labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(model)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = data.DistributedSampler(dataset)
    loader = data.DataLoader(dataset, batch_size=32, sampler=sampler)
    losses = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(loss_fn(model.module(images), labels)))
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f} of all samples", flush=True)
    if options.json and dist.get_rank() == 0:
        print(json.dumps({"losses": losses}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
