"""Removal of what crashed runs left on the machine.

Processes of a run end with the process that started them (see runs.processes), and links disappear with the last process of
their namespace. So little can be left: control groups, folders of sockets, and processes that were started by hand or could
not be tied to their parent. Each is removed only if the run that made it is over.
"""

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sa_atp.basics.errors import MissingPartError
from sa_atp.lab.backends.mininet import cgroups
from sa_atp.lab.runs.processes import stat_of

OWNER = "SA_ATP_OWNER"  # environment variable of every process of a run: OWNER_PID:START_TICKS
FOLDER_PREFIX = "sa-atp-net-"
END_S = 2.0
SHELL = re.compile(rb"mininet:[^\0]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """An object that a run left behind."""

    kind: str
    """process, control group, folder or interface"""
    name: str


def owner_mark() -> str:
    """A unique name of this process: process ids are reused, but not with the same start time."""
    return f"{os.getpid()}:{_start_ticks(os.getpid())}"


def clean(*, dry_run: bool = False) -> list[Leftover]:
    """Removes what ended runs left. Args: dry_run: only lists it. Returns: what was found."""
    found = []
    for pid, name in _orphans():
        found.append(Leftover(kind="process", name=f"{pid} {name}"))
        if not dry_run:
            _end(pid)
    for folder in _groups():
        found.append(Leftover(kind="control group", name=str(folder)))
        if not dry_run:
            for member in (folder / "cgroup.procs").read_text().split():
                _end(int(member))
            with contextlib.suppress(OSError):
                folder.rmdir()
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*")):
        if not _lives(_mark_of(folder.name)):
            found.append(Leftover(kind="folder", name=str(folder)))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return found


def _groups() -> Iterator[Path]:
    try:
        base = cgroups.base()
    except MissingPartError:
        return
    for folder in sorted(base.glob(f"{cgroups.PREFIX}*")):
        pid = folder.name.removeprefix(cgroups.PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            yield folder


def _orphans() -> Iterator[tuple[int, str]]:
    """Processes of ended runs, and orphaned shells of Mininet's nodes."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            parent = stat_of(int(entry.name))[1]
        except (OSError, IndexError):
            continue  # the process has ended meanwhile
        mark = re.search(rb"(?:^|\0)" + OWNER.encode() + rb"=([0-9]+:[0-9]+)", environment)
        words = b" ".join(command.split(b"\0")).decode(errors="replace").strip()
        if mark is not None:
            if not _lives(mark[1].decode()):
                yield int(entry.name), words[:80]
        elif SHELL.search(command) and parent == "1":
            yield int(entry.name), words[:80]


def _mark_of(folder: str) -> str:
    """The owner in a folder's name, sa-atp-net-PID-TICKS-RANDOM."""
    parts = folder.removeprefix(FOLDER_PREFIX).split("-")
    return ":".join(parts[:2])


def _lives(mark: str) -> bool:
    pid, _, ticks = mark.partition(":")
    return pid.isdigit() and _start_ticks(int(pid)) == ticks


def _start_ticks(pid: int) -> str:
    """Start time of a process, in clock ticks since boot; "" if it does not exist."""
    return "".join(stat_of(pid)[19:20])


def _end(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            if stat_of(pid)[:1] in ([], ["Z"]):
                return
            time.sleep(0.05)
