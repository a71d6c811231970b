"""ddp_digits.py with one slow rank, which the others help.

    sa-atp up -- torchrun --nproc-per-node 4 examples/ddp_digits_help.py            # with help
    sa-atp up -- torchrun --nproc-per-node 4 examples/ddp_digits_help.py --no-help  # all wait

Ranks on one machine share its cores, so their devices are emulated: a gradient is computed, and sent when the device would
have finished; the slow rank's device takes --slowdown times as long. A helper needs the time of its own device. Everything
else is real.

--micro-batches divides each rank's batch into pieces that helpers take over one by one ("steal"); with one piece, a leader
computes the straggler's whole batch as well ("clone").
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from ddp_digits import make_dataset, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sa_atp.ddp import SaAtpState
from sa_atp.steps.device import Device
from sa_atp.train import BackupCompute, ShardedSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--slow-rank", type=int, default=-1, help="-1: the last one")
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--ms-per-sample", type=float, default=10.0, help="of a device of normal speed")
    parser.add_argument("--no-help", action="store_true")
    parser.add_argument("--json", action="store_true", help="end with the results as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = ShardedSampler(make_dataset(), options.batch_size)
    grade = "none" if options.no_help else "clone" if options.micro_batches == 1 else "steal"
    state = SaAtpState.from_env(help=grade, micro_batches=options.micro_batches)
    device = Device(int(options.ms_per_sample * 1e3))
    device.slowdown = options.slowdown if rank == options.slow_rank % world_size else 1.0
    backup = BackupCompute(model, nn.CrossEntropyLoss(), sampler.batch_of, state=state, device=device)

    losses, times = [], []
    for step in range(options.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = backup.forward_backward(step)
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(float(loss))
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.4f}, {sum(times[-10:]) / 10:.3f} s a step", flush=True)
    state.close()

    everybody: list[dict[str, int] | None] = [None] * world_size
    dist.all_gather_object(everybody, backup.stats.as_dict())
    if rank == 0:
        counted = times[min(3, len(times) - 1) :]  # the first steps, in which speeds are measured, do not count
        result = {"mean_step_s": sum(counted) / len(counted), "losses": losses, "ranks": everybody}
        print(f"mean step time {result['mean_step_s']:.3f} s; what each rank did:", flush=True)
        for number, did in enumerate(everybody):
            print(f"  rank {number}: {did}", flush=True)
        if options.json:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
