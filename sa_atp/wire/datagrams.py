"""Datagrams in batches: what transport connections take and give, whoever carries them."""

from dataclasses import dataclass

import numpy as np

Address = tuple[str, int]  # IPv4 address and UDP port


@dataclass(frozen=True, slots=True)
class Burst:
    """Datagrams of one size, from or to one address.

    data: uint8[n, size], C-contiguous; a row is the payload of one datagram.
    """

    address: Address
    data: np.ndarray

    @classmethod
    def of(cls, address: Address, payload: bytes) -> "Burst":
        """A single datagram."""
        return cls(address, np.frombuffer(payload, np.uint8).reshape(1, -1))

    def __len__(self) -> int:
        return len(self.data)
