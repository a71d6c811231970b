"""Processes that descend from another one, as /proc has them."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The children of a process's main thread, and theirs."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for child in children for each in (child, *descendants(child))]
