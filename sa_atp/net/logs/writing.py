"""Writes logs to DIR/JOB/rank-2.jsonl and DIR/JOB/parameter-server.jsonl. (docs/log.md)

A connection only appends its events to a queue. In real time a thread of the process writes them as lines, twice a
second, so a process that is killed loses at most half a second of its log. A full disk ends the log, not the job.
"""

import atexit
import datetime
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sa_atp.basics.errors import UserError
from sa_atp.basics.folders import make_folder
from sa_atp.basics.terminal import say
from sa_atp.net.clock import now_us
from sa_atp.protocol.log import lines
from sa_atp.protocol.log.event import Event, Log
from sa_atp.protocol.log.lines import ReferenceTime
from sa_atp.protocol.log.server_events import InstallAsked

VARIABLE = "SA_ATP_LOG"
FLUSH_EVERY_S = 0.5
MOST_WAITING = 8192  # events in a queue that no thread writes
MOST_EARLY = 64  # events of a job that are kept until all its ranks have joined


class _File:
    """One connection's log."""

    def __init__(self, path: Path, first: lines.Header) -> None:
        self.noted: deque[tuple[int, Event]] = deque()
        self._path = path
        self._first: lines.Header | None = first  # None: it is written

    def write(self) -> None:
        """Appends the queued events to the file, which is made with the first of them. Raises: OSError."""
        text = b"".join(lines.encode(*self.noted.popleft()) for _ in range(len(self.noted)))
        if not text:
            return
        with self._open() as file:
            if self._first is not None:
                text, self._first = lines.encode_header(self._first) + text, None
            file.write(text)

    def _open(self) -> BinaryIO:
        """Opens the file. Beside the log of an earlier connection the new one has a number: rank-2.1.jsonl."""
        if self._first is None:
            return self._path.open("ab", buffering=0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        wanted, number = self._path, 0
        while True:
            try:
                return self._path.open("xb", buffering=0)
            except FileExistsError:
                number += 1
                self._path = wanted.with_suffix(f".{number}{wanted.suffix}")


class LogFolder:
    """The logs of a process, or of a simulation."""

    def __init__(self, folder: Path, clock_us: Callable[[], int], reference: ReferenceTime) -> None:
        """Args: clock_us: the clock of the connections. Raises: UserError: the folder cannot be written."""
        make_folder(folder)
        if not os.access(folder, os.W_OK):
            raise UserError(f"{folder}: logs cannot be written there: permission denied")
        self._folder = folder
        self._clock_us = clock_us
        self._reference = reference
        self._files: list[_File] = []
        self._lock = threading.Lock()
        self._is_over = False
        self._process = os.getpid()

    @classmethod
    def virtual(cls, folder: Path, clock_us: Callable[[], int]) -> "LogFolder":
        """Makes the logs of a simulation, whose clock begins at 0. The caller flushes them. Raises: UserError."""
        return cls(folder, clock_us, ReferenceTime("virtual"))

    def rank(self, job: str, rank: int) -> Log:
        """Returns a log for a rank's connection."""
        file = self._file(job, rank)
        self._write_soon(file)

        def log(event: Event) -> None:
            self._note(file, event)

        return log

    def server(self, job: str) -> Log:
        """Returns a log for the parameter server's decisions about a job.

        Its file is made when all ranks have joined. Until then only the last events are kept: anybody may ask to join a job
        of any name, and a job that never begins must not cost a file.
        """
        file = self._file(job, None)
        file.noted = deque(maxlen=MOST_EARLY)
        has_begun = False

        def log(event: Event) -> None:
            nonlocal has_begun
            self._note(file, event)
            if not has_begun and isinstance(event, InstallAsked):
                has_begun = True
                file.noted = deque(file.noted)
                self._write_soon(file)

        return log

    def _file(self, job: str, rank: int | None) -> _File:
        name = "parameter-server" if rank is None else f"rank-{rank}"
        return _File(self._folder / folder_of(job) / f"{name}.jsonl", lines.header(job, rank, self._reference))

    def _write_soon(self, file: _File) -> None:
        with self._lock:
            self._files.append(file)

    def _note(self, file: _File, event: Event) -> None:
        if not self._is_over:
            file.noted.append((self._clock_us(), event))
            if len(file.noted) >= MOST_WAITING and self._reference.clock_type == "virtual":
                self.flush()

    def flush(self) -> None:
        """Writes all queued events."""
        if os.getpid() != self._process:
            return  # forked: the queues belong to the parent
        with self._lock:
            for file in () if self._is_over else self._files:
                try:
                    file.write()
                except OSError as error:
                    self._is_over = True
                    say(f"sa-atp: the log in {self._folder} ends here: {error.strerror or error}")
                    break
            if self._is_over:
                self._files.clear()


def folder_of(job: str) -> str:
    """The name of a job's folder: the job's name, with _ in place of characters that do not belong in file names."""
    return re.sub(r"[^A-Za-z0-9._+-]|^\.", "_", job)


_of_process: dict[Path, LogFolder] = {}
_making = threading.Lock()


def of_process(folder: str | os.PathLike[str]) -> LogFolder:
    """Returns the process's logs in a folder, which a thread writes. Raises: UserError."""
    path = Path(folder).absolute()
    with _making:
        found = _of_process.get(path)
        if found is None:
            date = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            found = LogFolder(path, now_us, ReferenceTime("monotonic", date, now_us()))
            if not _of_process:
                threading.Thread(target=_keep_flushing, name="sa-atp-log", daemon=True).start()
                atexit.register(flush)
            _of_process[path] = found
        return found


def flush() -> None:
    """Writes all queued events of this process's connections."""
    for folder in list(_of_process.values()):
        folder.flush()


def _keep_flushing() -> None:
    pause = threading.Event()
    while not pause.wait(FLUSH_EVERY_S):
        flush()
