"""The result of a probe."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

PROBE_TIMEOUT_S = 60.0  # importing PyTorch from a cold disk takes some


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    """What is there, or why it does not work."""
    how: str = ""
    """How to get it, where it is missing."""


def attempt(command: Sequence[str], timeout_s: float = PROBE_TIMEOUT_S) -> tuple[bool, str]:
    """Runs a program. Returns: whether it succeeded, and its last line of output, or why it did not run."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return False, "not found"
    except OSError as error:
        return False, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return False, f"no answer in {timeout_s:.0f} s"
    said = (done.stdout if done.returncode == 0 and done.stdout.strip() else done.stderr or done.stdout).strip()
    if done.returncode < 0:
        return False, f"ended by signal {-done.returncode}"
    return done.returncode == 0, said.splitlines()[-1] if said else f"status {done.returncode}"
