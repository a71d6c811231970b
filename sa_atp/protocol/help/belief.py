"""What the ledger believes of times to come. (protocol section 10.3)

A *forecast* says how long a unit of work will take a worker in the next step, and how far such forecasts have been off; a
*belief* is all that the planner is given of a worker in this step. All times are microseconds.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

REMEMBERED = 5  # steps: a forecast is their median, which a straggler of a single step does not move
KEPT = 0.5  # share of the error of earlier forecasts that counts in the next step


@dataclass(slots=True)
class Forecast:
    """How long something takes from step to step: the median of recent steps, with the error that forecasts had."""

    error_us: float = 0.0
    """The largest recent difference between a forecast and what came; older ones count less."""
    mean_us: float | None = None
    """The forecast for the next step; None: nothing has been measured."""
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @classmethod
    def of(cls, mean_us: float, error_us: float = 0.0) -> "Forecast":
        """Makes a forecast with a known mean and error."""
        return cls(error_us, mean_us, deque([mean_us], maxlen=REMEMBERED))

    def note(self, took_us: float, *, is_new_step: bool = True) -> None:
        """Notes a measurement. Args: is_new_step: else it replaces the last one, which was of the same step."""
        if not is_new_step and self._seen:
            self._seen[-1] = took_us
        else:
            if self.mean_us is not None:
                self.error_us = max(KEPT * self.error_us, abs(took_us - self.mean_us))
            self._seen.append(took_us)
        self.mean_us = float(median(self._seen))


@dataclass(slots=True)
class Belief:
    """What is believed of a worker in one step: it holds until something new is heard of the worker, or decided.

    A record class (protocol/records.py), whose rules are in believing.py.
    """

    each_us: float = 0.0
    """Time for a micro-batch of its own shard: as measured, or else the median worker's; 0: no speed is known."""
    is_measured: bool = False
    weight: int = 1
    """Units of work in a micro-batch of its shard."""
    held: int = 0
    """Micro-batches of its own shard, from the first on, that it owns."""
    begun: int = 0
    """Micro-batches of its own shard that it had begun at its newest report."""
    free: int = 0
    """Micro-batches of its shard without an owner."""
    is_idle: bool = False
    """It has reported to have computed all that it held."""
    holds_nothing: bool = False
    """It has begun the step, and owns none of its shard."""
    is_ended: bool = False
    """It was told that it gets no more of its shard."""
    is_overdue: bool = False
    """A micro-batch was taking longer than usual at its newest report: it may have stopped."""
    has_reported: bool = False
    newest_us: int = 0
    """When it began the newest micro-batch, or reported it done."""
    due_us: int = 0
    """When it should be done with what it holds."""
    lot_us: int = 0
    """When it should have computed its lot."""
    has_lot: bool = False
    link_us: int = 0
    """For how long a contribution keeps its link busy."""
    slow_link_us: int = 0
    """`link_us` of a slow link; 0: the link is not slow."""
    link_free_us: int = 0
    """When what it has computed has left its link."""
    answer_us: int = 0
    """How long an answer takes to reach it."""
    asks_again_us: int = 0
    """When its next offer should be here."""
    behind_us: int = 0
    """Until when it counts as receiving sums of earlier steps."""
    patience_us: int = 0
    """The least time for which work may be late before others copy it."""
