"""The interface for progress of a run. This class ignores it; the command line has one that draws a bar."""


class Progress:
    def __call__(self, stage: str) -> None:
        """A stage of the run begins."""

    def steps(self, done: int, of: int) -> None:
        """So many steps of the current stage are done."""
