"""The output folder of a run: checked before the run begins, and locked while it lasts."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sa_atp.basics.errors import UserError
from sa_atp.lab.plans.plan import Plan

BASE_BYTES = 4_000_000  # figures, page, logs
INTERVAL_BYTES = 200  # of a worker's activity, in run.json and timeline.json
OTHER_INTERVALS = 8  # activities of a worker's step besides its micro-batches
TRIED_BYTES = 16_000_000  # written as a test, at most


def bytes_needed(plan: Plan) -> int:
    """Approximate size of the output of a run, in bytes."""
    steps = plan.run.steps * plan.run.repetitions * len(plan.run.policies) * plan.job.jobs
    return BASE_BYTES + steps * plan.topology.workers * (plan.job.micro_batches + OTHER_INTERVALS) * INTERVAL_BYTES


@contextlib.contextmanager
def claimed(folder: Path, needs_bytes: int) -> Iterator[None]:
    """Makes the folder, and locks it against other runs.

    Args: needs_bytes: space that the run needs.
    Raises: UserError: the folder cannot be written, is full, or is in use by another run.
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
    """Locks the folder. The kernel releases the lock however a run ends, and no lock file can be left over."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: in use by another run: choose another folder with --out, or wait until it has ended"
        ) from None
    except OSError:
        pass  # a file system without locks: other runs cannot be detected


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
        os.posix_fallocate(file, 0, min(size, TRIED_BYTES))  # reveals quotas and limits of the process
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.write(file, bytes(1 << 16))  # for file systems that cannot reserve space: at least test a write


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
