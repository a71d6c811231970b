"""Ranks of different speed get parts of each batch in proportion to their speeds, and finish at the same time.

    sa-atp up -- torchrun --nproc-per-node 3 examples/ddp_digits_balanced.py            # speeds 1, 0.5, 0.2
    sa-atp up -- torchrun --nproc-per-node 3 examples/ddp_digits_balanced.py --equal    # all wait for the slowest

Ranks of one machine share its cores, so their devices are emulated: each pass waits for as long as its device would take.
Which samples a step has does not depend on how they are shared: rank 0 trains a copy of the model alone on the whole
batches afterwards, and prints its loss beside that of all ranks.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from ddp_digits import make_dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from sa_atp.ddp import SaAtpState, sa_atp_hook
from sa_atp.protocol.batches.program import Share, makespan_s, solve
from sa_atp.protocol.batches.speed import Speed
from sa_atp.train import BalancedBatches, emulate_device


def make_model() -> nn.Module:
    """Without dropout, whose choices would depend on how samples are shared."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_alone(batches: BalancedBatches, steps: int) -> list[float]:
    """The same training in one process, on whole batches. Returns: the loss of each step."""
    model, loss_fn, losses = make_model(), nn.CrossEntropyLoss(), []
    optimizer = make_optimizer(model)
    images, labels = batches.dataset.tensors  # type: ignore[attr-defined]
    for step in range(steps):
        samples = batches.whole(step)
        optimizer.zero_grad()
        loss = loss_fn(model(images[samples]), labels[samples])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=102, help="of all ranks together")
    parser.add_argument("--speeds", type=float, nargs="+", default=[1.0, 0.5, 0.2], help="one for each rank")
    parser.add_argument("--ms-per-sample", type=float, default=10.0, help="of a device of speed 1")
    parser.add_argument("--equal", action="store_true", help="equal parts in all steps")
    parser.add_argument("--json", action="store_true", help="end with the results as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    speeds = [options.speeds[r % len(options.speeds)] for r in range(world_size)]

    dataset = make_dataset()
    equal = options.batch_size // world_size
    limits = {"least": equal, "most": -(-options.batch_size // world_size)} if options.equal else {}
    batches = BalancedBatches(dataset, options.batch_size, **limits)
    loader = DataLoader(dataset, batch_sampler=batches)
    model = DistributedDataParallel(make_model())
    emulate_device(model, options.ms_per_sample / 1e3, slowdown=1.0 / speeds[rank])
    state = SaAtpState.from_env(batches=batches)
    model.register_comm_hook(state, sa_atp_hook)
    optimizer, loss_fn = make_optimizer(model), nn.CrossEntropyLoss()

    losses, times, sizes = torch.zeros(options.steps), [], []
    epoch = step = 0
    while step < options.steps:
        batches.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in loader:
            sizes.append(batches.sizes)
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
            losses[step] = loss.detach() * len(labels) / options.batch_size
            step += 1
            if step == options.steps:
                break
        epoch += 1
    state.close()

    dist.all_reduce(losses)
    if rank == 0:
        shares = [Share(Speed(options.ms_per_sample / 1e3 / speed), 1, options.batch_size) for speed in speeds]
        best = solve(shares, options.batch_size)
        alone = train_alone(batches, options.steps)
        settled = next(n for n in range(len(sizes)) if sizes[n] == sizes[-1])
        counted = times[min(settled + 1, len(times) - 1) :]
        step_s, optimum_s = statistics.fmean(counted), makespan_s(shares, best)
        print(f"sizes {sizes[0]} at first, {sizes[-1]} from step {settled + 1} on; the optimum is {best}", flush=True)
        print(
            f"a step since then: {step_s:.3f} s, {100 * (step_s / optimum_s - 1):.1f} % above the optimum of "
            f"{optimum_s:.3f} s; the first step: {times[0]:.3f} s",
            flush=True,
        )
        print(
            f"loss of the last step: {losses[-1]:.5f}; of one process with whole batches: {alone[-1]:.5f}", flush=True
        )
        if options.json:
            result = {"sizes": sizes, "optimal_sizes": best, "step_s": step_s, "optimum_s": optimum_s}
            print(json.dumps({**result, "losses": losses.tolist(), "losses_alone": alone}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
