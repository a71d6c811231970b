"""The one clock that everything here uses."""

import time


def now_us() -> int:
    """Microseconds of a clock that never goes back and starts anywhere."""
    return time.monotonic_ns() // 1000
