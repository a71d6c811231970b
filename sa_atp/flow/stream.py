"""One worker's contribution to a sum on its way."""

import math
from dataclasses import dataclass, field
from enum import IntEnum

from sa_atp.flow.network import Flow
from sa_atp.transport.timing import MIN_TIMEOUT_US


class State(IntEnum):
    """Of a stream."""

    NEW = 0  # has not been looked at
    FREE = 1  # a flow of its own
    WAITING = 2  # at the end of its window, and the sum does not move
    IN_STEP = 3
    DONE = 4


@dataclass(slots=True, eq=False)
class Stream:
    """A contribution under way."""

    rank: int
    bits: int
    """Its contributions; 0: what has been sent before, without which the sum cannot be complete."""
    past_leaf: bool
    begun_us: int
    end: float = math.inf
    """Where it is done; what comes after that has left another way."""
    state: State = State.NEW
    sent: float = 0.0
    """Bytes that have left, as of the last look; of what is in step, see `Aggregation.position`."""
    flow: Flow | None = None
    moves_since_us: int = 0
    """When its flow has begun."""
    sending: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it has moved; a gap that is no longer than the network's answer is none."""

    def has_moved(self, since_us: int, until_us: int) -> None:
        if self.sending and since_us - self.sending[-1][1] <= MIN_TIMEOUT_US:
            self.sending[-1] = self.sending[-1][0], until_us
        else:
            self.sending.append((since_us, until_us))
