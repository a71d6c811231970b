"""How long nothing has come: when to ask what became of fragments, and when to give up. (protocol sections 5.4 and 11)

It is told what happens, and when; whoever looks at it brings the time. It asks nothing itself: that is recovery.py's.
"""

from sa_atp.protocol.rank.pace.timing import MAX_TIMEOUT_US, RoundTrip, timeout_us

MOST_DOUBLINGS = 8  # of the time-out; the longest one is reached before


def on_sent(timer: "ProbeTimer", now_us: int) -> None:
    """Starts the timer anew: contributions have left."""
    timer.since_us = now_us


def on_news(timer: "ProbeTimer", now_us: int) -> None:
    """Starts the timer anew: a new result has come."""
    timer.since_us = timer.progress_us = now_us
    timer.timeouts = 0


def until_us(timer: "ProbeTimer", round_trip: RoundTrip, in_flight: int) -> int:
    """Time at which the timer expires, and a probe leaves. Args: in_flight: number of fragments that are unanswered."""
    if not in_flight:
        return timer.since_us + timer.most_us  # all that can be missing is others' work
    return timer.since_us + min(timeout_us(round_trip) << min(timer.timeouts, MOST_DOUBLINGS), timer.most_us)


class ProbeTimer:
    """The probe timer of a connection, for all its operations: a record class (records.py)."""

    timeouts: int
    """Silences in a row that have ended in questions, since something was found out."""
    since_us: int
    """When something was last sent, a new result last came, or questions were last asked."""
    progress_us: int
    most_us: int
    """The longest time-out."""

    def __init__(
        self,
        round_trip: RoundTrip,
        longest_us: int,
        now_us: int,
        *,
        longest_refused_us: int | None = None,
        most_us: int = MAX_TIMEOUT_US,
    ) -> None:
        """Args:
        longest_us: how long there may be no progress.
        longest_refused_us: how long the switch's host may refuse packets, since a switch may restart; None: as long.
        most_us: the longest time-out.
        """
        self.most_us = most_us
        self.timeouts = 0
        self.longest_us = longest_us
        """How long there may be no progress."""
        self._round_trip = round_trip
        self._longest_refused_us = longest_us if longest_refused_us is None else longest_refused_us
        self.since_us = self.progress_us = now_us
        self._refused_since_us: int | None = None  # for how long the switch's host has refused packets
        self._refused_us = now_us  # when it last did

    # --- what happens -------------------------------------------------------------------------------------------------

    def on_values(self, now_us: int) -> None:
        """A program has contributed values, which can be sent."""
        self.since_us = max(self.since_us, now_us)

    on_sent, on_news = on_sent, on_news

    def on_known(self, now_us: int) -> None:
        """Starts the timer anew: a result came twice, since it was asked for. Missing ones may be queued behind it."""
        self.since_us = now_us

    def on_loss(self) -> None:
        """Ends the doubling of the time-out: an answer has shown which fragments are lost."""
        self.timeouts = 0

    def on_progress(self, now_us: int) -> None:
        """No fragment can be missing yet: no operation is open, or the first one has just been opened."""
        self.progress_us = now_us

    def on_standstill(self, stood_us: int, now_us: int) -> None:
        """The process did not run for so long: nothing could come."""
        self.progress_us = min(now_us, self.progress_us + stood_us)
        if self._refused_since_us is not None:
            self._refused_since_us = min(now_us, self._refused_since_us + stood_us)

    def on_refused(self, now_us: int) -> None:
        """The switch's host has answered that nobody has its port."""
        if not self.is_refused(now_us):
            self._refused_since_us = now_us
        self._refused_us = now_us

    # --- what follows -------------------------------------------------------------------------------------------------

    def until_us(self, in_flight: int) -> int:
        return until_us(self, self._round_trip, in_flight)

    def is_over(self, in_flight: int, now_us: int) -> bool:
        """Whether it is time to ask. Then this silence is counted, and the next one begins."""
        if now_us < self.until_us(in_flight):
            return False
        self.since_us = now_us
        self.timeouts += 1
        return True

    def is_refused(self, now_us: int) -> bool:
        """Whether the switch's host refuses packets: it has said so lately. Hosts say so once a second at most (RFC 1812,
        section 4.3.2.8), to all who ask together.
        """
        return self._refused_since_us is not None and now_us - self._refused_us <= self._longest_refused_us // 2

    def stuck_us(self, now_us: int) -> int | None:
        """Returns how long there was no progress, if that is longer than it may be, or the switch is gone for too long."""
        stuck_us = now_us - self.progress_us
        is_gone = (
            self._refused_since_us is not None
            and self.is_refused(now_us)
            and min(stuck_us, self._refused_us - self._refused_since_us) > self._longest_refused_us
        )
        return stuck_us if is_gone or stuck_us > self.longest_us else None
