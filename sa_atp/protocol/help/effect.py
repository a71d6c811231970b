"""Whether help shortens steps: measured times beside what steps would have taken without help. (protocol section 10.3)

The projection covers devices, and how long contributions take to leave. What network, switch and parameter server add
is learned from steps without help. Where steps with help are not shorter than projected without, help pauses for some
steps, and is tried again. Steps differ: where workers pause now and then, help saves much in one step and nothing in
the next. So recent savings count beside the step itself.
"""

from dataclasses import dataclass

WORTH = 0.98  # a step counts as shorter if it takes at most this share of the projected time
STRIKES = 2  # steps in a row that were not shorter, after which help pauses
FIRST_PAUSE, LONGEST_PAUSE = 8, 128  # steps of a pause; each pause is twice as long as the one before
SMOOTHING = 0.25
KEPT = 0.75  # weight of a helped step's times in the average, beside the next one's


@dataclass(slots=True)
class Effect:
    """Decides in which steps leaders may help."""

    overhead_us: float | None = None
    """How much longer than projected steps without help take; None: there was no such step."""
    least_overhead_us: float = 0.0
    """The least by which steps with help took longer than computing and sending."""
    strikes: int = 0
    resume_step: int = 0
    """The end of the present pause: nobody is helped in an earlier step."""
    _pause: int = FIRST_PAUSE
    _recent_us: float = 0.0
    """Weighted sum of what helped steps took, the newest counting most."""
    _recent_projected_us: float = 0.0
    """The same of what they would have taken without help."""

    def is_on(self, step: int) -> bool:
        """Whether leaders may help in this step."""
        return step >= self.resume_step

    def note_step_without_help(self, projected_us: int, took_us: int) -> None:
        """Learns from a step without help.

        Args: projected_us: how long it should have taken, given when workers computed.
        """
        over_us, old_us = max(0, took_us - projected_us), self.overhead_us
        self.overhead_us = over_us if old_us is None else old_us + SMOOTHING * (over_us - old_us)

    def note_step_with_help(self, step: int, projected_us: int, took_us: int, overhead_us: int = 0) -> None:
        """Judges a step with help.

        Args:
            projected_us: how long it would have taken without help.
            overhead_us: how much longer it took than computing and sending.
        """
        if overhead_us > 0:
            self.least_overhead_us = min(self.least_overhead_us or overhead_us, overhead_us)
        known_us = self.least_overhead_us if self.overhead_us is None else self.overhead_us
        without_us = projected_us + known_us
        self._recent_us = KEPT * self._recent_us + took_us
        self._recent_projected_us = KEPT * self._recent_projected_us + without_us
        if took_us <= WORTH * without_us:
            self.strikes, self._pause = 0, FIRST_PAUSE
            return
        if self._recent_us <= WORTH * self._recent_projected_us:
            return
        self.strikes += 1
        if self.strikes >= STRIKES:
            # one try at the end of the pause: if that is no better, the next pause begins at once
            self.strikes = STRIKES - 1
            self.resume_step = step + 1 + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
