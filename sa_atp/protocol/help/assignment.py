"""Decisions about help, from projected finish times. (protocol section 10.3)

All times are microseconds. A worker is free once the micro-batches that it holds are done. Tasks are interchangeable:
each costs a worker that worker's time for one micro-batch. On a slow link the results of a worker's tasks leave
together, once they are computed and the worker's own contribution has left.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """A worker's capacity for tasks of others."""

    free_us: int  # when it can begin a task
    micro_batch_us: int  # how long a task takes it
    link_free_us: int = 0  # when its link can take the results
    link_us: int = 0  # how long they keep its link busy, however many there are

    def finish_us(self, done_us: int) -> int:
        """When results that are computed at `done_us` have left the worker."""
        return max(done_us, self.link_free_us) + self.link_us


def makespan(tasks: int, capacities: Iterable[Capacity]) -> int | None:
    """When `tasks` micro-batches are done if each goes to the worker that finishes it first; None: there is no worker."""
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
    """Whether a worker should take one of `left` micro-batches: without it, the others would not be done sooner.

    Args:
        finish_us: when it would be done with that micro-batch.
        others: all other workers that could do them.
    """
    without = makespan(left, others)
    return without is None or finish_us <= without


def worth_helping(helper_finish_us: int, owner_finish_us: int, margin_us: int) -> bool:
    """Whether a helper would be done with the owner's last micro-batch clearly before the owner."""
    return helper_finish_us + margin_us < owner_finish_us
