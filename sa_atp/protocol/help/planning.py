"""Functions that find the plan of a step, which run as Python and compiled. (protocol section 10.3)

Functions over machines (plan.py), either objects or records: net/loop/compiled.py compiles them. All times are
microseconds.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sa_atp.protocol.help.believing import NEVER_US

AT_ALL_US = 4.0 * NEVER_US
PRECISE = 16  # a plan ends at most this share of the shortest piece's time later than the best of its kind
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Matrix = NDArray[np.int64]
May = NDArray[np.bool_]


def make(machines: Any, helpers: May, own: Integers, parts: Matrix) -> float:
    """Makes a plan. Returns: when it ends.

    Args:
        helpers: [shard, rank]: whether a rank may compute pieces of a shard.
        own, parts: the plan's, [rank] and [rank, shard], which are overwritten.
    """
    within_us = AT_ALL_US
    found_us = schedule(machines, helpers, within_us, own, parts)  # each worker can do its own: there is one
    last_free_us, first_told_us, shortest_us = -math.inf, math.inf, math.inf
    for rank in range(len(machines)):
        m = machines[rank]
        last_free_us = max(last_free_us, m.link_free_us)
        first_told_us = min(first_told_us, m.told_us)
        shortest_us = min(shortest_us, piece_us(m))
    low_us, precise_us = max(last_free_us, first_told_us), max(1.0, shortest_us / PRECISE)
    while found_us - low_us > precise_us:
        middle_us = (low_us + found_us) / 2
        tried_us = schedule(machines, helpers, middle_us, own, parts)
        if tried_us == math.inf:
            low_us = middle_us
        else:
            found_us, within_us = tried_us, middle_us
    return schedule(machines, helpers, within_us, own, parts)


def schedule(machines: Any, helpers: May, end_us: float, own: Integers, parts: Matrix) -> float:
    """Makes a plan whose last contribution leaves by `end_us`. Returns: when that is; infinity: list scheduling finds
    none.
    """
    count = len(machines)
    own.fill(0)
    parts.fill(0)
    ready_us, link_free_us = np.empty(count), np.empty(count)
    is_helper = np.ones(count, np.bool_)
    last_us = -math.inf
    left = np.empty(
        (2 * count, 4), np.int64
    )  # (release, weight, shard, pieces), in the order in which they are given out
    rows = 0
    for rank in range(count):
        m = machines[rank]
        ready_us[rank] = max(m.free_us, m.told_us)
        link_free_us[rank] = m.link_free_us
        last_us = max(last_us, link_free_us[rank])
        if not (m.held or m.open or m.loose or m.sends):
            continue
        own[rank] = pieces = own_by(m, end_us)
        done_us = own_done_us(m, pieces)
        ready_us[rank] = max(done_us, m.told_us)
        own_left_us = max(done_us, m.link_free_us) + m.link_us
        if pieces:
            last_us = max(last_us, own_left_us)
        if (pieces or m.sends) and not m.joins:
            link_free_us[rank] = own_left_us
        surplus = m.held + m.open - pieces
        if surplus:
            is_helper[rank] = False
        free = min(surplus, m.open) + m.loose
        if free:
            rows = insert(left, rows, m.spared_us, m.weight, rank, free)
        held = surplus + m.loose - free
        if held:
            rows = insert(left, rows, m.release_us, m.weight, rank, held)
    if last_us > end_us:
        return math.inf
    for row in range(rows):
        release_us, weight, shard = left[row, 0], left[row, 1], left[row, 2]
        for _ in range(left[row, 3]):
            soonest_us, computed_us, by = math.inf, math.inf, -1
            for rank in range(count):
                if not is_helper[rank] or not helpers[shard, rank]:  # a worker helps when its own shard is done
                    continue
                m = machines[rank]
                done_us = max(ready_us[rank], release_us) + m.unit_us * weight
                sent_us = max(done_us, link_free_us[rank]) + m.link_us
                if sent_us < soonest_us or (sent_us == soonest_us and done_us < computed_us):
                    soonest_us, computed_us, by = sent_us, done_us, rank
            if soonest_us > end_us:
                return math.inf
            ready_us[by] = computed_us
            parts[by, shard] += 1
            last_us = max(last_us, soonest_us)
    return last_us


def insert(left: Matrix, rows: int, release_us: int, weight: int, shard: int, pieces: int) -> int:
    """Inserts pieces behind those that are released before, and of those released with them behind larger ones.

    Args: rows: that `left` has. Returns: how many it has then.
    """
    at = rows
    while at and (left[at - 1, 0] > release_us or (left[at - 1, 0] == release_us and left[at - 1, 1] < weight)):
        for column in range(left.shape[1]):
            left[at, column] = left[at - 1, column]
        at -= 1
    left[at, 0], left[at, 1], left[at, 2], left[at, 3] = release_us, weight, shard, pieces
    return rows + 1


def piece_us(m: Any) -> float:
    """Time for a piece of a worker's own shard."""
    return float(m.unit_us * m.weight)


def own_by(m: Any, end_us: float) -> int:
    """How many pieces of its own shard a worker can compute and send by then: none, if its link is not free in time."""
    latest_us = end_us - m.link_us
    if m.link_free_us > latest_us:
        return 0
    count = int(min(float(m.held), max(0.0, (latest_us - m.free_us) // piece_us(m))))
    if count < m.held or not m.open:
        return count
    begin_us = max(m.free_us + m.held * piece_us(m), m.told_us)
    return count + int(min(float(m.open), max(0.0, (latest_us - begin_us) // piece_us(m))))


def own_done_us(m: Any, count: int) -> float:
    """When a worker has computed so many pieces of its own shard."""
    done_us = m.free_us + min(count, m.held) * piece_us(m)
    if count <= m.held:
        return float(done_us)
    return float(max(done_us, m.told_us) + (count - m.held) * piece_us(m))
