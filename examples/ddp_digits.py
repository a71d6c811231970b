"""Plain DistributedDataParallel on scikit-learn's handwritten digits; gradients are averaged in the switch.

    sa-atp up -- torchrun --nproc-per-node 4 examples/ddp_digits.py

On several machines: start `sa-atp up --listen ADDRESS` on one, set what it prints on all, and start torchrun with
--nnodes, --rdzv-backend c10d and --rdzv-endpoint. With --checkpoint, torchrun's --max-restarts continues where a run was
cut off.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.train import ShardedSampler


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10),
    )  # fmt: skip


def make_dataset() -> TensorDataset:
    digits = load_digits()
    return TensorDataset(torch.from_numpy(digits.images / 16).float().unsqueeze(1), torch.from_numpy(digits.target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--checkpoint", type=Path, help="file to continue from, and to write after every epoch")
    parser.add_argument("--json", action="store_true", help="end with the losses as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    state = SaAtpState.from_env()
    model.register_comm_hook(state, sa_atp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if options.checkpoint is not None and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1

    dataset = make_dataset()
    sampler = ShardedSampler(dataset, options.batch_size)
    loader = DataLoader(dataset, batch_sampler=sampler)
    loss_fn = nn.CrossEntropyLoss()
    losses = []
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        losses.append(float(total) / len(loader) / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}", flush=True)
            if options.checkpoint is not None:
                partial = options.checkpoint.with_suffix(".partial")
                saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(saved, partial)
                os.replace(partial, options.checkpoint)
    if options.json and dist.get_rank() == 0:
        print(json.dumps({"first_epoch": first, "losses": losses}), flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
