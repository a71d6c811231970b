"""Tries what Mininet does for nodes and links. It would wait for ever for a node's shell that has died, and does not look
whether a link was made.
"""

import contextlib
import os
import re
import select
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from sa_atp.basics.words import join

ANSWER_S = 4.0  # for each command
HELLO = b"hello\n"
LINK = ("ip", "link", "add", "name", "sa0", "type", "veth", "peer", "name", "sa1", "netns")
QUEUES = {
    "htb": ("handle", "1:", "htb", "default", "10"),
    "tbf": ("tbf", "rate", "10gbit", "burst", "2000", "limit", "3000"),
    "pfifo": ("pfifo", "limit", "10"),
    "bfifo": ("bfifo", "limit", "10000"),
}
"""The kinds of queues that links have (links.py), with arguments of `tc qdisc`."""
FILTER = ("parent", "1:", "protocol", "ip", "u32", "match", "ip", "tos", "0", "0", "flowid", "1:1")
CAPABILITIES = {21: "CAP_SYS_ADMIN", 12: "CAP_NET_ADMIN"}  # by bit
WHOLE_MACHINE = ["0", "0", "4294967295"]  # a user namespace has another uid_map
PRIVILEGED = "a container needs `docker run --privileged`"
CHROOT = "this is a chroot, which mnexec leaves: use a container, or pivot_root in a mount namespace of its own"


class _FailedError(Exception):
    """A command failed: the text has it, why, and what helps."""

    def __init__(self, command: Sequence[str], why: str, remedy: str = "") -> None:
        super().__init__(f"`{' '.join(command)}`: {why} ({remedy or _remedy()})")


def problem(queues: Iterable[str] = QUEUES) -> str:
    """Tries two nodes, a link between them, and queues on it. Args: queues: kinds out of QUEUES.

    Returns: the command that fails, the reason that it gives, and what helps; "" if none does.
    """
    try:
        with _node() as node, _node() as other, tempfile.NamedTemporaryFile() as file:
            _run(node, "cat", file.name, remedy=CHROOT)  # which has other files than its machine
            _run(node, *LINK, other)
            for kind in queues:
                _run(node, "tc", "qdisc", "replace", "dev", "sa0", "root", *QUEUES[kind])
                if kind == "htb":
                    _run(node, "tc", "filter", "add", "dev", "sa0", *FILTER)
    except _FailedError as failure:
        return str(failure)
    return ""


@contextlib.contextmanager
def _node() -> Iterator[str]:
    """A process in namespaces of its own, as a node's shell. Yields: its number. Raises: _FailedError."""
    command = ("mnexec", "-cdn", "cat")
    with tempfile.TemporaryFile() as errors, _started(command, errors) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(process.stdin.fileno(), HELLO)
        if not select.select([process.stdout], [], [], ANSWER_S)[0]:
            raise _FailedError(command, _no_answer())
        if os.read(process.stdout.fileno(), len(HELLO)) != HELLO:
            raise _FailedError(command, _reason(errors))
        yield str(process.pid)


def _run(node: str, *command: str, remedy: str = "") -> None:
    """Runs a command at a node. Raises: _FailedError."""
    whole = ("mnexec", "-a", node, *command)
    with tempfile.TemporaryFile() as errors, _started(whole, errors) as process:
        try:
            status = process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            raise _FailedError(whole, _no_answer()) from None
        if status != 0:
            raise _FailedError(whole, _reason(errors), remedy)


@contextlib.contextmanager
def _started(command: Sequence[str], errors: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process for a block. Args: errors: takes what it says, which a pipe would keep for as long as its children live."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    except OSError as error:
        raise _FailedError(command, error.strerror or str(error)) from None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _no_answer() -> str:
    return f"no answer in {ANSWER_S:.0f} s"


def _reason(errors: IO[bytes]) -> str:
    """The last line that a program has said."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended, and did not say why"


def _remedy() -> str:
    """What helps, by what this process may not do."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        found = re.search(r"CapEff:\s*([0-9a-f]+)", status)
        effective = int(found[1], 16) if found else ~0
        if lacking := [name for bit, name in CAPABILITIES.items() if not effective >> bit & 1]:
            return f"this process lacks {join(lacking)}: {PRIVILEGED}"
        if Path("/proc/self/uid_map").read_text().split() != WHOLE_MACHINE:
            return f"this is root of a user namespace only: run it as root of the machine; {PRIVILEGED}"
        if all(line.split()[4] != "/" for line in Path("/proc/self/mountinfo").read_text().splitlines()):
            return CHROOT
    return PRIVILEGED
