"""What a run tells about how far it is. This class tells nobody; those of lab/experiments/progress draw it."""


class Progress:
    def __call__(self, stage: str) -> None:
        """The run has come to this."""

    def steps(self, done: int, of: int) -> None:
        """So many steps of the current stage are done."""

    def say(self, text: str) -> None:
        """A line that stays, for the user."""
