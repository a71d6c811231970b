"""How long a rank waited for its sums, for the parameter server to find out who was slow. (protocol section 7.7)"""

from collections.abc import Sequence

from sa_atp.protocol.packets.lateness_messages import LONGEST_WAIT_US, MOST_WAITS, Wait


class Waits:
    """Collects them until the next sign of life. If there are more than that carries, every second, fourth, ... stays.

    Every rank counts the same sums, so all choose the same: the multiples of a power of two. For the next sign of life
    that power is one less, so that most of many small sums cost nothing but being counted.
    """

    def __init__(self) -> None:
        self._counted = 0  # sums so far
        self._step = 1  # every so many are kept
        self._kept: dict[int, Wait] = {}  # by number of the sum

    def done(self, operation: int, sending: Sequence[tuple[int, int]], round_trip_us: int, now_us: int) -> None:
        """Notes that a sum is done.

        Args:
            operation: its number in the job.
            sending: from when to when our contribution left, as Worker.sending; empty: others have sent it.
            round_trip_us: of our path to the switch, smoothed.
        """
        number = self._counted
        self._counted += 1
        if number % self._step:
            return
        waited_us = now_us - sending[0][0] if sending else 0
        sent_us = sum(end - start for start, end in sending)
        times = (min(max(0, each), LONGEST_WAIT_US) for each in (waited_us, sent_us, round_trip_us))
        self._kept[number] = Wait(operation, *times)
        while len(self._kept) > MOST_WAITS:
            self._step *= 2
            self._kept = {n: wait for n, wait in self._kept.items() if n % self._step == 0}

    def take(self) -> list[Wait]:
        """What a sign of life says; it is forgotten here."""
        found = list(self._kept.values())
        self._kept.clear()
        self._step = max(1, self._step // 2)
        return found

    def __len__(self) -> int:
        return len(self._kept)
