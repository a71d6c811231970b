"""What can go wrong with a pipeline, said so that the user knows what to change."""

from sa_atp.basics.errors import UserError


class PipelineError(UserError):
    """The compiled program cannot be loaded; the message names the construct and where it stands."""


class Unsupported(PipelineError):
    """The program uses a construct that this target does not execute."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what} is not supported by the embedded target")


class EntryError(UserError):
    """A table entry, group or index that the loaded program does not accept."""
