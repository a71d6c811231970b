"""Lets packets gather for a moment where many come one by one, so that each wake-up is for more than one of them.

A loop that handles batches spends most of its time on what a batch costs, whatever is in it. While packets come faster
than it can handle them they gather by themselves; a little slower than that, each would be a batch of its own, and the
loop would take a whole core for half the work. Network adapters moderate their interrupts for the same reason.
"""

import math

from sa_atp.net.clock import now_us

MEMORY_US = 5_000  # over which arrivals are counted
MANY = 40  # so many within that time are worth a pause: about 8000 a second
ENOUGH = 32  # a batch of so many is large enough


class Moderation:
    def __init__(self, pause_us: int) -> None:
        """Args: pause_us: how long packets may gather."""
        self._pause_s = pause_us / 1e6
        self._recent = 0.0  # packets in about the last MEMORY_US
        self._counted_us = now_us()

    def pause_s(self, packets: int) -> float:
        """How long to wait before looking again. Args: packets: what the last look brought."""
        now = now_us()
        self._recent = self._recent * math.exp((self._counted_us - now) / MEMORY_US) + packets
        self._counted_us = now
        return self._pause_s if packets and packets < ENOUGH and self._recent > MANY else 0.0
