"""Lets packets gather for a moment where many come one by one, so that each wake-up is for more than one of them.

A loop that handles batches spends most of its time on what a batch costs, whatever is in it. While packets come faster
than it can handle them they gather by themselves; a little slower than that, each would be a batch of its own, and the
loop would take a whole core for half the work. Network adapters moderate their interrupts for the same reason.
"""

import math

from sa_atp.net.clock import now_us

SOON = 2  # batches, that come in the time for which packets may gather
MEMORY_US = 50_000  # over which arrivals are counted: a short burst is no stream


def pause_us(coalescing: "ReceiveCoalescing", packets: int, most: int, now_us: int) -> float:
    """How long to wait before looking again, in microseconds.

    Args: packets: what the last look brought; most: how many may gather, if fewer than enough.
    """
    # a stream that has just begun, or comes faster than it did, is as fast as this look shows it
    pace = packets / max(1, now_us - coalescing.counted_us)
    coalescing.recent = coalescing.recent * math.exp((coalescing.counted_us - now_us) / MEMORY_US) + packets
    coalescing.counted_us = now_us
    enough = min(coalescing.enough, most)
    pace = max(pace, coalescing.recent / MEMORY_US)
    # where a batch is large enough, and the next one will be so soon, there is nothing to wait for
    if packets <= 0 or enough <= 0 or (packets >= enough and pace * coalescing.longest_us >= SOON * enough):
        return 0.0
    # in packets: what will have gathered by the end of the pause
    gathered = min(float(enough), pace * coalescing.longest_us)
    return gathered / pace if gathered >= coalescing.worth_it else 0.0


class ReceiveCoalescing:
    """How fast packets arrive, and how long they may gather: a record class (protocol/records.py)."""

    recent: float
    """Packets in about the last MEMORY_US, when they were last counted."""
    counted_us: int
    longest_us: int
    """How long packets may gather."""
    enough: int
    """A batch of so many packets is large enough."""
    worth_it: int
    """A pause in which fewer arrive costs time and saves little."""

    def __init__(self, longest_us: int, enough: int, worth_it: int) -> None:
        self.longest_us, self.enough, self.worth_it = longest_us, enough, worth_it
        self.recent = 0.0
        self.counted_us = now_us()

    def pause_s(self, packets: int, most: int | None = None) -> float:
        """See `pause_us`, for now, in seconds."""
        return pause_us(self, packets, self.enough if most is None else most, now_us()) / 1e6
