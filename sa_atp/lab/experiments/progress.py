"""Shows a run's progress: a bar on a terminal, a changing line in a notebook, else lines on standard error: one for each
stage, and in a long stage one now and then.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sa_atp.basics import terminal, waiting
from sa_atp.lab.runs.progress import Progress

CHANGE_EVERY_S = 0.2  # of a notebook's line


def shown(progress: bool | Progress) -> AbstractContextManager[Progress]:
    """Returns the display for a run's progress, as a context manager.

    Args: progress: True: on a terminal, in a notebook, or on standard error; False: no display.
    """
    if isinstance(progress, Progress):
        return contextlib.nullcontext(progress)
    if not progress:
        return contextlib.nullcontext(Progress())
    return NotebookProgress() if in_notebook() else TerminalProgress()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class TerminalProgress(Progress):
    """Use as a context manager."""

    def __init__(self) -> None:
        self._console = terminal.console(sys.stderr)
        self._has_bar = self._console.is_terminal and not self._console.is_dumb_terminal  # which cannot move a cursor
        self._start = time.monotonic()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, transient=True,
        )  # fmt: skip
        self._task: int | None = None
        self._stage, self._began, self._done = "starting", self._start, (0, 0, "")
        self._open = contextlib.ExitStack()
        self._wait: waiting.Wait | None = None  # for the stage

    def __enter__(self) -> Self:
        if self._has_bar:
            self._bar.start()
        if self._has_bar:
            self._open.enter_context(waiting.nothing_waited_for())
        else:
            self._wait = self._open.enter_context(waiting.told(self._tell))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        waiting.said()  # what follows has only begun
        if self._has_bar:
            self._bar.stop()

    def __call__(self, stage: str) -> None:
        self._stage, self._began, self._done = stage, time.monotonic(), (0, 0, "")
        if self._wait is not None:
            self._wait.begin_again()
        with contextlib.suppress(OSError):  # a closed standard error does not end a run
            self._say(stage)

    def _tell(self) -> None:
        """Says where the stage is: the time that it has taken, steps, and the time left at the pace so far."""
        done, of, unit = self._done
        taken_s = time.monotonic() - self._began
        pace = f", {taken_s:.0f} s so far" + (f", {done} of {of} {unit}" if of else "")
        if 0 < done < of:
            left_s = taken_s / done * (of - done)
            pace += f", {left_s / 60:.0f} min left" if left_s >= 100 else f", {left_s:.0f} s left"
        self._say(f"{self._stage}{pace}")

    def _say(self, stage: str) -> None:
        if self._has_bar:
            if self._task is not None:
                self._bar.remove_task(self._bar.task_ids[0])
            self._task = self._bar.add_task(stage, total=None, unit="")
        else:
            waiting.said()
            self._console.print(f"[{time.monotonic() - self._start:5.1f} s] {stage}", soft_wrap=True)

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""
        with contextlib.suppress(OSError):
            self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """See Progress."""
        if self._has_bar:
            self._bar.stop()
        try:
            yield
        finally:
            if self._has_bar:
                self._bar.start()

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        self._done = done, of, unit
        if self._has_bar and self._task is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=of, unit=unit)


class NotebookProgress(Progress):
    """A line below the cell, which changes. Use as a context manager."""

    def __init__(self) -> None:
        self._start = self._changed = time.monotonic()
        self._stage = "starting"
        self._handle: Any = None

    def __enter__(self) -> Self:
        from IPython.display import display

        self._handle = display(self._line(), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage = "done" if kind is None else f"ended while it was at: {self._stage}"
        self._show()

    def __call__(self, stage: str) -> None:
        self._stage = stage
        self._show()

    def say(self, text: str) -> None:
        """A line of its own."""
        from IPython.display import display

        display({"text/plain": text}, raw=True)

    def steps(self, done: int, of: int, unit: str = "steps") -> None:
        if time.monotonic() - self._changed >= CHANGE_EVERY_S:
            self._show(f", {done} of {of} {unit}")

    def _show(self, more: str = "") -> None:
        self._changed = time.monotonic()
        self._handle.update(self._line(more), raw=True)

    def _line(self, more: str = "") -> dict[str, str]:
        return {"text/plain": f"[{time.monotonic() - self._start:5.1f} s] {self._stage}{more}"}
