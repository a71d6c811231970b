"""Decisions about help, from projected finish times. (protocol section 10.3)

All times are microseconds. A worker that holds a micro-batch is free when that one is done; its own shard's unclaimed
micro-batches come after it. Tasks are interchangeable: each costs a worker that worker's time for one micro-batch.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """A worker as the projection sees it."""

    free_us: int  # when it can begin something that is not its own
    micro_batch_us: int  # how long it takes for one


def makespan(tasks: int, capacities: Iterable[Capacity]) -> int | None:
    """When `tasks` micro-batches are done if each goes to whoever finishes it first; None without anyone to do them."""
    heap = [(c.free_us + c.micro_batch_us, c.micro_batch_us) for c in capacities]
    if not heap:
        return None
    heapq.heapify(heap)
    last = 0
    for _ in range(tasks):
        finish, duration = heap[0]
        last = max(last, finish)
        heapq.heapreplace(heap, (finish + duration, duration))
    return last


def should_do(finish_us: int, left: int, others: Iterable[Capacity]) -> bool:
    """True if a worker should take one of `left` micro-batches: without it, they would not be done sooner.

    Args:
        finish_us: when it would be done with that one.
        others: everyone else who could do them.
    """
    without = makespan(left, others)
    return without is None or finish_us <= without


def worth_helping(helper_finish_us: int, owner_finish_us: int, margin_us: int) -> bool:
    """True if a helper would be done with the owner's last micro-batch clearly before the owner."""
    return helper_finish_us + margin_us < owner_finish_us
