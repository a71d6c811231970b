"""How long nothing has come: when to ask what became of fragments, and when to give up. (protocol sections 5.4 and 11)

It is told what happens, and when; whoever looks at it brings the time. It asks nothing itself: that is recovery.py's.
"""

from sa_atp.protocol.rank.pace.timing import MAX_TIMEOUT_US, RoundTrip

MOST_DOUBLINGS = 8  # of the time-out; the longest one is reached before


class ProbeTimer:
    """Of all operations of a connection together."""

    def __init__(
        self, round_trip: RoundTrip, longest_us: int, now_us: int, *, longest_refused_us: int | None = None
    ) -> None:
        """Args:
        longest_us: how long there may be no progress.
        longest_refused_us: how long the switch's host may refuse packets, since a switch may restart; None: as long.
        """
        self.timeouts = 0
        """Silences in a row that have ended in questions, since something was found out."""
        self.longest_us = longest_us
        """How long there may be no progress."""
        self._round_trip = round_trip
        self._longest_refused_us = longest_us if longest_refused_us is None else longest_refused_us
        self._since_us = now_us  # last time something was sent or a new result came, or questions were asked
        self._progress_us = now_us
        self._refused_since_us: int | None = None  # for how long the switch's host has refused packets
        self._refused_us = now_us  # when it last did

    # --- what happens -------------------------------------------------------------------------------------------------

    def on_values(self, now_us: int) -> None:
        """There is something to send."""
        self._since_us = max(self._since_us, now_us)

    def on_sent(self, now_us: int) -> None:
        """Contributions have left."""
        self._since_us = now_us

    def on_news(self, now_us: int) -> None:
        """A result came that was not known: whoever waits may wait as long again before it asks."""
        self._since_us = self._progress_us = now_us
        self.timeouts = 0

    def on_known(self, now_us: int) -> None:
        """A result came that we had asked for, and have by now: what is missing may wait behind it, on a slow link."""
        self._since_us = now_us

    def on_loss(self) -> None:
        """An answer has shown what is lost, so the next questions are as urgent as the first were."""
        self.timeouts = 0

    def on_progress(self, now_us: int) -> None:
        """There is nothing that could be missing, or its turn has just come."""
        self._progress_us = now_us

    def on_standstill(self, stood_us: int, now_us: int) -> None:
        """The process did not run for so long: nothing could come."""
        self._progress_us = min(now_us, self._progress_us + stood_us)
        if self._refused_since_us is not None:
            self._refused_since_us = min(now_us, self._refused_since_us + stood_us)

    def on_refused(self, now_us: int) -> None:
        """The switch's host has answered that nobody has its port."""
        if not self.is_refused(now_us):
            self._refused_since_us = now_us
        self._refused_us = now_us

    def counted(self) -> tuple[int, int]:
        """For kernels (steady_kernels.py): since when it has been silent, and when there was progress."""
        return self._since_us, self._progress_us

    def set_counted(self, since_us: int, progress_us: int) -> None:
        """Args: as `counted` gave them, after what has happened since."""
        self._since_us, self._progress_us = since_us, progress_us

    # --- what follows -------------------------------------------------------------------------------------------------

    def until_us(self, in_flight: int) -> int:
        """When it has lasted long enough to ask. Args: in_flight: fragments that somebody should have answered."""
        if not in_flight:
            return self._since_us + MAX_TIMEOUT_US  # all that can be missing is others' work
        return self._since_us + min(self._round_trip.timeout_us << min(self.timeouts, MOST_DOUBLINGS), MAX_TIMEOUT_US)

    def is_over(self, in_flight: int, now_us: int) -> bool:
        """Whether it is time to ask. Then this silence is counted, and the next one begins."""
        if now_us < self.until_us(in_flight):
            return False
        self._since_us = now_us
        self.timeouts += 1
        return True

    def is_refused(self, now_us: int) -> bool:
        """Whether the switch's host refuses packets: it has said so lately. Hosts say so once a second at most (RFC 1812,
        section 4.3.2.8), to all who ask together.
        """
        return self._refused_since_us is not None and now_us - self._refused_us <= self._longest_refused_us // 2

    def stuck_us(self, now_us: int) -> int | None:
        """For how long there has been no progress, if that is longer than it may be, or the switch is gone for too long."""
        stuck_us = now_us - self._progress_us
        is_gone = (
            self._refused_since_us is not None
            and self.is_refused(now_us)
            and min(stuck_us, self._refused_us - self._refused_since_us) > self._longest_refused_us
        )
        return stuck_us if is_gone or stuck_us > self.longest_us else None
