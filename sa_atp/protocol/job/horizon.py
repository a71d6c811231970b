"""The window of fragments that the parameter server accepts, from the oldest one needed. (protocol section 7.2)"""

HORIZON = 1 << 20  # fragments; bounds the memory that a bad sender can occupy
HORIZON_VALUES = 1 << 28  # values; the tighter bound where a fragment has many


def horizon(lanes: int) -> int:
    """How many fragments ahead of the oldest are accepted."""
    return min(HORIZON, HORIZON_VALUES // lanes)
