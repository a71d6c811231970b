"""The folder that a run writes into: tried before the run begins, and its own for as long as it lasts."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import Plan

BASE_BYTES = 4_000_000  # figures, page, logs
INTERVAL_BYTES = 200  # of an activity of a worker, in run.json and timeline.json
OTHER_INTERVALS = 8  # of a worker's step, beside its micro-batches
TRIED_BYTES = 16_000_000  # written, at most, to see whether that is possible


def bytes_needed(plan: Plan) -> int:
    """About how many bytes a run of a plan leaves."""
    steps = plan.run.steps * plan.run.repetitions * len(plan.run.policies) * plan.job.jobs
    return BASE_BYTES + steps * plan.topology.workers * (plan.job.micro_batches + OTHER_INTERVALS) * INTERVAL_BYTES


@contextlib.contextmanager
def claimed(folder: Path, needs_bytes: int) -> Iterator[None]:
    """Makes the folder, and keeps it from other runs.

    Args: needs_bytes: that must fit into it.
    Raises: UserError: it cannot be written, is full, or another run is at work in it.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {_reason(error)}: choose another folder with --out") from None
    try:
        _lock(lock, folder)
        try:
            _try(folder, needs_bytes)
        except UserError:
            if is_new:
                folder.rmdir()
            raise
        yield
    finally:
        os.close(lock)


def _lock(directory: int, folder: Path) -> None:
    """The kernel gives the lock back, however a run ends; there is no file that could be left over."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: another run is at work there: choose another folder with --out, or wait until it is over"
        ) from None
    except OSError:
        pass  # a file system without such locks: then nobody else can be seen


def _try(folder: Path, needs_bytes: int) -> None:
    """Raises: UserError."""
    part = folder / f".space.{os.getpid()}.part"
    try:
        try:
            with part.open("xb") as file:
                _reserve(file.fileno(), needs_bytes)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        megabytes = -(-needs_bytes // 1_000_000)
        needs = (
            f"; this run needs about {megabytes} MB" if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) else ""
        )
        raise UserError(
            f"{folder}: cannot be written: {_reason(error)}{needs}: choose another folder with --out"
        ) from None


def _reserve(file: int, size: int) -> None:
    """Raises: OSError."""
    disk = os.fstatvfs(file)
    if disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        os.posix_fallocate(file, 0, min(size, TRIED_BYTES))  # a quota, or a limit of the process, shows only now
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.write(file, bytes(1 << 16))  # a file system that cannot reserve: at least that it can be written


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
