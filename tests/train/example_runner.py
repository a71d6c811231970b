"""Runs an example on a rank, as torchrun would."""

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(rank: int, world_size: int, *, name: str, arguments: list[str], port: int) -> Any:
    """Returns: what the example prints last, as JSON; None on ranks that print nothing."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(SA_ATP_RANK=str(rank), SA_ATP_WORLD_SIZE=str(world_size))
    output = io.StringIO()
    before = sys.argv, list(sys.path)
    sys.argv = [name, *arguments, "--json"]
    sys.path.insert(0, str(EXAMPLES))
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
        for variable in ("SA_ATP_RANK", "SA_ATP_WORLD_SIZE"):
            del os.environ[variable]
    lines = output.getvalue().splitlines()
    return json.loads(lines[-1]) if lines else None
