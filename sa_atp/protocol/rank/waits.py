"""Collects how long a rank waited for its sums, so that the parameter server can find slow ranks. (protocol section 7.7)"""

from collections.abc import Sequence

from sa_atp.protocol.packets.lateness_messages import LONGEST_WAIT_US, MOST_WAITS, Wait


class Waits:
    """The waits since the last sign of life. If there are too many for one message, every second, fourth, ... is kept.

    Every rank counts the same sums, so all ranks keep the same: multiples of a power of two. The power falls by one with
    each sign of life, so most of many small sums are only counted.
    """

    def __init__(self, now_us: int = 0) -> None:
        """Args: now_us: when the connection began."""
        self.counted = 0
        """Sums so far."""
        self.waited_us = self.sent_us = 0
        """Time from contributions to all these sums, and the part of it in which contributions left."""
        self.computed_us = 0
        """Time before and between these waits."""
        self._done_us = now_us  # the newest sum
        self._step = 1  # every so many are kept
        self._kept: dict[int, Wait] = {}  # by number of the sum

    def note_done(self, operation: int, sending: Sequence[tuple[int, int]], round_trip_us: int, now_us: int) -> None:
        """Notes that a sum is done.

        Args:
            operation: its number in the job.
            sending: times between which our contribution left, see Collectives.sending; empty: other ranks have sent it.
            round_trip_us: the smoothed round trip to the switch.
        """
        number = self.counted
        self.counted += 1
        waited_us, sent_us = (now_us - sending[0][0] if sending else 0), 0
        for start, end in sending:
            sent_us += end - start
        known_us = max(0, waited_us)
        self.waited_us += known_us
        self.sent_us += min(sent_us, known_us)
        self.computed_us += max(0, now_us - self._done_us - known_us)  # waits may overlap
        self._done_us = now_us
        if number % self._step:
            return
        times = [min(max(0, each), LONGEST_WAIT_US) for each in (waited_us, sent_us, round_trip_us)]
        self._kept[number] = Wait(operation, *times)
        while len(self._kept) > MOST_WAITS:
            self._step *= 2
            self._kept = {n: wait for n, wait in self._kept.items() if n % self._step == 0}

    def take(self) -> list[Wait]:
        """Returns the waits for a sign of life, and forgets them."""
        found = list(self._kept.values())
        self._kept.clear()
        self._step = max(1, self._step // 2)
        return found

    def __len__(self) -> int:
        return len(self._kept)
