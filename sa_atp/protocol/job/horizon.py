"""How far ahead of the oldest fragment that anybody needs the parameter server takes fragments. (protocol section 7.2)"""

HORIZON = 1 << 20  # fragments beyond the oldest that anyone needs; bounds the memory that a bad sender can take,
HORIZON_VALUES = 1 << 28  # ... as this does where a fragment has many


def horizon(lanes: int) -> int:
    """How many fragments ahead of the oldest are taken."""
    return min(HORIZON, HORIZON_VALUES // lanes)
