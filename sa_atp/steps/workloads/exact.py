"""Encodes float32 values so that a sum returns them bit for bit, if one rank contributes them and the others send
zeros.

Fixed point rounds relative to the largest of 16,384 values. Running statistics cannot bear that: they are fed back in
every step, and small ones would stand still beside those of a layer with large activations. So their bits travel, in
two halves of 16 bits. A sum of such whole numbers is exact at every exponent that a chunk of them can have (protocol
section 6.2):

- A gathered one, with 64 contributions, is 24 - 1 - 16 = 7 or more, since no half is beyond 2**16.
- A predicted one is at most 3 below the last gathered one, or leaves the last sum's largest value 21 bits: 4 or more.

An exponent of 0 or more keeps whole numbers whole. With one that is too large, the chunk is summed again.
"""

import torch

HALVES = 2
_HALF = 1 << 16


def to_halves(values: torch.Tensor) -> torch.Tensor:
    """Args: values: n floating-point numbers, of any shape.

    Returns: float32[n, 2]: the upper half of each value's bits, signed, and the lower half, unsigned. They are side by
        side, so that one packet has both: if two ranks compute a shard with different bits, packets of either may be in
        the sum.
    """
    bits = values.detach().reshape(-1).to(torch.float32).view(torch.int32)
    return torch.stack((bits >> 16, bits & (_HALF - 1)), -1).to(torch.float32)


def from_halves(halves: torch.Tensor) -> torch.Tensor:
    """Args: halves: float32[..., n, 2]. Returns: float32[..., n]."""
    upper, lower = halves.to(torch.int32).unbind(-1)
    return (upper * _HALF + lower).view(torch.float32)
