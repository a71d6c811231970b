"""Functions that tell what follows from beliefs at a time, which run as Python and compiled. (protocol section 10.3)

Functions over beliefs (belief.py) and machines (plan.py), either objects or records: net/loop/compiled.py compiles them.
All times are microseconds.
"""

from typing import Any

ASK_AGAIN_US = 20_000  # after which a revocation that was not answered is repeated
LEAST_POLL_US = 6_000  # between two offers of a leader for which there is no work
POLL_LATER = 0.125  # share of a worker's lateness until the next offer because of it
REPEATED = 2  # a lost report is repeated after so many times an answer's time (job/requests.py)
NEVER_US = 1 << 50
LONGEST_US = 1 << 40  # of a micro-batch, whatever workers report: 64 bits have room for any step's


def expected_us(b: Any, shard: Any) -> int:
    """The expected time of a worker for a micro-batch. Args: shard: the belief about the shard's own worker."""
    return int(max(1.0, min(b.each_us * shard.weight / b.weight, float(LONGEST_US))))


def held_until_us(b: Any, now_us: int) -> int:
    """Returns the time at which a worker will have computed all that it holds, without help. An overdue worker is expected
    to take as much longer as it is late already; it is late when its report should be here, half an answer after its work
    was due.
    """
    if b.is_idle or b.holds_nothing:
        return now_us
    if b.is_overdue:
        each_us = int(b.each_us)
        return int(now_us + max(0, now_us - b.newest_us - each_us) + (b.held - b.begun) * each_us)
    return int(max(b.due_us, now_us + max(0, now_us - report_us(b))))


def report_us(b: Any) -> int:
    """When a worker's report that it is done with what it holds should be here."""
    return int(b.due_us + b.answer_us // 2)


def free_us(b: Any, now_us: int) -> int:
    """When a worker will be done with what it holds of its own and with its lot."""
    return int(max(held_until_us(b, now_us), b.lot_us))


def is_behind(b: Any, now_us: int) -> bool:
    """Whether a worker is still receiving sums of earlier steps, down a slow link. It is not silent then; if others did its
    work, more sums would be sent to it, and it would fall further behind.
    """
    return bool(now_us <= b.behind_us)


def has_none(b: Any) -> bool:
    """Whether a worker has computed all that it held, and has no lot."""
    return bool(b.is_idle and not b.has_lot)


def backup_own_us(b: Any, helper: Any) -> int:
    """When a helper may back up a worker's own shard."""
    return int(b.due_us + late_us(b, helper) + old_us(b, helper))


def backup_lot_us(b: Any, helper: Any) -> int:
    """When a helper may back up a worker's lot."""
    return int(b.lot_us + late_us(b, helper) + old_us(b, helper))


def late_us(b: Any, helper: Any) -> int:
    """How late work must be: by as much as a helper takes for it. Data and report of the worker may be queued behind its
    own contribution.
    """
    return int(max(expected_us(helper, b), b.patience_us) + 2 * b.slow_link_us)


def old_us(b: Any, helper: Any) -> int:
    """How old news are at a helper: as old as answers; and a newer report may have been lost and be repeated, which is
    worth waiting for, since a backup would overlap with the worker's own data.
    """
    return int((1 + REPEATED) * (b.answer_us + helper.answer_us))


def next_late(beliefs: Any, rank: int, first: int, now_us: int) -> int:
    """The first worker, from `first` on, whose own shard or lot a rank may back up; -1: there is none."""
    for holder in range(first, len(beliefs)):
        b = beliefs[holder]
        if holder != rank and not has_none(b) and not is_behind(b, now_us):
            if not b.is_idle and now_us >= backup_own_us(b, beliefs[rank]):
                return holder
            if b.has_lot and now_us >= backup_lot_us(b, beliefs[rank]):
                return holder
    return -1


def next_overdue(beliefs: Any, rank: int, first: int, now_us: int) -> int:
    """The first owner, from `first` on, that should have been done by now and has not said so; -1: there is none."""
    for owner in range(first, len(beliefs)):
        b = beliefs[owner]
        if owner == rank or b.is_idle or b.is_ended or is_behind(b, now_us):
            continue
        if b.has_reported and not b.begun and not b.held:
            continue  # it is not in this step yet, and holds nothing of it
        if report_us(b) < now_us:
            return owner
    return -1


def ask_again_us(beliefs: Any, rank: int, now_us: int) -> int:
    """After how long an offer of a rank may change something for others' unfinished shards and lots: when an owner that
    has not said that it is done can be asked for its work, or work may be copied. NEVER_US: there are none.
    """
    soonest_us = NEVER_US
    for other in range(len(beliefs)):
        b, helper = beliefs[other], beliefs[rank]
        if other == rank:
            continue
        if not b.is_idle and (b.held or not b.is_ended):
            # its report may be a little later than forecast
            again_us = report_us(b) + int(POLL_LATER * b.each_us) - now_us
            if again_us <= 0:  # the revocation is repeated
                again_us = max(ASK_AGAIN_US, 2 * b.answer_us)
            soonest_us = min(soonest_us, again_us, _until_us(backup_own_us(b, helper), now_us))
        if b.has_lot:
            soonest_us = min(soonest_us, _until_us(backup_lot_us(b, helper), now_us))
    return int(soonest_us)


def _until_us(silent_us: int, now_us: int) -> int:
    """After how long to ask for copies of work that counts as silent at `silent_us`. The longer it is silent already,
    the longer it is likely to take, and the rarer are the questions.
    """
    if now_us < silent_us:
        return silent_us - now_us
    return max(LEAST_POLL_US, int(POLL_LATER * (now_us - silent_us)))


def machines(beliefs: Any, rank: int, busy_until_us: int, now_us: int, made: Any) -> int:
    """Works out workers as the planner sees them now. Returns: how many pieces might be given to a rank that asks.

    Args:
        rank: that asks for work; -1: none does.
        busy_until_us: when that rank says that it will be done with all that it has.
        made: a machine for each, which is overwritten.
    """
    movable = 0
    for each in range(len(beliefs)):
        m = made[each]
        machine(beliefs[each], busy_until_us if each == rank else NEVER_US, now_us, m)
        movable += m.open + m.loose + (m.held if each != rank else 0)
    return int(movable)


def machine(b: Any, busy_until_us: int, now_us: int, m: Any) -> None:
    """Works out a worker as the planner sees it now.

    Args:
        busy_until_us: when it says that it will be done with all that it has; NEVER_US: it has not just said so.
        m: the machine, which is overwritten.
    """
    each_us = expected_us(b, b)
    m.free_us, left = busy_until_us, 0
    if busy_until_us == NEVER_US:
        m.free_us = free_us(b, now_us)
        if not b.is_idle:  # it has gone on since its last report
            left = min(b.held - b.begun, (held_until_us(b, now_us) - now_us) // each_us)
            m.free_us -= left * each_us
    m.unit_us, m.weight = each_us / b.weight, b.weight
    m.held = left
    m.open, m.loose = (0, b.free) if b.is_ended else (b.free, 0)
    # it is given work when it asks next, and hears of it later
    m.told_us = max(now_us, b.asks_again_us) + b.answer_us // 2
    m.spared_us = NEVER_US if is_behind(b, now_us) else 0
    m.release_us = max(now_us + b.answer_us, m.spared_us)
    m.link_us, m.link_free_us = b.link_us, b.link_free_us
    m.sends = not b.is_idle and b.held > left
    m.joins = b.is_idle or (busy_until_us != NEVER_US and b.slow_link_us > 0)
