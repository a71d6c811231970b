"""The result of a probe."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from sa_atp.basics.errors import SaAtpError, shortage, shortage_in

PROBE_TIMEOUT_S = 300.0  # importing PyTorch on a busy machine with a cold disk takes minutes
NO_ANSWER = "no answer"
TRY_AGAIN = "it may be there: try again when the machine is less busy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    """Description of the part that was found, or the reason why it does not work."""
    how: str = ""
    """How to get it, where it is missing."""


def remedy(said: str, how: str) -> str:
    """Returns how to get what an attempt did not find: `how`, unless it had no answer and so says nothing of that."""
    return TRY_AGAIN if said.startswith(NO_ANSWER) else how


def attempt(
    command: Sequence[str], timeout_s: float = PROBE_TIMEOUT_S, *, tells_shortage: bool = False
) -> tuple[bool, str]:
    """Runs a program.

    Args: tells_shortage: whether an error for lack of files, processes or memory has no other cause than our limits.

    Returns: whether it succeeded, and its last line of output, or why it did not run.

    Raises: SaAtpError: for such a lack nothing can be tried here, so that it says nothing of this program.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return False, "not found"
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise SaAtpError(f"nothing can be tried here: {short}") from None
        return False, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return False, f"{NO_ANSWER} in {timeout_s:.0f} s"
    if tells_shortage and done.returncode != 0 and (short := shortage_in(done.stderr)) is not None:
        raise SaAtpError(f"nothing can be tried here: {short}")
    said = (done.stdout if done.returncode == 0 and done.stdout.strip() else done.stderr or done.stdout).strip()
    if done.returncode < 0:
        return False, f"ended by signal {-done.returncode}"
    return done.returncode == 0, said.splitlines()[-1] if said else f"status {done.returncode}"
