"""The communication hook of DistributedDataParallel: each bucket of gradients is summed in the switch.

1. DDP calls the hook as soon as a bucket is full, in the same order on every rank.
2. Its sum begins at once; the backward pass goes on, and fills the next bucket.
3. When the sum is back, it is divided by the number of ranks, in place; DDP waits for that at the end of the pass.

A bucket's scale is predicted from the bucket that had its place and size in the last step. After the first step DDP
rebuilds its buckets; then nothing is predicted, and magnitudes are gathered anew.

With balanced batches (`SaAtpState(batches=...)`) a rank's gradient is weighted by its share of the samples in place of
that, and what the ranks measured is summed behind the last bucket.

Of each step the sum of the last bucket says who was slow (`SaAtpState.stragglers`): so what is counted there are steps.
"""

# No `from __future__ import annotations` here: DDP compares the annotations of a hook with the classes themselves.

import torch
import torch.distributed as dist

from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_sums import sum_in_background


def sa_atp_hook(
    state: SaAtpState,
    bucket: dist.GradBucket,
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all ranks; over all samples, with balanced batches.

    Args: bucket: of float32, float16 or bfloat16, on the CPU or a CUDA device.

    Raises: UserError, TransportError: at once, or as a RuntimeError with the same message out of `backward`.

    Example:
        model = DistributedDataParallel(model)
        model.register_comm_hook(SaAtpState.from_env(), sa_atp_hook)
    """
    buffer = bucket.buffer()
    key = ("ddp", bucket.index(), buffer.numel())
    batches = state.batches
    if batches is None:
        scale = 1.0 / state.communicator.membership.world_size
        return sum_in_background(state, buffer, key=key, scale=scale, measured=bucket.is_last())
    batches.check(state.communicator)
    future = sum_in_background(state, buffer, key=key, weight=batches.weight, measured=bucket.is_last())
    if bucket.is_last():
        batches.computed(state.communicator, buffer.device)
    return future
