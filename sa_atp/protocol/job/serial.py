"""Sequence numbers of 32 bits that wrap around (RFC 1982)."""

SEQ_MASK = 0xFFFFFFFF


def serial_distance(first: int, second: int) -> int:
    """How far the second number is ahead of the first; negative if it is behind."""
    ahead = (second - first) & SEQ_MASK
    return ahead if ahead <= SEQ_MASK // 2 else ahead - SEQ_MASK - 1
