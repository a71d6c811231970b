"""Progress of a run on standard error: a bar on a terminal, elsewhere a line for each stage."""

import contextlib
import sys
import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sa_atp.basics import terminal
from sa_atp.lab.runs.progress import Progress

LINE_EVERY_S = 5.0


class TerminalProgress(Progress):
    """A context manager that shows the progress of a run."""

    def __init__(self, unit: str = "steps") -> None:
        """Args: unit: what is counted."""
        self._console = terminal.console(sys.stderr)
        self._start = time.monotonic()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
            TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, transient=True,
        )  # fmt: skip
        self._task: int | None = None
        self._unit = unit
        self._said = self._start  # when the last line was written

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, stage: str) -> None:
        with contextlib.suppress(OSError):  # a closed standard error does not end a run
            self._say(stage)

    def _say(self, stage: str) -> None:
        if self._console.is_terminal:
            if self._task is not None:
                self._bar.remove_task(self._bar.task_ids[0])
            self._task = self._bar.add_task(stage, total=None)
        else:
            self._said = time.monotonic()
            self._console.print(f"[{self._said - self._start:5.1f} s] {stage}", soft_wrap=True)

    def say(self, text: str) -> None:
        """Prints a line that stays above the bar."""
        with contextlib.suppress(OSError):
            self._console.print(text)

    def steps(self, done: int, of: int) -> None:
        if self._console.is_terminal:
            if self._task is not None:
                self._bar.update(self._bar.task_ids[0], completed=done, total=of)
        elif time.monotonic() - self._said >= LINE_EVERY_S:
            self(f"{done} of {of} {self._unit}")
