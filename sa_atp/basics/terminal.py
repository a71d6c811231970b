"""Output of commands: tables on narrow terminals, text on ASCII-only ones, closed pipes, Ctrl-C."""

import codecs
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROWEST = 30  # characters; narrower terminals break the lines themselves


def say(text: str) -> None:
    """Writes a line to standard error; a closed log must not end the process."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


# --- tables
# ---------------------------------------------------------------------------------------------------------------


def console(file: IO[str] | None = None) -> "Console":
    """A rich console without markup. Args: file: default: standard output."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the caller chooses the exit status

    return Plain(file=file, markup=False, highlight=False)


def table(words: Iterable[str], numbers: Iterable[str]) -> "Table":
    """Makes a table without lines, by the headings of its columns: first those of words, then those of numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for name in words:
        made.add_column(name)
    for name in numbers:
        made.add_column(name, justify="right")
    return made


def print_table(console: "Console", table: "Table") -> None:
    """Prints a table without cutting right-justified columns: labels are folded instead, and if that is not enough, the
    table is wider than the terminal.
    """
    from rich.measure import Measurement

    unbounded = console.options.update(max_width=10_000)
    for column in table.columns:
        if column.justify == "right":
            widest = max((Measurement.get(console, unbounded, cell).maximum for cell in column.cells), default=0)
            header = Measurement.get(console, unbounded, column.header).minimum
            column.width = max(widest, header, column.min_width or 0)
    console.width = max(console.width, Measurement.get(console, unbounded, table).minimum, NARROWEST)
    console.print(table)


# --- Ctrl-C
# ---------------------------------------------------------------------------------------------------------------


@contextmanager
def interrupts(pressed: list[int]) -> Iterator[None]:
    """Records Ctrl-C in `pressed`, because some libraries turn a KeyboardInterrupt into another error."""

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # a shell may have us ignore it
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# --- streams
# --------------------------------------------------------------------------------------------------------------

# for ASCII-only terminals
_SUBSTITUTES = {"\u00a0": " ", "×": "x", "µ": "u", "–": "-", "±": "+-", "…": "...", "━": "-", "é": "e"}


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SUBSTITUTES.get(c, "?") for c in error.object[error.start : error.end]), error.end


def prepare_streams() -> None:
    """Makes standard output and error accept every text: characters that their encoding lacks are replaced."""
    codecs.register_error("sa_atp.substitute", _substitute)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sa_atp.substitute")


def flush_streams(streams: Iterable[IO[str]] = ()) -> OSError | None:
    """Flushes streams. Returns: the error of a stream that is closed, unless it is standard error, which has no
    results.

    A closed stream is redirected to os.devnull, so that Python does not complain about it at exit.
    """
    failure = None
    for stream in streams or (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            failure = failure or (None if stream is sys.stderr else error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return failure
