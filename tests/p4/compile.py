"""Compiles the test programs into the files beside them: python tests/p4/compile.py (needs p4c-bm2-ss on PATH)."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = ("router", "punt", "entries", "validity", "layers", "sums", "wide")


def without_positions(node: Any) -> Any:
    """Drops file names and line numbers, which no target needs."""
    if isinstance(node, dict):
        return {key: without_positions(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [without_positions(value) for value in node]
    return node


def compiled(name: str) -> dict[str, str]:
    """Contents of the files that belong to a program, by file name."""
    with tempfile.TemporaryDirectory() as scratch:
        config, p4info = Path(scratch) / "config.json", Path(scratch) / "p4info.txtpb"
        # relative names, because the compiler writes down what it was given
        subprocess.run(
            ["p4c-bm2-ss", "--p4runtime-files", str(p4info), "-o", str(config), f"{name}.p4"], cwd=HERE, check=True
        )
        tidy = without_positions(json.loads(config.read_text()))
        return {
            f"{name}.json": json.dumps(tidy, separators=(",", ":")) + "\n",
            f"{name}.p4info.txtpb": p4info.read_text(),
        }


if __name__ == "__main__":
    for program in PROGRAMS:
        for file, text in compiled(program).items():
            (HERE / file).write_text(text)
    sys.exit(0)
