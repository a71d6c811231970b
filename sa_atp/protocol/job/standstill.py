"""Detects a standstill: time in which this process itself did not run. (protocol section 11)

A process that was stopped, or whose thread was kept from running, finds its own timer late when it goes on. In the
meantime it has neither sent requests nor read answers, so time-outs for other parties do not count that time.
"""

LATE_US = 1_000_000  # a timer that is later than this is not explained by a busy host


def stood_still_us(due_us: int | None, now_us: int) -> int:
    """Returns for how long, in microseconds, this process has not run; 0: it has.

    Args: due_us: when its next timer was due; None: it had none.
    """
    late_us = 0 if due_us is None else now_us - due_us
    return late_us if late_us >= LATE_US else 0


def describe_standstill(stood_us: int) -> str:
    return f"this process did not run for {stood_us / 1e6:.1f} s"
