"""Errors of a pipeline; each message says what the user has to change."""

from collections.abc import Iterator
from contextlib import contextmanager

from sa_atp.basics.errors import UserError


class PipelineError(UserError):
    """The compiled program cannot be loaded; the message names the construct and its place."""


class Unsupported(PipelineError):
    """The program uses a construct that this target does not execute."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{where}: {what} is not supported by the embedded target")


@contextmanager
def reading_json(where: str) -> Iterator[None]:
    """Reports what a damaged file leads to, wherever it is found, as an error of the file.

    Anything may be missing from a damaged file, or of another type, so the code that reads it need not ask each time.

    Args: where: the file, for messages. Raises: PipelineError.
    """
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise PipelineError(f"{where}: damaged BMv2 JSON ({type(error).__name__}: {error})") from error
