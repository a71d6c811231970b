"""Commands in processes that may have less than usual."""

import sys

SET = (
    "import os, resource, sys; number = getattr(resource, sys.argv[1]); "
    "resource.setrlimit(number, (int(sys.argv[2]),) * 2); os.execv(sys.argv[3], sys.argv[3:])"
)


def limited(limit: str, most: int, *command: object) -> list[str]:
    """Makes a command that sets a limit, and becomes the given one. Args: limit: such as RLIMIT_FSIZE.

    A `preexec_fn` would run in a copy of this process, whose threads' locks may be held: with gRPC it may abort.
    """
    return [sys.executable, "-c", SET, limit, str(most), *map(str, command)]
