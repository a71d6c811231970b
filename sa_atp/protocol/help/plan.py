"""The plan of a step: which worker computes how much, so that the sum is complete soonest. (protocol section 10.3)

Workers are machines with speeds of their own, that are free from different times on (Q | r_j | C_max, a case of
scheduling on unrelated machines, R | r_j | C_max: Lenstra, Shmoys, Tardos, *Approximation algorithms for scheduling
unrelated parallel machines*, 1990). A shard's pieces are alike. A step that ends at T leaves a worker time for so many
pieces of its own shard and, if that is all of it, so many of others:

    own(T)  = pieces of its own that are computed and sent by T, at most those that it has not begun
    more(T) = pieces of others that it computes and sends by T, once it has been told and its own are done

The plan is the smallest T at which what owners leave is no more than what others can do. For pieces that are alike this
is the optimum. Pieces that an owner must first give back are released later, and shards may have pieces of different
sizes; then they are given out by list scheduling, each to the worker that finishes it first (Graham, *Bounds on
multiprocessing timing anomalies*, 1969; Ibarra and Kim, *Heuristic algorithms for scheduling independent tasks on
nonidentical processors*, 1977). A worker whose link is too slow for a contribution of its own by T has none.

All times are microseconds.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

NEVER_US = 1 << 50
PRECISE = 16  # a plan ends at most this share of the shortest piece's time later than the best of its kind


@dataclass(frozen=True, slots=True)
class Machine:
    """What is believed of a worker when a plan is made."""

    free_us: int
    """When it is done with what it cannot give up: pieces that it has begun, its lot."""
    unit_us: float
    """Time for a unit of work; a piece has `weight` units."""
    weight: int = 1
    """Units in a piece of its own shard."""
    held: int = 0
    """Pieces of its own shard that it holds and has not begun."""
    open: int = 0
    """Pieces of its own shard that nobody holds, and that it may still be granted."""
    loose: int = 0
    """Pieces of its own shard that nobody holds, after it was told that there is no more: it may take them as a helper."""
    told_us: int = 0
    """When it can begin a piece of another shard, or one of its own that it does not hold: the answer must have come."""
    spared_us: int = 0
    """When another worker can begin a piece of its shard that nobody holds."""
    release_us: int = 0
    """When another worker can begin a piece that this one holds: it must have given that up first."""
    link_us: int = 0
    """For how long a contribution keeps its link busy."""
    link_free_us: int = 0
    """When what it has sent already has left its link."""
    unsent: int = 0
    """Pieces that it has computed or begun, and not sent."""
    copy_us: int = NEVER_US
    """When another worker can begin a copy of one of these."""
    joins: bool = True
    """Whether what it computes for others leaves together with that, rather than after it."""

    @property
    def piece_us(self) -> float:
        """Time for a piece of its own shard."""
        return self.unit_us * self.weight

    def own(self, end_us: float) -> int:
        """How many pieces of its own shard it can compute and send by then: none, if its link is not free in time."""
        left_us = end_us - self.link_us
        if self.link_free_us > left_us:
            return 0
        count = min(self.held, max(0, int((left_us - self.free_us) // self.piece_us)))
        if count < self.held or not self.open:
            return count
        begin_us = max(self.free_us + self.held * self.piece_us, self.told_us)
        return count + min(self.open, max(0, int((left_us - begin_us) // self.piece_us)))

    def own_done_us(self, count: int) -> float:
        """When it has computed so many pieces of its own shard."""
        done_us = self.free_us + min(count, self.held) * self.piece_us
        return done_us if count <= self.held else max(done_us, self.told_us) + (count - self.held) * self.piece_us

    def left_us(self, computed_us: float) -> float:
        """When what is computed by then has left."""
        return max(computed_us, self.link_free_us) + self.link_us


@dataclass(slots=True)
class Plan:
    """What each worker should do."""

    end_us: float
    """When the last contribution should have left."""
    own: list[int]
    """For each worker, how many more pieces of its own shard it should begin."""
    parts: list[dict[int, int]] = field(default_factory=list)
    """For each worker, how many pieces of each shard it should do as a helper."""


def make(
    machines: Sequence[Machine], *, helpers: Sequence[Collection[int]] | None = None, better_by_us: float = 0.0
) -> Plan:
    """Makes a plan.

    Args:
        machines: by rank.
        helpers: for each shard, the ranks that may compute pieces of it, itself included; None: all.
        better_by_us: how much sooner than without help the sum must be complete; else nobody helps with what others hold,
            or may be granted.
    """
    busy = [r for r, m in enumerate(machines) if m.held or m.open or m.loose or m.unsent]
    first = _within(machines, busy, NEVER_US, helpers)
    assert first is not None, "each worker can do its own"
    found, high_us = first, first.end_us
    low_us: float = max(*(m.link_free_us for m in machines), min(m.told_us for m in machines))
    precise_us = max(1.0, min((m.piece_us for m in machines), default=1.0) / PRECISE)
    while high_us - low_us > precise_us:
        middle_us = (low_us + high_us) / 2
        tried = _within(machines, busy, middle_us, helpers)
        if tried is None:
            low_us = middle_us
        else:
            found, high_us = tried, tried.end_us
    return first if found.end_us + better_by_us >= first.end_us else found


def _within(
    machines: Sequence[Machine], busy: Sequence[int], end_us: float, helpers: Sequence[Collection[int]] | None
) -> Plan | None:
    """Args: busy: machines that have pieces of their own. Returns: a plan whose last contribution leaves by `end_us`; None:
    list scheduling finds none.
    """
    own = [0] * len(machines)
    ready: list[float] = [max(m.free_us, m.told_us) for m in machines]
    link_free_us: list[float] = [m.link_free_us for m in machines]
    last_us: float = max(link_free_us)
    left: list[tuple[int, int, int]] = []  # (release, shard, pieces)
    at_own: set[int] = set()  # workers that keep to their own, or would be too late even with what they have begun
    for shard in busy:
        m = machines[shard]
        own[shard] = count = m.own(end_us)
        done_us = m.own_done_us(count)
        own_left_us = m.left_us(done_us) if m.unsent or count else m.link_free_us
        if own_left_us > end_us and not count:  # nobody waits for it
            left.append((m.copy_us, shard, m.unsent))
            own_left_us = m.link_free_us
            at_own.add(shard)
        last_us = max(last_us, own_left_us)
        ready[shard] = max(done_us, m.told_us)
        if not m.joins:
            link_free_us[shard] = own_left_us
        surplus = m.held + m.open - count
        if surplus:
            at_own.add(shard)
        free = min(surplus, m.open) + m.loose
        left += [(m.spared_us, shard, free)] if free else []
        held = surplus + m.loose - free
        left += [(m.release_us, shard, held)] if held else []
    if last_us > end_us:
        return None
    parts: list[dict[int, int]] = [{} for _ in machines]
    # a worker helps when its own shard is done
    helping = [r for r in range(len(machines)) if r not in at_own] if left else []
    for release_us, shard, pieces in sorted(left, key=lambda each: (each[0], -machines[each[1]].weight)):
        weight = machines[shard].weight

        def finish(rank: int, release_us: int = release_us, weight: int = weight) -> tuple[float, float, int]:
            """When a worker would have sent a piece; when it would have computed it."""
            m = machines[rank]
            computed_us = max(ready[rank], release_us) + m.unit_us * weight
            return max(computed_us, link_free_us[rank]) + m.link_us, computed_us, rank

        soonest = [finish(rank) for rank in helping if helpers is None or rank in helpers[shard]]
        heapq.heapify(soonest)
        for _ in range(pieces):
            if not soonest or soonest[0][0] > end_us:
                return None
            finish_us, computed_us, rank = soonest[0]
            ready[rank] = computed_us
            parts[rank][shard] = parts[rank].get(shard, 0) + 1
            last_us = max(last_us, finish_us)
            heapq.heapreplace(soonest, finish(rank))
    return Plan(last_us, own, parts)
