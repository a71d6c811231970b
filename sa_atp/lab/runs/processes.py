"""Processes of a run: starting them, waiting until they are ready, exchanging lines of JSON, and ending them reliably.

If all processes of a group are needed, waiting for one fails as soon as any other ends, with an error that names it. The
failures that follow in the others would hide the cause.
"""

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from sa_atp.basics.errors import SaAtpError, shortage
from sa_atp.basics.terminal import say
from sa_atp.basics.waiting import SILENCE_VARIABLE, told
from sa_atp.basics.words import plural
from sa_atp.lab.runs.nursery import Child, nursery_for

END_TIMEOUT_S = 5.0
LOOK_S = 0.5  # interval of the check on needed processes
STOPPED_S = 5.0  # a process that is stopped for longer is reported
FULL_BYTES = 4096  # with less free space, a log may be truncated
LOG_TAIL_LINES = 20
TICK_S = 0.5
SHARE_EVERY_S = 4.0  # over which a process's share of a core is measured
MOST_TIMES_AGAIN, AGAIN_WITHIN_S = 3, 60.0  # so often a process that may be started again is, within so long
LEAST_SHARE = 0.1  # a process that uses more of a core is computing
MOST_TIMES = 10  # a timeout, while it counts in CPU time
QUIET = {SILENCE_VARIABLE: "inf"}  # we say what our processes do
SAID = "sa-atp"  # prefix of log lines in which a process of this project reports its activity


class ProcessError(SaAtpError):
    """A process of the run ended, or did not answer; the message has the end of its log."""


class Waiting:
    """Reports from time to time which process we wait for, and what it is doing."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    @contextlib.contextmanager
    def on(self, process: "Process") -> Iterator[None]:
        """A block in which we wait for a process."""
        said = ""

        def tell() -> None:
            nonlocal said
            doing = f"waiting for {process.name}: {process.doing or 'it is starting'}"
            self._tell(doing + (f", {wait.taken_s:.0f} s so far" if doing == said else ""))
            said = doing

        with told(tell) as wait:
            yield


class Process:
    """A child process with a log file, which answers with lines of JSON on standard output."""

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
        forked: Sequence[str] | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        """Args:
        name: for messages.
        arguments: of the program; by default the first is the Python module to run.
        inside: prefix of the command that runs it in a namespace or a control group.
        talks: whether it answers in lines of JSON; False: its output goes to the log.
        forked: modules that it needs besides the package's own, if it is forked from a process that has imported all
            (nursery.py); None: it is started afresh. With modules, the other arguments are as by default.
        waiting: called while we wait for an answer.
        """
        self.name = name
        self._waiting = waiting
        self.log = log
        self.siblings: Sequence[Process] = (self,)
        """All processes of its group, itself among them."""
        self.companions: Sequence[Process] = ()
        """Processes that have to live while we wait for this one."""
        self.is_over = False
        """Whether `end` was called."""
        self._stopped_at: float | None = None  # when it was first seen stopped
        self._prefix, self._forked, self._talks = [*inside, *program], forked, talks
        self._variables = {**os.environ, **QUIET, **(environment or {})}
        self._again: Sequence[str] | None = None  # arguments with which it is started again where it has ended
        self._started_again: list[float] = []
        with _open(log, "wb") as errors:
            self._process = self._start(arguments, errors)

    def _start(self, arguments: Sequence[str], errors: IO[bytes]) -> "subprocess.Popen[bytes] | Child":
        """Raises: ProcessError. Args: errors: its log."""
        self._command, self._buffer = [*self._prefix, *arguments], b""
        process: subprocess.Popen[bytes] | Child
        try:
            if self._forked is not None:
                nursery = nursery_for(_tie_to_parent(), self._variables, errors.fileno())
                process = nursery.fork(arguments, self._forked, self._variables, errors.fileno())
            else:
                process = subprocess.Popen(
                    [*_tie_to_parent(), *self._command],
                    stdin=subprocess.PIPE if self._talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if self._talks else errors,
                    stderr=errors,
                    env=self._variables,
                    start_new_session=True,  # Ctrl-C reaches only us: we end our children in order
                )
        except OSError as error:
            words = f"; its log {self.log} {self._last_words()}" if self.log.stat().st_size else ""  # a nursery's
            raise ProcessError(f"{self.name} cannot be started: {shortage(error) or error}{words}") from None
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        return process

    def may_start_again(self, arguments: Sequence[str]) -> None:
        """From now on, where it ends by itself and that is noticed, starts it again, with these arguments.

        After three times in a minute its end is an error, as it is of other processes.
        """
        self._again = arguments

    def _has_ended(self) -> None:
        """Starts it again. Raises: ProcessError: it may not be."""
        now = time.monotonic()
        self._started_again = [at for at in self._started_again if now - at < AGAIN_WITHIN_S]
        if self._again is None or self.is_over or len(self._started_again) >= MOST_TIMES_AGAIN:
            raise ProcessError(self._obituary("ended"))
        self._started_again.append(now)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        say(f"sa-atp: {self.name} ended{_status(self._process.wait())}, and is started again: jobs go on")
        with _open(self.log, "ab") as errors:
            self._process = self._start(self._again, errors)

    def tell(self, message: Mapping[str, Any]) -> None:
        self.say(json.dumps(message))

    def say(self, line: str) -> None:
        """Writes one or more lines to its standard input. Raises: ProcessError: it does not read them."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessError(self._obituary("does not read its input")) from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next line of its output, which must be JSON. Raises: ProcessError: as `line`, or the line is not JSON."""
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

        Args: timeout_s: counts in CPU time while the process, or one of its group that it may wait for, computes on shared
        cores, up to ten times as long.

        Raises: ProcessError: it ended, or wrote nothing in time.
        """
        with contextlib.nullcontext() if self._waiting is None else self._waiting.on(self):
            self._await_line(timeout_s)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def _await_line(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        before_s = self.cpu_s()
        first_s = seen_s = self._group_cpu_s()
        begun = looked = time.monotonic()
        share = 0.0
        while b"\n" not in self._buffer:
            if wait_for([self], min(deadline - time.monotonic(), TICK_S)):
                self.pump()
                continue
            now, group_s = time.monotonic(), self._group_cpu_s()
            if now - looked >= SHARE_EVERY_S:
                share = (group_s - seen_s) / (now - looked)
                looked, seen_s = now, group_s
            if now >= deadline:
                share = max(share, (group_s - first_s) / (now - begun))  # on a busy machine there are idle spells
                is_over = self.cpu_s() - before_s >= timeout_s or now - begun >= MOST_TIMES * timeout_s
                if share < LEAST_SHARE or is_over:
                    raise ProcessError(self._obituary(f"wrote nothing for {timeout_s:.0f} s"))
                deadline = now + SHARE_EVERY_S

    @property
    def doing(self) -> str:
        """Its last activity according to its log; "" if it has reported none."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(SAID)]
        return said[-1].partition(": ")[2] if said else ""

    @property
    def has_answer(self) -> bool:
        return b"\n" in self._buffer

    def pump(self) -> None:
        """Reads its available output. Raises: ProcessError: it has ended."""
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._has_ended()
        self._buffer += data

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; 0 once it has ended."""
        return sum(self.cpu_times_s())

    def _group_cpu_s(self) -> float:
        """CPU time of all processes of its group: while one compiles, others wait for its code."""
        return sum(each.cpu_s() for each in self.siblings)

    def cpu_times_s(self) -> tuple[float, float]:
        """CPU time in user mode and in the kernel."""
        fields, ticks = stat_of(self._process.pid), float(os.sysconf("SC_CLK_TCK"))
        return (int(fields[11]) / ticks, int(fields[12]) / ticks) if fields else (0.0, 0.0)

    def check(self) -> None:
        """Raises: ProcessError: it has ended."""
        if self._process.poll() is not None:
            self._has_ended()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def is_stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP or a debugger, and may be continued."""
        return stat_of(self._process.pid)[:1] in (["T"], ["t"])

    def look(self) -> None:
        """Reports once if it has been stopped for a while."""
        if not self.is_stopped():
            self._stopped_at = None
        elif self._stopped_at is None:
            self._stopped_at = time.monotonic()
        elif time.monotonic() - self._stopped_at > STOPPED_S:
            self._stopped_at = float("inf")
            say(f"sa-atp: {self.how_it_goes_on()}")

    def how_it_goes_on(self) -> str:
        """A sentence on how to continue a stopped process."""
        return f"{self.name} is stopped: `kill -CONT {self._process.pid}` lets it go on"

    def failure(self, what: str) -> ProcessError:
        """An exception on what the process did, with its command and the end of its log."""
        return ProcessError(self._obituary(what))

    def last_lines(self) -> list[str]:
        """Asks it to end, and takes all that it has said until then and nobody has read."""
        self.is_over = True
        self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_TIMEOUT_S
        with contextlib.suppress(ProcessError):  # that it has ended
            while select.select([self], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.pump()
        return self._buffer.decode(errors="replace").splitlines()

    def end(self) -> None:
        """Ends the process, by force if it does not end in time."""
        self.is_over = True
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0 if what == "ended" else 0.0)  # its status follows the end of its output
        text = f"{self.name} {what}" + _status(self._process.poll())
        notes = [self.how_it_goes_on()] if self.is_stopped() else []
        often = len(self._started_again)
        notes += [f"it was started again {plural(often, 'time')} in the minute before"] if often else []
        notes += [f"no space is left in {self.log.parent}, the folder of its log"] if _is_full(self.log.parent) else []
        return "; ".join(
            [text, *notes, f"command: {' '.join(self._command)}", f"its log {self.log} {self._last_words()}"]
        )

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return "ends with:\n" + ("\n".join(f"    {line}" for line in lines) or "    (nothing)")


class Group(contextlib.ExitStack):
    """Processes that end together, the last one first, at the end of a with block."""

    def __init__(self, tell: Callable[[str], None] | None = None, *, together: bool = False) -> None:
        """Args:
        tell: called with a notice while we wait for an answer.
        together: whether all are needed: waiting for one fails if another one has ended.
        """
        super().__init__()
        self._processes: list[Process] = []
        self.waiting = None if tell is None else Waiting(tell)
        self._needed: list[Process] = []
        self._together = together

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Process:
        """Starts a process of the group. Its arguments are those of Process; `waiting` is the group's."""
        return self.add(Process(name, arguments, log, environment, **options, waiting=self.waiting))

    def add(self, process: Process) -> Process:
        """Adds a running process to the group."""
        self._processes.append(process)
        self.callback(process.end)
        process.siblings = self._processes
        if self._together:
            self.need(process)
            process.companions = self._needed
        return process

    def need(self, process: Process) -> None:
        """Makes waiting for any process of the group fail once this process has ended."""
        self._needed.append(process)


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, the third of proc(5); empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def wait_for(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    """Waits for output. Returns: the processes that have some; none after the timeout.

    Raises: ProcessError: a needed process has ended.
    """
    needed = [each for each in _needed_for(processes) if not each.is_over]
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process, selectors.EVENT_READ, process)
        heard: list[Process] = []
        is_last = False
        while True:  # an answer may be an error that follows from the end of another process
            for each in needed:
                each.look()
                if each not in processes:
                    each.check()
            if heard or is_last:
                return heard
            left_s = max(0.0, deadline - time.monotonic())
            is_last = left_s <= LOOK_S
            heard = [key.data for key, _ in selector.select(min(left_s, LOOK_S))]


def stopped(processes: Sequence[Process]) -> str:
    """A note for errors on processes that are stopped; "" if none is."""
    return "".join(f"; {each.how_it_goes_on()}" for each in _needed_for(processes) if each.is_stopped())


def _needed_for(processes: Sequence[Process]) -> list[Process]:
    """These processes, and their companions, in the order in which they were started."""
    companions = [each for process in processes for each in process.companions]
    return list(dict.fromkeys([*companions, *processes]))


def _status(status: int | None) -> str:
    if status is None:
        return ""
    names = {number.value: number.name for number in signal.Signals}
    return f" with status {status}" + (f" ({names[-status]})" if -status in names else "")


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def _open(log: Path, mode: Literal["wb", "ab"]) -> IO[bytes]:
    """Raises: ProcessError."""
    try:
        return log.open(mode)
    except OSError as error:
        raise ProcessError(f"{log}: cannot be written: {error.strerror}") from None


@cache
def _tie_to_parent() -> tuple[str, ...]:
    """The prefix of a command that ends it when we are killed: setpriv of util-linux."""
    tie = ("setpriv", "--pdeathsig", "TERM", "--")
    works = shutil.which(tie[0]) and subprocess.run([*tie, "true"], capture_output=True, check=False).returncode == 0
    return tie if works else ()
