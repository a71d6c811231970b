"""Functions for test points."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from sa_atp.basics.errors import UserError


def square(number: int) -> int:
    print("this is not an answer")
    return number * number


def careful(arguments: dict[str, Any]) -> int:
    """Records its start, waits for permission, and squares a number. Args: number, folder, wait."""
    folder = Path(arguments["folder"])
    begun = folder / f"begun-{arguments['number']}-{os.getpid()}-{time.monotonic_ns()}"
    begun.write_text(str(os.getpid()))
    while arguments.get("wait") and not (folder / "go").exists():
        time.sleep(0.01)
    number: int = arguments["number"]
    return number * number


def dies(folder: str) -> str:
    """Dies the first time, and returns the second time."""
    mark = Path(folder) / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def always_dies(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(what: str) -> None:
    raise UserError(f"{what} is not accepted")


def has_a_bug(_: Any) -> None:
    raise ZeroDivisionError
