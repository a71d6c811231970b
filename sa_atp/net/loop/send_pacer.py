"""Keeps the queue short that a sender builds in its own host, as Linux does for TCP (small queues).

What a socket has been given and what has left are two things where the link is slow: a window's worth of contributions can
wait in the host for longer than a step takes. What others have made superfluous meanwhile cannot be called back, and what
comes next, a claim or the next step's contributions, leaves behind it. So contributions are written for a few milliseconds
ahead only, at the pace at which they were seen to leave.
"""

from collections.abc import Sequence

AHEAD_US = 10_000  # a loaded host comes back within this time
LEAST_BYTES = 32_768  # written ahead however slow the link is
MEASURED_US = 40_000  # packets leave in lumps (segmentation offload): a pace is an average over so long
LATER_US = 1_000  # to the next look, while the pace is not known
SMOOTHING = 0.5
GROWTH = 1.25


class SendPacer:
    """Bytes are the kernel's: with its overhead for each packet."""

    def __init__(self) -> None:
        self._pace = 0.0  # bytes that leave in a microsecond; 0: not known
        self._held = 0  # at the last look
        self._at_us = 0
        self._left = 0  # bytes that have left since the pace was last measured,
        self._busy_us = 0  # ... and in how long a time in which there always were some

    def budget_bytes(self, held: int, now_us: int) -> int | None:
        """Bytes that may be written now; None: nothing holds them back. Args: held: what has not left yet."""
        self._look(held, now_us)
        if self._pace == 0 and held == 0:
            return None
        return max(0, self._limit() - held)

    def wrote(self, bytes_: int, held: int, now_us: int) -> None:
        """Args: held: what has not left, after writing so many bytes."""
        self._held, self._at_us = held, now_us
        if held == 0 and bytes_ >= LEAST_BYTES // 2:
            self._pace, self._left, self._busy_us = 0.0, 0, 0  # it went straight out: no slow link is in this host

    def resume_us(self) -> int | None:
        """When there will be more room; None: when nothing is held back."""
        if self._held <= self._limit() // 2:
            return None
        if self._pace == 0:
            return self._at_us + LATER_US
        wait_us = int((self._held - self._limit() / 2) / self._pace)
        return self._at_us + min(max(LATER_US // 2, wait_us), AHEAD_US)  # a pace that is far too low must not last

    def counted(self) -> tuple[tuple[int, int, int, int], float]:
        """For kernels (steady_loop_kernels.py): what was held, when; what has left since, in what time; the pace."""
        return (self._held, self._at_us, self._left, self._busy_us), self._pace

    def set_counted(self, counted: Sequence[int], pace: float) -> None:
        """Args: as `counted` gave them, after what has happened since."""
        (self._held, self._at_us, self._left, self._busy_us), self._pace = counted, pace

    def _look(self, held: int, now_us: int) -> None:
        # That a short queue is found empty says nothing of the link: it was empty for a while, nobody knows how long.
        if self._held and (held or self._held >= self._limit() // 2):
            self._left += max(0, self._held - held)
            self._busy_us += now_us - self._at_us
            if self._busy_us >= MEASURED_US or (self._pace == 0 and held == 0 and self._busy_us):
                pace = self._left / self._busy_us
                self._pace += (SMOOTHING if self._pace else 1.0) * (pace - self._pace)
                self._left = self._busy_us = 0
            if held == 0:  # a long one shall have lasted until now: they leave faster than we thought
                self._pace *= GROWTH
        self._held, self._at_us = held, now_us

    def _limit(self) -> int:
        return max(LEAST_BYTES, int(self._pace * AHEAD_US))
