"""float32 values that come out of a sum bit for bit, where only one rank contributes and the others send zeros.

Fixed point rounds relative to the largest value of 16,384. Running statistics cannot bear that: they are fed back step by
step, and beside those of a layer with large activations a small one would stand still. So the bits travel, in two halves of
16 bits. A sum of such whole numbers is exact at every exponent that a chunk of them can have (protocol section 6.2):

- A gathered one, with 64 contributions, is 24 - 1 - 16 = 7 or more, since no half is beyond 2**16.
- A predicted one is at most 3 below the last gathered one, or leaves the last sum's largest value 21 bits: 4 or more.

An exponent of 0 or more turns whole numbers into whole numbers. One that is too large is done again.
"""

import torch

HALVES = 2
_HALF = 1 << 16


def to_halves(values: torch.Tensor) -> torch.Tensor:
    """Args: values: n floating-point numbers, of any shape.

    Returns: float32[n, 2]: the upper half of each one's bits in float32, with a sign, and the lower one, without. They are
        side by side, so that one packet has both: where two ranks compute a shard and do not get the same bits, the next
        packet may come from the other one.
    """
    bits = values.detach().reshape(-1).to(torch.float32).view(torch.int32)
    return torch.stack((bits >> 16, bits & (_HALF - 1)), -1).to(torch.float32)


def from_halves(halves: torch.Tensor) -> torch.Tensor:
    """Args: halves: float32[..., n, 2]. Returns: float32[..., n]."""
    upper, lower = halves.to(torch.int32).unbind(-1)
    return (upper * _HALF + lower).view(torch.float32)
