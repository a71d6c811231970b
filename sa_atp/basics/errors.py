"""Errors that a user can do something about. `sa-atp` turns each into one line and an exit status."""

import errno
import os
import resource
from collections.abc import Callable

USUAL_OPEN_FILES = 1024  # of a process, on Linux
OF_MEMORY = {"v": (resource.RLIMIT_AS, "address space"), "d": (resource.RLIMIT_DATA, "data")}
"""Limits of a process's memory, by the option of `ulimit`."""
LIBRARY_ERRORS = (OSError, ImportError, RuntimeError, SystemError)  # by which libraries tell of a shortage


class SaAtpError(Exception):
    """Base of all errors that the project raises on purpose; exit status 1."""


class UserError(SaAtpError):
    """The input is wrong: the message says what, where, and what would be accepted; exit status 2."""


class MissingPartError(SaAtpError):
    """A needed part is not on this machine: the message says which, and how to get it; exit status 3."""


def shortage(error: BaseException) -> str | None:
    """Describes a shortage of files, processes, memory or disk that caused an error; None: the error has another cause."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return next(filter(None, map(_shortage_of, causes)), None) or _perhaps_of_memory(error)


def shortage_in(text: str) -> str | None:
    """Describes a shortage that libraries and programs tell only in their text; None: the text tells none."""
    for marks, describe in _TOLD:
        if any(mark in text for mark in marks):
            return describe()
    return None


def limit_of(which: int) -> int | None:
    """A limit of this process, such as resource.RLIMIT_NOFILE; None: it is unlimited."""
    most = resource.getrlimit(which)[0]
    return None if most == resource.RLIM_INFINITY else most


def _shortage_of(error: BaseException) -> str | None:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        name = getattr(error, "filename", None)
        return "there is no room left on the disk" + (f" for {name}" if name else "")
    if number == errno.ENFILE:
        return "too many open files on this machine (sysctl fs.file-max)"
    if number == errno.EAGAIN:
        return _no_more_processes()
    if isinstance(error, MemoryError):
        return _no_more_memory()
    return shortage_in(str(error)) if isinstance(error, LIBRARY_ERRORS) else None


def _perhaps_of_memory(error: BaseException) -> str | None:
    """A library's own words, where it has no clear ones for what a limit of the address space leads to."""
    space = _space()
    if space is None or not isinstance(error, LIBRARY_ERRORS) or getattr(error, "errno", None) is not None:
        return None
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}; perhaps for lack of memory: a process may have {space}"


def _no_more_files() -> str:
    most = limit_of(resource.RLIMIT_NOFILE)
    usual = "" if most is None or most >= USUAL_OPEN_FILES else f"; {USUAL_OPEN_FILES} are usual"
    return f"too many open files: a process may have {most or 'no more'} (ulimit -n){usual}"


def _no_more_processes() -> str:
    most, space = limit_of(resource.RLIMIT_NPROC), _space()
    of_user = "" if most is None else f": this user may have {most}"
    beside = "" if space is None else f"; or there is not enough memory: a process may have {space}"
    return f"no more processes or threads can be started{of_user} (ulimit -u, or the limit of the container){beside}"


def _no_more_memory() -> str:
    space = _space()
    return "there is not enough memory" + ("" if space is None else f": a process may have {space}")


def _space() -> str | None:
    """The limits of a process's memory, if there are any."""
    found = [
        f"{most / 1e9:.2g} GB of {what} (ulimit -{letter})"
        for letter, (which, what) in OF_MEMORY.items()
        if (most := limit_of(which)) is not None
    ]
    return " and ".join(found) or None


_TOLD: tuple[tuple[tuple[str, ...], Callable[[], str]], ...] = (
    ((os.strerror(errno.EMFILE),), _no_more_files),
    (("can't start new thread", "pthread_create failed", os.strerror(errno.EAGAIN)), _no_more_processes),
    (
        (os.strerror(errno.ENOMEM), "MemoryError", "failed to map segment", "Memory allocation still failed"),
        _no_more_memory,
    ),
)
"""What the C library, its loader, Python and OpenBLAS say, and what it means."""
