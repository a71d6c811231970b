"""The clock of all processes of the project."""

import time


def now_us() -> int:
    """Monotonic time in microseconds; its origin has no meaning."""
    return time.monotonic_ns() // 1000
