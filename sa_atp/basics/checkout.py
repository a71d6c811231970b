"""The commit of the sources that run."""

import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2]
"""The checkout, if the package runs from one; else the folder that it is installed in."""


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, with `+changes` if the tree is modified; None outside a repository.

    git refuses repositories of other users, and is told to accept this one: its code is what runs anyway. Nothing is
    written there.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-c", f"safe.directory={root}", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
