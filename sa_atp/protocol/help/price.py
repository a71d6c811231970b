"""What help costs beyond the work itself: measured, and asked of every plan that begins to help. (protocol section 10.3)

A step takes longer than its computing by what network, switch and parameter server add. Help adds to that: more packets,
and hosts that are busier than they look. So a plan counts as better than none only where it saves more than steps with
help were found to cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.protocol.help.progress import Step, Worker

SMOOTHING = 0.5  # weight of the newest step
FORGOTTEN = 0.98  # share of the price that is kept in each step without help, so that help is tried again


@dataclass(slots=True)
class Price:
    """How much longer than their computing steps take with help and without."""

    us: float = 0.0
    """What help costs."""
    alone_us: float | None = None
    """How much longer than their computing steps without help take; None: there was none."""

    def note(self, state: Step, workers: Sequence[Worker], took_us: int) -> float:
        """Learns from a step that is over. Returns: how much longer it took than computing and sending without help."""
        done_us = max(max(c.idle_us or 0, c.lot_until_us) for c in state.courses) - state.began_us
        network_us = max(w.least_send_us + w.answer_us // 2 for w in workers)
        over_us = took_us - done_us - network_us
        if any(c.idle_us is None and state.held(rank) for rank, c in enumerate(state.courses)):
            return over_us  # a worker has stopped, and others have done its work
        if state.is_helped:
            costs_us = max(0.0, over_us - (self.alone_us or 0.0))
            self.us += SMOOTHING * (costs_us - self.us)
        else:
            old_us = over_us if self.alone_us is None else self.alone_us
            self.alone_us, self.us = old_us + SMOOTHING * (over_us - old_us), FORGOTTEN * self.us
        return over_us
