"""A ring all-reduce on the flow network, as Gloo and others do it.

n pieces go around the ring twice, to be added (reduce-scatter) and to be distributed (all-gather). In each of the 2(n - 1)
rounds every worker sends a piece, 1/n of the tensor, to its neighbour; a round begins when the last piece of the one before
has arrived (Patarasuk and Yuan 2009). All pieces of a round move in step, as one flow.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sa_atp.lab.flow.fabric import MTU, Fabric, stream_bytes
from sa_atp.lab.simulator.network import WIRE_OVERHEAD_BYTES


class Ring:
    def __init__(self, fabric: Fabric) -> None:
        """Orders the ring so that it enters and leaves each rack once."""
        n = fabric.settings.workers
        self._fabric = fabric
        order = sorted(range(n), key=fabric.rack_of) if fabric.settings.racks else list(range(n))
        paths = [fabric.path(rank, order[(place + 1) % n]) for place, rank in enumerate(order)] if n > 1 else []
        links, times = np.unique([link for path in paths for link in path], return_counts=True)
        self._links, self._weights = links.astype(np.int64), times.astype(np.float64)
        packet = MTU + 14 + WIRE_OVERHEAD_BYTES
        self._latency_us = max((fabric.latency_us(path, packet) for path in paths), default=0.0)
        self.rounds = 2 * (n - 1)

    def all_reduce(self, size: float, done: Callable[[], None]) -> None:
        """Starts an all-reduce. Args: size: of the tensor, bytes; done: called when all workers have the sum."""
        self._round(self.rounds, stream_bytes(size / self._fabric.settings.workers), done)

    def _round(self, left: int, piece: float, done: Callable[[], None]) -> None:
        clock = self._fabric.clock
        if left == 0:
            clock.at(clock.now_us, done)
            return

        def sent() -> None:
            clock.at(clock.now_us + math.ceil(self._latency_us), lambda: self._round(left - 1, piece, done))

        self._fabric.network.start(self._links, piece, sent, weights=self._weights)


def ring_steps_us(fabric: Fabric, size: float, ready_us: Sequence[int]) -> list[int]:
    """The end of each of several steps. Args: ready_us: compute time of the slowest worker in each."""
    ring = Ring(fabric)
    clock = fabric.clock
    ends: list[int] = []

    def begin() -> None:
        clock.at(clock.now_us + ready_us[len(ends)], lambda: ring.all_reduce(size, end))

    def end() -> None:
        ends.append(clock.now_us)
        if len(ends) < len(ready_us):
            begin()

    begin()
    clock.run(lambda: len(ends) == len(ready_us), 1 << 60)
    return ends
