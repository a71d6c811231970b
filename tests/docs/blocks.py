"""The code blocks of the documents, and how tests run their commands, with runs and benchmarks cut short."""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))),
)

Key = tuple[str, str]
"""The key of a block: its file, and the beginning of its first line."""

SHORT = f"""#!/bin/sh
case "$1 $2" in
    run\\ *) set -- "$@" --set run.steps=2 --set run.repetitions=1 ${{POLICIES:+--set "$POLICIES"}} ;;
    bench\\ allreduce) set -- "$@" --mbytes 1 --workers 2 --iterations 1 ;;
    bench\\ help) case "$*" in *--cost*) set -- "$@" --only "8 workers" ;; *) set -- "$@" --only "10G, one slow" ;; esac ;;
    bench\\ loss) set -- "$@" --mbytes 0.1 ;;
    bench\\ scale) set -- "$@" --workers 4 --steps 5 ;;
    bench\\ switch) set -- "$@" --lanes 64 --packets 4096 ;;
    soak\\ *) set -- "$@" --minutes 0.05 ;;
    map\\ *) set -- "$@" --seeds 1 --set run.steps=2 ;;
    explain-help\\ *) set -- explain-help "$2" 1 ;;
    reproduce\\ *) set -- "$@" --steps 4 --seeds 1 ;;
esac
exec {sys.executable} -m sa_atp "$@"
"""


class Block(NamedTuple):
    file: str
    language: str
    """The language that the document gives; "" if none: then there is nothing to run."""
    text: str

    @property
    def first(self) -> str:
        """Its first line that is not empty."""
        lines = self.text.splitlines()
        if self.language == "diff":  # begins with context
            return next((line for line in lines if line.startswith("+from")), lines[0])
        return lines[0]

    def is_at(self, key: Key) -> bool:
        return key[0] == self.file and f"{self.first}\n".startswith(key[1])


def blocks() -> list[Block]:
    return [
        Block(file, match[1], match[2])
        for file in FILES
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)
    ]


def the(key: Key) -> Block:
    return next(block for block in blocks() if block.is_at(key))


def make_place(folder: Path, *, policies: str = 'run.policies=["sa-atp"]') -> dict[str, str]:
    """Fills a folder like a checkout, to run blocks in, which may write to it. Returns: their environment.

    Args: policies: of runs; "": as the plan has them, which takes longer.
    """
    for entry in ROOT.iterdir():
        if entry.name not in ("runs", "build", ".git", ".venv"):
            (folder / entry.name).symlink_to(entry)
    programs = folder / "programs"
    programs.mkdir()
    (programs / "sa-atp").write_text(SHORT)
    (programs / "sa-atp").chmod(0o755)
    return {
        **os.environ,
        "POLICIES": policies,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
