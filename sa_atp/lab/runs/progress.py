"""What a run tells about how far it is. This class tells nobody; the command line has one that draws a bar."""


class Progress:
    def __call__(self, stage: str) -> None:
        """The run has come to this."""

    def steps(self, done: int, of: int) -> None:
        """So many steps of the current stage are done."""
