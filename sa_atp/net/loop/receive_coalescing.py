"""Lets packets gather for a moment where many come one by one, so that each wake-up is for more than one of them.

A loop that handles batches spends most of its time on what a batch costs, whatever is in it. While packets come faster
than it can handle them they gather by themselves; a little slower than that, each would be a batch of its own, and the
loop would take a whole core for half the work. Network adapters moderate their interrupts for the same reason.
"""

import math

from sa_atp.net.clock import now_us

SOON = 2  # batches, that come in the time for which packets may gather
MEMORY_US = 50_000  # over which arrivals are counted: a short burst is no stream


class ReceiveCoalescing:
    def __init__(self, longest_us: int, enough: int, worth_it: int) -> None:
        """Args:
        longest_us: how long packets may gather.
        enough: a batch of so many packets is large enough.
        worth_it: a pause in which fewer arrive costs time and saves little.
        """
        self.longest_us = longest_us
        self._enough = enough
        self._worth_it = worth_it
        self._recent = 0.0  # packets in about the last MEMORY_US
        self._counted_us = now_us()

    def counted(self) -> tuple[tuple[int, int, int, int], float]:
        """For kernels (steady_loop_kernels.py): when packets were last counted, what was given; how many came lately."""
        return (self._counted_us, self.longest_us, self._enough, self._worth_it), self._recent

    def set_counted(self, counted_us: int, recent: float) -> None:
        """Args: as `counted` gave them, after what has happened since."""
        self._counted_us, self._recent = counted_us, recent

    def pause_s(self, packets: int, most: int | None = None) -> float:
        """How long to wait before looking again.

        Args: packets: what the last look brought; most: how many may gather, if fewer than enough.
        """
        now = now_us()
        # a stream that has just begun, or comes faster than it did, is as fast as this look shows it
        pace = packets / max(1, now - self._counted_us)
        self._recent = self._recent * math.exp((self._counted_us - now) / MEMORY_US) + packets
        self._counted_us = now
        enough = self._enough if most is None else min(self._enough, most)
        pace = max(pace, self._recent / MEMORY_US)
        # where a batch is large enough, and the next one will be so soon, there is nothing to wait for
        if packets <= 0 or enough <= 0 or (packets >= enough and pace * self.longest_us >= SOON * enough):
            return 0.0
        # in packets: what will have gathered by the end of the pause
        gathered = min(float(enough), pace * self.longest_us)
        return gathered / pace / 1e6 if gathered >= self._worth_it else 0.0
