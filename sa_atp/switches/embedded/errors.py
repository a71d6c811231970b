"""Errors of a pipeline; each message says what the user has to change."""

from sa_atp.basics.errors import UserError


class PipelineError(UserError):
    """The compiled program cannot be loaded; the message names the construct and its place."""


class Unsupported(PipelineError):
    """The program uses a construct that this target does not execute."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what} is not supported by the embedded target")


class EntryError(UserError):
    """A table entry, group or index that the loaded program does not accept."""
