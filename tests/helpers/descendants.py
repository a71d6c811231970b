"""Processes that descend from another one, as /proc has them."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The children of a process's main thread, and theirs; none of a process that has ended meanwhile."""
    children = [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    return [each for child in children for each in (child, *descendants(child))]


def command_of(pid: int) -> str:
    """A process's command line, its words with spaces between; empty where the process has ended."""
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # The second one: it ended between opening and reading.
        return ""
