"""Processes of a run: started, waited for until they are ready, talked to in lines of JSON, and ended without fail."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from sa_atp.errors import SaAtpError

END_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 20
TICK_S, TELL_EVERY_S = 1.0, 5.0  # whom we wait for
LEAST_SHARE = 0.1  # of a processor, with which a process computes
SAID = "sa-atp"  # what a line of a log begins with that says what a process of ours is doing


class ProcessError(SaAtpError):
    """A process of the run ended, or did not answer; the message holds its last words."""


class Waiting:
    """Tells people every few seconds whom we wait for, and what that one is doing."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told = time.monotonic()

    def on(self, process: "Process") -> None:
        """We wait for this process."""
        if time.monotonic() - self._told >= TELL_EVERY_S:
            self._tell(f"waiting for {process.name}: {process.doing or 'it is starting'}")
            self._told = time.monotonic()


class Process:
    """A child process with a log file; its standard output is a line of JSON an answer."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = (sys.executable, "-m"),
        inside: Sequence[str] = (),
        talks: bool = True,
        waiting: Waiting | None = None,
    ) -> None:
        """Args:
        name: for messages.
        arguments: of the program; by default the first is the Python module to run.
        inside: what to put before the command, so that it runs in a namespace or a control group.
        talks: whether it answers in lines of JSON; False: what it prints goes to the log.
        waiting: is told while we wait for an answer; default: nobody is.
        """
        self.name = name
        self._waiting = waiting
        self.log = log
        self._command = [*inside, *program, *arguments]
        self._buffer = b""
        with _open(log) as errors:
            self._process = subprocess.Popen(
                [*_tie_to_parent(), *self._command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else errors,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for us: we end our children in order
            )
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def tell(self, message: Mapping[str, Any]) -> None:
        self.say(json.dumps(message))

    def say(self, line: str) -> None:
        """Writes a line, or several, to its standard input. Raises: ProcessError: it does not listen."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessError(self._obituary("does not listen")) from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line of its output, which must be JSON. Raises: ProcessError: as `line`, or it is something else."""
        line = self.line(timeout_s)
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ProcessError(self._obituary(f"answered {line[:80]!r}"))
        return found

    def line(self, timeout_s: float) -> str:
        """The next line of its output.

        Args: timeout_s: a process that shares the processors with others, and computes meanwhile, has so much time of
            its own, and ten times as long at most.

        Raises: ProcessError: it ended, or said nothing in time.
        """
        deadline = time.monotonic() + timeout_s
        before_s = seen_s = self.cpu_s()
        looked, share = time.monotonic(), 0.0
        while b"\n" not in self._buffer:
            if wait_for([self], min(deadline - time.monotonic(), TICK_S)):
                self.pump()
                continue
            if self._waiting is not None:
                self._waiting.on(self)
            now, used_s = time.monotonic(), self.cpu_s()
            if now - looked >= TELL_EVERY_S:
                share = (used_s - seen_s) / (now - looked)
                looked, seen_s = now, used_s
            if now >= deadline:
                if share < LEAST_SHARE or used_s - before_s >= timeout_s:
                    raise ProcessError(self._obituary(f"said nothing for {timeout_s:.0f} s"))
                deadline = now + TELL_EVERY_S
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    @property
    def doing(self) -> str:
        """What it has last said in its log that it is doing; "" where it has not."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(SAID)]
        return said[-1].partition(": ")[2] if said else ""

    @property
    def has_answer(self) -> bool:
        return b"\n" in self._buffer

    def pump(self) -> None:
        """Takes what the process has written. Raises: ProcessError if it has ended."""
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # its status comes a moment after its output ends
            raise ProcessError(self._obituary("ended"))
        self._buffer += data

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; 0 once it has ended."""
        return sum(self.cpu_times_s())

    def cpu_times_s(self) -> tuple[float, float]:
        """The same in its own code, and in the kernel."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0, 0.0
        ticks = float(os.sysconf("SC_CLK_TCK"))
        return int(fields[11]) / ticks, int(fields[12]) / ticks

    def check(self) -> None:
        """Raises: ProcessError if it has ended."""
        if self._process.poll() is not None:
            raise ProcessError(self._obituary("ended"))

    def failure(self, what: str) -> ProcessError:
        """An exception that says what the process did, with its command and the end of its log."""
        return ProcessError(self._obituary(what))

    def end(self) -> None:
        """Asks it to end, then makes it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _obituary(self, what: str) -> str:
        status = self._process.poll()
        text = f"{self.name} {what}" + (f" with status {status}" if status is not None else "")
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines)
        return f"{text}; command: {' '.join(self._command)}; its log {self.log} ends with:\n{tail or '    (nothing)'}"


class Group:
    """Processes that end together, whatever happens."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """Args: tell: is told whom we wait for while one of them keeps us waiting for an answer; default: nobody is."""
        self._processes: list[Process] = []
        self.waiting = None if tell is None else Waiting(tell)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = (sys.executable, "-m"),
        inside: Sequence[str] = (),
        talks: bool = True,
    ) -> Process:
        """Starts a process; see Process for the arguments."""
        return self.add(
            Process(
                name, arguments, log, environment, program=program, inside=inside, talks=talks, waiting=self.waiting
            )
        )  # fmt: skip

    def add(self, process: Process) -> Process:
        """Has the group end a process that runs already."""
        self._processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.end()


def wait_for(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """The processes that have something to say within the time."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process, selectors.EVENT_READ, process)
        return [key.data for key, _ in selector.select(max(0.0, timeout_s))]


def _open(log: Path) -> IO[bytes]:
    """Raises: ProcessError."""
    try:
        return log.open("wb")
    except OSError as error:
        raise ProcessError(f"{log}: cannot be written: {error.strerror}") from None


@cache
def _tie_to_parent() -> tuple[str, ...]:
    """What to put before a command so that it ends when we are killed and cannot end it: setpriv of util-linux."""
    tie = ("setpriv", "--pdeathsig", "TERM", "--")
    works = shutil.which(tie[0]) and subprocess.run([*tie, "true"], capture_output=True, check=False).returncode == 0
    return tie if works else ()
