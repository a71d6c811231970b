"""The communication hook of DistributedDataParallel: each bucket of gradients is summed in the switch.

1. DDP calls the hook as soon as a bucket is full, in the same order on every rank.
2. Its sum begins at once; the backward pass goes on, and fills the next bucket.
3. When the sum is back, it is divided by the number of ranks, in place; DDP waits for that at the end of the pass.

A bucket's scale is predicted from the bucket with its index and size in the last step. After the first step DDP
rebuilds its buckets; then magnitudes are gathered anew.

With `SaAtpState(bits=16)` two values of a bucket travel as one integer of 32 bits, once magnitudes are known
(protocol section 6.5).

With balanced batches (`SaAtpState(batches=...)`) a rank's gradient is weighted by its share of the samples instead, and
the ranks' measurements are summed after the last bucket.

Only the last bucket's sum of a step is measured for `SaAtpState.stragglers`, so its counts are of steps.
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
    """Averages a bucket of gradients over all ranks; with balanced batches, over all samples.

    Args: bucket: float32, float16 or bfloat16, on the CPU or a CUDA device.

    Raises: UserError, TransportError: at once, or as a RuntimeError with the same message from `backward`.

    Example:
        model = DistributedDataParallel(model)
        model.register_comm_hook(SaAtpState.from_env(), sa_atp_hook)
    """
    buffer = bucket.buffer()
    key = ("ddp", bucket.index(), buffer.numel())
    batches, codec = state.batches, state.codec_of(key, buffer.numel())
    if batches is None:
        scale = 1.0 / state.communicator.membership.world_size
        return sum_in_background(state, buffer, key=key, scale=scale, measured=bucket.is_last(), codec=codec)
    batches.check(state.communicator)
    future = sum_in_background(state, buffer, key=key, weight=batches.weight, measured=bucket.is_last(), codec=codec)
    if bucket.is_last():
        batches.share_measurement(state.communicator, buffer.device)
    return future
