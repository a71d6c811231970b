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

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sa_atp.protocol.help import believing, planning
from sa_atp.protocol.help.belief import Belief
from sa_atp.protocol.help.planning import May
from sa_atp.protocol.records import Records, table


class Kernels(Protocol):
    """Functions of believing.py and planning.py, compiled for records; or `PLAIN`, for objects."""

    @property
    def machines(self) -> Any: ...
    @property
    def next_late(self) -> Any: ...
    @property
    def next_overdue(self) -> Any: ...
    @property
    def ask_again_us(self) -> Any: ...
    @property
    def make(self) -> Any: ...


PLAIN: Kernels = SimpleNamespace(
    machines=believing.machines,
    next_late=believing.next_late,
    next_overdue=believing.next_overdue,
    ask_again_us=believing.ask_again_us,
    make=planning.make,
)


@dataclass(slots=True)
class Machine:
    """What is believed of a worker when a plan is made: a record class (protocol/records.py)."""

    free_us: int = 0
    """When it is done with what it cannot give up: pieces that it has begun, its lot."""
    unit_us: float = 0.0
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
    sends: bool = False
    """Whether it has begun pieces of its own, which will keep its link busy."""
    joins: bool = True
    """Whether what it computes for others leaves together with that, rather than after it."""


@dataclass(slots=True)
class Plan:
    """What each worker should do."""

    end_us: float
    """When the last contribution should have left."""
    own: list[int]
    """For each worker, how many more pieces of its own shard it should begin."""
    parts: list[dict[int, int]] = field(default_factory=list)
    """For each worker, how many pieces of each shard it should do as a helper."""


Machines = Sequence[Machine] | NDArray[np.void]
"""By rank: objects, or records."""


def machines(
    beliefs: Sequence[Belief] | NDArray[np.void], rank: int, busy_until_us: int, now_us: int, kernels: Kernels = PLAIN
) -> tuple[Machines, int]:
    """Works out workers as the planner sees them now.

    Args: beliefs: by rank: objects, or records for compiled kernels; for the others see believing.machines.
    Returns: by rank: objects, or records; and how many pieces might be given to the rank that asks.
    """
    made = table(Machine, len(beliefs)) if isinstance(beliefs, np.ndarray) else [Machine() for _ in beliefs]
    return made, int(kernels.machines(beliefs, rank, busy_until_us, now_us, made))


def held_of(machines: Machines) -> list[int]:
    """How many pieces each worker holds and has not begun."""
    if isinstance(machines, np.ndarray):
        found: list[int] = machines["held"].tolist()
        return found
    return [m.held for m in machines]


def make(machines: Machines, *, helpers: May | None = None, kernels: Kernels = PLAIN) -> Plan:
    """Makes a plan.

    Args:
        machines: by rank.
        helpers: [shard, rank]: whether a rank may compute pieces of a shard; None: all may.
    """
    count, given = len(machines), machines
    if kernels is not PLAIN and not isinstance(machines, np.ndarray):
        records = Records(Machine, count)
        for rank, each in enumerate(machines):
            records.write(rank, each)
        given = records.array
    own, parts = np.zeros(count, np.int64), np.zeros((count, count), np.int64)
    may = np.ones((count, count), np.bool_) if helpers is None else helpers
    made = Plan(kernels.make(given, may, own, parts), own.tolist(), [{} for _ in machines])
    for rank, shard in zip(*(each.tolist() for each in parts.nonzero()), strict=True):
        made.parts[rank][shard] = int(parts[rank, shard])
    return made
