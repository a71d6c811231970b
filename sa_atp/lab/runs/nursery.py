"""Starts processes by forking them from one that has imported all that they need, a *nursery*. (nursery_process.py)

A switch, a parameter server and the workers of a run import much the same, and load the same compiled kernels. One process
does that for all of them; each then begins within milliseconds. It is started when it is first used, and ends with us.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

UNIMPORTANT = frozenset({"PYTEST_CURRENT_TEST"})  # variables that imported modules do not read
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the processes of a run share the cores
ROOM = 500 * "."  # for command lines, as `ps` shows them
MOST_KEPT = 2  # nurseries for other variables


class Child:
    """A forked process, with the methods of `subprocess.Popen` that this package calls."""

    def __init__(self, status: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        """Args: status: a pipe from which its number comes, and its status once it has ended."""
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._status = status
        self._told = b""

    @property
    def pid(self) -> int:
        """Its number, for which this waits until the nursery has imported all."""
        while b"\n" not in self._told and self.returncode is None:
            self._read(None)
        number, ends, _ = self._told.partition(b"\n")
        return int(number) if ends else 0

    def poll(self) -> int | None:
        while self.returncode is None and self._read(0.0):
            pass
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.poll() is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired("", timeout_s or 0.0)
            self._read(left_s)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.pid and self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its status is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> bool:
        """Takes what the nursery says. Returns: whether it has said something."""
        if not select.select([self._status], [], [], timeout_s)[0]:
            return False
        data = os.read(self._status, 100)
        self._told += data
        lines = self._told.split(b"\n")
        if len(lines) > 2:
            self.returncode = int(lines[1])
        elif not data:  # the nursery was killed, and its children with it
            self.returncode = -signal.SIGKILL
        if self.returncode is not None:
            os.close(self._status)
        return True


class Nursery:
    """A process that forks others."""

    def __init__(self, tie: Sequence[str], environment: Mapping[str, str], errors: int) -> None:
        """Args:
        tie: prefix of the command that ends it when we end.
        errors: descriptor of the log of the first process that it forks, which tells why it could not be forked.

        Raises: OSError: it cannot be started.
        """
        self._children: list[Child] = []
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*tie, sys.executable, "-m", "sa_atp.lab.runs.nursery_process", str(theirs.fileno()), ROOM],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**environment, **ONE_THREAD},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(
        self, arguments: Sequence[str], imports: Sequence[str], environment: Mapping[str, str], errors: int
    ) -> Child:
        """Forks a process.

        Args:
            arguments: a module to run, and its arguments.
            imports: packages to import before, which all later processes then have.
            errors: descriptor of its log.

        Raises: OSError.
        """
        request = {
            "arguments": arguments, "imports": imports, "environment": environment, "folder": os.getcwd(),
            "by": os.getpid(),
        }  # fmt: skip
        (status, status_end), (their_in, our_out), (our_in, their_out) = [os.pipe() for _ in range(3)]
        try:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [their_in, their_out, errors, status_end])
        except BaseException:  # it has ended, say
            for each in (status, our_in, our_out):
                os.close(each)
            raise
        finally:
            for each in (status_end, their_in, their_out):
                os.close(each)
        self._children = [each for each in self._children if each.poll() is None]
        self._children.append(Child(status, os.fdopen(our_out, "wb"), os.fdopen(our_in, "rb")))
        return self._children[-1]

    def is_alive(self) -> bool:
        """Whether it can fork; it may have been killed."""
        return self._process.poll() is None

    def is_used(self) -> bool:
        """Whether a process that it has forked still runs."""
        return any(each.poll() is None for each in self._children)

    def close(self) -> None:
        """Ends it, and the processes that it has forked and that still run."""
        self._requests.close()
        self._process.wait()


_kept: dict[tuple[int, frozenset[tuple[str, str]]], Nursery] = {}


def nursery_for(tie: Sequence[str], environment: Mapping[str, str], errors: int) -> Nursery:
    """The nursery of this process for these variables. Args: errors: see Nursery. Raises: OSError: it cannot be started."""
    known = frozenset((name, value) for name, value in environment.items() if name not in UNIMPORTANT | set(ONE_THREAD))
    key = os.getpid(), known
    if key in _kept and not _kept[key].is_alive():
        _kept.pop(key).close()
    if key not in _kept:
        unused = [each for each, kept in _kept.items() if not kept.is_used()]
        for each in unused[: max(0, len(_kept) + 1 - MOST_KEPT)]:
            _kept.pop(each).close()
        _kept[key] = Nursery(tie, environment, errors)
    return _kept[key]


@atexit.register
def _close_all() -> None:
    for (owner, _), kept in _kept.items():
        if owner == os.getpid():
            kept.close()
