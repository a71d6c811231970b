"""The interface for progress of a run. This class ignores it; those of lab/experiments/progress draw it."""

from contextlib import AbstractContextManager, nullcontext


class Progress:
    def __call__(self, stage: str) -> None:
        """A stage of the run begins."""

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        """Tells how many steps, or other units, of the current stage are done."""

    def say(self, text: str) -> None:
        """A line that stays, for the user."""

    def aside(self) -> AbstractContextManager[None]:
        """A block in which the terminal is the user's: nothing is drawn."""
        return nullcontext()
