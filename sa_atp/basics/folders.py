"""Folders outside of runs: the cache, and folders that users name."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """The folder of compiled pipelines: $SA_ATP_CACHE, or sa_atp below the user's cache folder.

    If it cannot be written, a folder below the temporary one. Code is loaded from there, so it must belong to this
    user.
    """
    shared = Path(tempfile.gettempdir())
    for folder in (*_own(), shared / f"sa_atp-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                if folder.parent != shared or folder.stat().st_uid == os.getuid():
                    return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="sa_atp-"))


def _own() -> Iterator[Path]:
    if chosen := os.environ.get("SA_ATP_CACHE"):
        yield Path(chosen)
    elif base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "sa_atp"
    else:
        with contextlib.suppress(RuntimeError):  # a user without an entry in passwd has no home
            yield Path.home() / ".cache" / "sa_atp"


def make_folder(path: Path) -> None:
    """Makes a folder that a user has named, with its parents. Raises: UserError."""
    from sa_atp.basics.errors import UserError  # here, because set-up loads this file before the package is installed

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}") from None
