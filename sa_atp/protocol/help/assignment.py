"""Decisions about help, from projected finish times. (protocol section 10.3)

All times are microseconds. A worker that holds a micro-batch is free when that one is done; its own shard's unclaimed
micro-batches come after it. Tasks are interchangeable: each costs a worker that worker's time for one micro-batch. On a
slow link what a worker adds leaves when it is computed and its own contribution has left, all in one contribution.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """A worker as the projection sees it."""

    free_us: int  # when it can begin something that is not its own
    micro_batch_us: int  # how long it takes for one
    link_free_us: int = 0  # when its link can take what it does
    link_us: int = 0  # for how long that keeps its link busy, however many they are

    def finish_us(self, done_us: int) -> int:
        """When what is computed at some time has left it."""
        return max(done_us, self.link_free_us) + self.link_us


def makespan(tasks: int, capacities: Iterable[Capacity]) -> int | None:
    """When `tasks` micro-batches are done if each goes to whoever finishes it first; None without anyone to do them."""
    all_ = list(capacities)
    if not all_:
        return None
    done = [c.free_us + c.micro_batch_us for c in all_]  # when each has computed its next one
    heap = [(c.finish_us(done_us), n) for n, (c, done_us) in enumerate(zip(all_, done, strict=True))]
    heapq.heapify(heap)
    last = 0
    for _ in range(tasks):
        finish, n = heap[0]
        last = max(last, finish)
        done[n] += all_[n].micro_batch_us
        heapq.heapreplace(heap, (all_[n].finish_us(done[n]), n))
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
