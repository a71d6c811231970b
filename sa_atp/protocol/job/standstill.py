"""Whether this process itself did not run: what others did not say meanwhile is no silence of theirs. (protocol section 11)

A process that was stopped, or a thread that another one kept from running, finds its own timer late when it goes on.
Until then it has neither asked anybody nor read what came. So whoever waits for others does not count that time.
"""

LATE_US = 1_000_000  # no busy host keeps a timer waiting for so long


def stood_still_us(due_us: int | None, now_us: int) -> int:
    """For how long this process has not run. Args: due_us: when its own next timer was due; None: it had none."""
    late_us = 0 if due_us is None else now_us - due_us
    return late_us if late_us >= LATE_US else 0


def words(stood_us: int) -> str:
    return f"this process did not run for {stood_us / 1e6:.1f} s"
