"""Keeps the queue short that a sender builds in its own host, as Linux does for TCP (small queues).

What a socket has been given and what has left are two things where the link is slow: a window's worth of contributions can
wait in the host for longer than a step takes. What others have made superfluous meanwhile cannot be called back, and what
comes next, a claim or the next step's contributions, leaves behind it. So contributions are written for a few milliseconds
ahead only, at the pace at which they were seen to leave.
"""

AHEAD_US = 10_000  # a loaded host comes back within this time
LEAST_BYTES = 32_768  # written ahead however slow the link is
MEASURED_US = 40_000  # packets leave in lumps (segmentation offload): a pace is an average over so long
LATER_US = 1_000  # to the next look, while the pace is not known
SMOOTHING = 0.5
GROWTH = 1.25


UNLIMITED = -1  # of a number of bytes
NOTHING_HELD = -1  # of the time when there is more room


def _limit(pacer: "SendPacer") -> int:
    return max(LEAST_BYTES, int(pacer.pace * AHEAD_US))


def _look(pacer: "SendPacer", held: int, now_us: int) -> None:
    # A short queue that is found empty says nothing of the link: it was empty for an unknown time.
    if pacer.held and (held or pacer.held >= _limit(pacer) // 2):
        pacer.left += max(0, pacer.held - held)
        pacer.busy_us += now_us - pacer.at_us
        if pacer.busy_us >= MEASURED_US or (pacer.pace == 0 and held == 0 and pacer.busy_us):
            pace = pacer.left / pacer.busy_us
            pacer.pace += (SMOOTHING if pacer.pace else 1.0) * (pace - pacer.pace)
            pacer.left = pacer.busy_us = 0
        if held == 0:  # a long one shall have lasted until now: they leave faster than we thought
            pacer.pace *= GROWTH
    pacer.held, pacer.at_us = held, now_us


def budget_bytes(pacer: "SendPacer", held: int, now_us: int) -> int:
    """Bytes that may be written now, or UNLIMITED. Args: held: bytes that were written and have not left the host yet."""
    _look(pacer, held, now_us)
    if pacer.pace == 0 and held == 0:
        return UNLIMITED
    return max(0, _limit(pacer) - held)


def wrote(pacer: "SendPacer", bytes_: int, held: int, now_us: int) -> None:
    """Notes a write of so many bytes. Args: held: bytes that have not left the host after it."""
    pacer.held, pacer.at_us = held, now_us
    if held == 0 and bytes_ >= LEAST_BYTES // 2:
        pacer.pace = 0.0  # it went straight out: no slow link is in this host
        pacer.left = pacer.busy_us = 0


def resume_us(pacer: "SendPacer") -> int:
    """Time at which more bytes may be written, or NOTHING_HELD."""
    if pacer.held <= _limit(pacer) // 2:
        return NOTHING_HELD
    if pacer.pace == 0:
        return pacer.at_us + LATER_US
    wait_us = int((pacer.held - _limit(pacer) / 2) / pacer.pace)
    return pacer.at_us + min(max(LATER_US // 2, wait_us), AHEAD_US)  # a pace that is far too low must not last


class SendPacer:
    """Bytes are the kernel's: with its overhead for each packet. A record class (protocol/records.py)."""

    pace: float
    """Bytes that leave in a microsecond; 0: not known."""
    held: int
    """At the last look, which was `at_us`."""
    at_us: int
    left: int
    """Bytes that have left since the pace was last measured, in `busy_us` in which there always were some."""
    busy_us: int

    def __init__(self) -> None:
        self.pace = 0.0
        self.held = self.at_us = self.left = self.busy_us = 0

    def budget_bytes(self, held: int, now_us: int) -> int | None:
        """Bytes that may be written now; None: nothing holds them back. Args: held: what has not left yet."""
        budget = budget_bytes(self, held, now_us)
        return None if budget == UNLIMITED else budget

    wrote = wrote

    def resume_us(self) -> int | None:
        """When there will be more room; None: when nothing is held back."""
        due_us = resume_us(self)
        return None if due_us == NOTHING_HELD else due_us
