"""Whether help shortens steps: what they would have taken without it, beside what came. (protocol section 10.3)

A projection knows devices, and how long contributions take to leave; what else a network, a switch and a parameter server
add it learns from steps without help. Where steps with help are no shorter than what was projected without, help is left
for some steps, and tried again after that. Steps differ: where somebody pauses now and then, help saves much in one and
nothing in the next. So what it has saved of late counts beside the step itself.
"""

from dataclasses import dataclass

WORTH = 0.98  # a step is shorter if it takes less than so much of what was projected
STRIKES = 2  # steps in a row that were not shorter, after which help is left
FIRST_PAUSE, LONGEST_PAUSE = 8, 128  # steps without help, twice as many each time
SMOOTHING = 0.25
KEPT = 0.75  # of what helped steps took and would have taken, from one to the next


@dataclass(slots=True)
class Effect:
    overhead_us: float | None = None
    """How much longer than projected steps without help take; None: there was none."""
    least_overhead_us: float = 0.0
    """... and steps with help, at least, after everything was computed."""
    strikes: int = 0
    resume_step: int = 0
    """Before that nobody is helped."""
    _pause: int = FIRST_PAUSE
    _recent_us: float = 0.0
    """What helped steps took of late, the latest counting most."""
    _recent_projected_us: float = 0.0
    """What they would have taken without."""

    def is_on(self, step: int) -> bool:
        """Whether leaders may help in this step."""
        return step >= self.resume_step

    def without_help(self, projected_us: int, took_us: int) -> None:
        """A step without help is over. Args: projected_us: how long it should have taken, as everybody computed."""
        over_us, old_us = max(0, took_us - projected_us), self.overhead_us
        self.overhead_us = over_us if old_us is None else old_us + SMOOTHING * (over_us - old_us)

    def with_help(self, step: int, projected_us: int, took_us: int, overhead_us: int = 0) -> None:
        """A step with help is over.

        Args: projected_us: how long it would have taken without. overhead_us: how much longer it took than computing and
            sending did.
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
            # one try at the end of it: if that is no better, it is left again at once
            self.strikes = STRIKES - 1
            self.resume_step = step + 1 + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
