"""The integer program of batch sizes: min max_i (c_i + t_i(b_i)) subject to sum b_i = B and low_i <= b_i <= high_i.

`solve` hands out samples in the order in which they would be done: all that are done before some
time, which is found by bisection, then one by one from a heap. t_i never falls with b_i, so the worker that would
finish the next unit first should have it: exchanging two units cannot reduce the makespan. It is exact in floating
point, and takes microseconds. Tests compare it with HiGHS (Q. Huangfu, J. Hall 2018), and with exhaustive search.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.basics.errors import UserError
from sa_atp.protocol.batches.speed import Speed

BISECTIONS = 100  # the heap does the rest, however much that is


@dataclass(frozen=True, slots=True)
class Share:
    """One worker in the program."""

    speed: Speed
    low: int
    """The least number of samples that it must have."""
    high: int
    """The most samples that it may have, given its memory."""
    offset_s: float = 0.0
    """The c_i of the program: seconds of the worker's step besides computing."""

    def finish_s(self, samples: int) -> float:
        return self.offset_s + self.speed.seconds(samples)


def makespan_s(shares: Sequence[Share], sizes: Sequence[int]) -> float:
    """When the last worker is done with these sizes, seconds."""
    return max(share.finish_s(size) for share, size in zip(shares, sizes, strict=True))


def check(bounds: Sequence[tuple[int, int]], batch: int, granularity: int = 1) -> list[tuple[int, int]]:
    """Converts bounds to units. Args: bounds: (low, high) of each worker, in samples; granularity: samples of a unit.

    Raises: UserError: no batch sizes fit the bounds.
    """
    if granularity < 1:
        raise UserError(f"granularity = {granularity}: expected 1 or more")
    if batch < 1 or batch % granularity:
        raise UserError(f"a global batch of {batch} samples cannot be dealt in units of {granularity}")
    units = []
    for worker, (low, high) in enumerate(bounds):
        if low < 0 or high < low:
            raise UserError(f"worker {worker}: batch sizes from {low} to {high}: expected 0 <= least <= most")
        units.append((-(-low // granularity), high // granularity))
        if units[-1][0] > units[-1][1]:
            raise UserError(f"worker {worker}: no multiple of {granularity} is from {low} to {high}")
    least, most = (granularity * sum(unit[side] for unit in units) for side in (0, 1))
    if not least <= batch <= most:
        raise UserError(
            f"a global batch of {batch} samples cannot be dealt: with their bounds, {len(bounds)} workers take "
            f"{least} to {most}" + (f" in units of {granularity}" if granularity > 1 else "")
        )
    return units


def solve(shares: Sequence[Share], batch: int, granularity: int = 1) -> tuple[int, ...]:
    """Batch sizes, multiples of `granularity`, that sum to `batch` and minimise the makespan.

    Among those it takes sizes that are also best for the second to last worker, and so on; the lower rank wins ties.

    Raises: UserError: no sizes fit the bounds.
    """
    bounds = check([(share.low, share.high) for share in shares], batch, granularity)
    wanted = batch // granularity
    sizes = [low for low, _ in bounds]
    # invariant: units done by the time `below` are fewer than wanted, by `above` enough
    below = min(share.offset_s for share in shares)
    above = max(s.finish_s(granularity * high) for s, (_, high) in zip(shares, bounds, strict=True))
    for _ in range(BISECTIONS):
        if wanted - sum(sizes) <= len(shares):
            break
        level = below + (above - below) / 2
        if not below < level < above:
            break
        done = [
            _done_by(level, share, low, high, granularity) for share, (low, high) in zip(shares, bounds, strict=True)
        ]
        if sum(done) < wanted:
            below, sizes = level, done
        else:
            above = level
    heap = [
        (share.finish_s(granularity * (size + 1)), worker)
        for worker, (share, size, (_, high)) in enumerate(zip(shares, sizes, bounds, strict=True))
        if size < high
    ]
    heapq.heapify(heap)
    for _ in range(wanted - sum(sizes)):
        _, worker = heap[0]
        sizes[worker] += 1
        if sizes[worker] < bounds[worker][1]:
            heapq.heapreplace(heap, (shares[worker].finish_s(granularity * (sizes[worker] + 1)), worker))
        else:
            heapq.heappop(heap)
    return tuple(granularity * size for size in sizes)


def _done_by(level_s: float, share: Share, low: int, high: int, granularity: int) -> int:
    """Number of units, at least `low` and at most `high`, that a worker has done by a time; exact in spite of rounding."""
    speed = share.speed
    rough = (level_s - share.offset_s - speed.beta_s) / (speed.alpha_s * granularity)
    units = max(low, min(high, math.floor(min(max(rough, low), high))))
    while units > low and share.finish_s(granularity * units) > level_s:
        units -= 1
    while units < high and share.finish_s(granularity * (units + 1)) <= level_s:
        units += 1
    return units
