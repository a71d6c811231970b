"""A network namespace for this process and its children, with interfaces of its own.

`python -m sa_atp.net.sockets.namespace [COMMAND...]` runs a command in one. Status 3: the kernel refuses.

Root may make one; others may if the kernel lets them be root of a user namespace, with no rights outside of it.
"""

import ctypes
import os
import sys
from pathlib import Path

from sa_atp.basics.errors import MissingPartError

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000


def enter() -> None:
    """Moves this process to a new network namespace. Call it before there are threads (NumPy starts some): a process
    with threads cannot make a user namespace.

    Raises: MissingPartError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET if user == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags):
        how = "this machine, or its container, must allow them" if user == 0 else "run it as root"
        raise MissingPartError(f"the kernel refuses a network namespace ({os.strerror(ctypes.get_errno())}): {how}")
    if user != 0:  # root within the namespace is enough
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError as error:
            raise MissingPartError(
                f"the kernel gives no rights in a user namespace ({error.strerror}): run it as root"
            ) from None


def inside(*command: str) -> list[str]:
    """The command line that runs a command in a new namespace."""
    return [sys.executable, "-m", "sa_atp.net.sockets.namespace", *command]


def main(command: list[str]) -> int:
    try:
        enter()
        if command:
            os.execvp(command[0], command)
    except MissingPartError as error:
        print(error, file=sys.stderr)
        return 3
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
