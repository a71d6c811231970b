"""Batches of datagrams, the input and output of connections."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sa_atp.basics.arrays import ByteRows

Address = tuple[str, int]  # IPv4 address and UDP port


@dataclass(frozen=True, slots=True)
class Burst:
    """Datagrams of one size, from or to one address.

    data: uint8[n, size], C-contiguous; a row is the payload of one datagram.
    urgent: networks are asked to forward it before contributions and results. (protocol section 9)
    """

    address: Address
    data: ByteRows
    urgent: bool = False

    @classmethod
    def of(cls, address: Address, payload: bytes) -> "Burst":
        """A burst of one urgent datagram: a control message."""
        return cls(address, np.frombuffer(payload, np.uint8).reshape(1, -1), urgent=True)

    def __len__(self) -> int:
        return len(self.data)


def merged(bursts: Sequence[Burst]) -> Sequence[Burst]:
    """Returns the datagrams in fewer bursts: neighbours of one address and size are copied into one."""
    if len(bursts) < 2:
        return bursts
    found: list[Burst] = []
    run: list[Burst] = []
    for burst in bursts:
        if run and (burst.address != run[0].address or burst.data.shape[1] != run[0].data.shape[1]):
            found.append(_joined(run))
            run = []
        run.append(burst)
    return [*found, _joined(run)]


def _joined(run: list[Burst]) -> Burst:
    return run[0] if len(run) == 1 else Burst(run[0].address, np.concatenate([burst.data for burst in run]))
