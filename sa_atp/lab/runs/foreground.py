"""Commands that stay in the foreground: until Ctrl-C, the end of a child command, or the death of a needed process."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sa_atp.basics.terminal import say
from sa_atp.lab.runs.processes import LOOK_S, Process, ProcessError, wait_for

PATIENCE_S = 10.0  # between SIGTERM and SIGKILL
HEARD_S = (
    15.0  # within which ranks notice that a switch or a parameter server is gone, and end with an error that says so
)


def stay(processes: Sequence[Process]) -> None:
    """Waits for KeyboardInterrupt. Raises: ProcessError: one of the processes ended; the others are left for HEARD_S, so
    that programs learn which one it was.
    """
    try:
        while True:
            for process in wait_for(processes, 3600.0):
                process.pump()
    except ProcessError as error:
        if processes[-1].is_running():
            say(f"sa-atp: {str(error).partition(';')[0]}: programs have {HEARD_S:g} s to notice")
            time.sleep(HEARD_S)
        raise


def run_command(command: Sequence[str], environment: Mapping[str, str], processes: Sequence[Process]) -> int:
    """Runs a command with additions to the environment, on our standard streams.

    Returns: its exit status; 128 + the signal's number if one ended it, as shells do.
    Raises: ProcessError: one of the processes ended before the command, which then has HEARD_S to end by itself. After
    that, and on KeyboardInterrupt, it is ended.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        with _held_back():
            child = subprocess.Popen(command, env={**os.environ, **environment})
        _until_it_ends(child, processes)
    except BaseException as error:
        if child is not None:
            if isinstance(error, ProcessError):
                say(f"sa-atp: {str(error).partition(';')[0]}: the command has {HEARD_S:g} s to end by itself")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(HEARD_S)
            _end(child)
        raise
    status = child.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _held_back() -> Iterator[None]:
    """Defers terminating signals to the end of the block, so that no child is left behind."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _until_it_ends(child: "subprocess.Popen[bytes]", processes: Sequence[Process]) -> None:
    ended = os.pidfd_open(child.pid)
    try:
        while True:
            with selectors.DefaultSelector() as selector:  # a new one each time: a process may have been started again
                selector.register(ended, selectors.EVENT_READ, None)
                for process in processes:
                    process.look()
                    selector.register(process, selectors.EVENT_READ, process)
                for key, _ in selector.select(LOOK_S):
                    if key.data is None:
                        return
                    key.data.pump()
    finally:
        os.close(ended)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ends the command. Ctrl-C has reached it already, but a SIGTERM to us has not: after a moment, it gets one."""
    for after_s, number in ((1.0, signal.SIGTERM), (PATIENCE_S, signal.SIGKILL)):
        try:
            child.wait(after_s)
            return
        except subprocess.TimeoutExpired:
            child.send_signal(number)
    child.wait()
