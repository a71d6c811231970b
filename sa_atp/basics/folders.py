"""Where things are kept that are not part of a run."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled pipelines are kept between runs: $SA_ATP_CACHE, or sa_atp below the user's cache folder.

    Where that cannot be written, a folder of this user below the temporary one. Code is loaded from there, so a folder that
    somebody else has made is not taken.
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
        with contextlib.suppress(RuntimeError):  # a user whom the system does not know has no home
            yield Path.home() / ".cache" / "sa_atp"


def make_folder(path: Path) -> None:
    """A folder for what somebody wants to keep. Raises: UserError."""
    from sa_atp.basics.errors import UserError  # set-up looks at this file before there is a package

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}") from None
