"""Errors that a user can do something about. `sa-atp` turns each into one line and an exit status."""

import errno
import resource


class SaAtpError(Exception):
    """Base of all errors that the project raises on purpose; exit status 1."""


class UserError(SaAtpError):
    """The input is wrong: the message says what, where, and what would be accepted; exit status 2."""


class MissingPartError(SaAtpError):
    """A needed part is not on this machine: the message says which, and how to get it; exit status 3."""


def shortage(error: BaseException) -> str | None:
    """Describes a shortage of files, processes, memory or disk that caused an error; None: the error has another cause."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return f"too many open files: a process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n)"
    if number == errno.ENFILE:
        return "too many open files on this machine (sysctl fs.file-max)"
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
        return "no more processes or threads can be started (ulimit -u, or the limit of the container)"
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return "there is not enough memory"
    if number in (errno.ENOSPC, errno.EDQUOT):
        name = getattr(error, "filename", None)
        return "there is no room left on the disk" + (f" for {name}" if name else "")
    return None
