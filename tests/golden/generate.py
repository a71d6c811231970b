"""Writes the golden vectors: python -m tests.golden.generate [--check]

They are committed, so that a target can be tested without this script; --check says when they are out of date.
"""

import argparse
import sys
from pathlib import Path

from .scenarios import ALL

FOLDER = Path(__file__).resolve().parent


def contents() -> dict[Path, str]:
    """What the files should hold."""
    return {FOLDER / f"{name}.stf": make().stf() for name, make in ALL.items()}


def out_of_date() -> list[str]:
    """One line for each file that is not as it should be."""
    wanted = contents()
    found = [f"{path.name}: out of date" for path, text in wanted.items() if _text(path) != text]
    return found + [f"{path.name}: no scenario writes it" for path in FOLDER.glob("*.stf") if path not in wanted]


def _text(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    if parser.parse_args().check:
        problems = out_of_date()
        print("\n".join(problems) or "up to date")
        sys.exit(bool(problems))
    for path, text in contents().items():
        path.write_text(text)
