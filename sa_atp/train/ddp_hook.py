"""The communication hook of DistributedDataParallel: each bucket of gradients is summed in the switch.

1. DDP calls the hook as soon as a bucket is full, in the same order on every rank.
2. Its sum begins at once; the backward pass goes on, and fills the next bucket.
3. When the sum is back, it is divided by the number of ranks, in place; DDP waits for that at the end of the pass.

A bucket's scale is predicted from the bucket with its index and size in the last step. After the first step DDP
rebuilds its buckets; then magnitudes are gathered anew.

With `SaAtpState(bits=16)` two values of a bucket travel as one integer of 32 bits, once magnitudes are known
(protocol section 6.5).

A bucket of a type that no switch sums, such as float64, is summed by the model's process group instead.

With balanced batches (`SaAtpState(batches=...)`) a rank's gradient is weighted by its share of the samples instead, and
the ranks' measurements are summed after the last bucket.

Only the last bucket's sum of a step is measured for `SaAtpState.stragglers`, so its counts are of steps.
"""

# No `from __future__ import annotations` here: DDP compares the annotations of a hook with the classes themselves.

import torch
import torch.distributed as dist

from sa_atp.train.by_group import sum_by_group, warn_once
from sa_atp.train.ddp_state import SaAtpState
from sa_atp.train.tensor_sums import is_summable, sum_in_background


def sa_atp_hook(
    state: SaAtpState,
    bucket: dist.GradBucket,
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over all ranks; with balanced batches, over all samples.

    Args: bucket: on the CPU or a CUDA device. What is not float32, float16 or bfloat16 goes through the process group.

    Raises: UserError, TransportError: at once, or as a RuntimeError with the same message from `backward`.

    Example:
        model = DistributedDataParallel(model)
        model.register_comm_hook(SaAtpState.from_env(), sa_atp_hook)
    """
    buffer, batches = bucket.buffer(), state.batches
    scale, weight = 1.0 / state.communicator.membership.world_size, 1.0
    if batches is not None:
        batches.check(state.communicator)
        scale, weight = 1.0, batches.weight
    if is_summable(buffer):
        key = ("ddp", bucket.index(), buffer.numel())
        codec, measured = state.codec_of(key, buffer.numel()), bucket.is_last()
        future = sum_in_background(state, buffer, key=key, scale=scale, weight=weight, measured=measured, codec=codec)
    else:
        future = sum_by_group(state, buffer, weight=scale * weight)
    if bucket.is_last():
        warn_once(state)
        if batches is not None:
            batches.share_measurement(state.communicator, buffer.device)
    return future
